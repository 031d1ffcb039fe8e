#!/bin/sh
# The script is run on folders that the model has not seen; only its output and files count.
work=$(mktemp -d) && cd "$work" || exit 1
mkdir -p "in/one two/three" empty
echo 1 >in/plain
echo 2 >"in/with space"
echo 3 >in/.hidden
echo 4 >"in/one two/three/deep file"

output=$(timeout 10 sh /app/backup.sh "$work/in" "$work/out") || exit 1
[ "$output" = "copied 4 files" ] || exit 1
diff -r in out >/dev/null || exit 1
output=$(timeout 10 sh /app/backup.sh "$work/empty" "$work/out 2/of empty") || exit 1
[ "$output" = "copied 0 files" ] || exit 1
[ -d "out 2/of empty" ] || exit 1
if output=$(timeout 10 sh /app/backup.sh "$work/missing" "$work/out3" 2>/dev/null); then exit 1; fi
[ -z "$output" ] || exit 1
[ ! -e out3 ] || exit 1

exit 0
