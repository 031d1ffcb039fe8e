#!/bin/sh
# The script is run on files that the model has not seen; only its output counts.
work=$(mktemp -d) && cd "$work" || exit 1
run() { timeout 10 sh /app/render.sh "$1" "$2"; }
printf '# c\n\nA=1\nB=x&y\\z/=q\nC={{A}}\nA=two words \nE=\n' >values
printf 'A={{A}}|{{B}}{{B}}\n\n{{C}} {{lower}} {A} {{{A}}} {{ A }}{{E}}\n#{{A}}\n' >template
run values template >found 2>/dev/null || exit 1
cmp -s /tests/expected.txt found || exit 1
printf 'fine\n{{A}} {{NO_1}} {{NO_2}}\n' >template
if run values template >found 2>errors; then exit 1; fi
[ ! -s found ] && [ "$(cat errors)" = "missing NO_1" ] || exit 1
run /app/example/values /app/example/template >found || exit 1
[ "$(cat found)" = "Hello Ann & Bo,
your files are in /srv/a=b. {{lower}} { }" ] || exit 1

exit 0
