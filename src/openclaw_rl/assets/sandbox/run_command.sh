# Runs inside a box: one command, with its output in the pipes of its folder, and its exit status at the end.
folder=/run/box/$1
input=/dev/null
[ -e "$folder/input" ] && input=$folder/input
shell=/bin/sh
[ -x /bin/bash ] && shell=/bin/bash
"$shell" "$folder/command" <"$input" >"$folder/output" 2>"$folder/errors"
echo $? 1<>"$folder/end"
