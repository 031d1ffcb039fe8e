#!/bin/sh
# The script is run on folders that the model has not seen; only its output and files count.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
work=$(mktemp -d) && cd "$work" || exit 0
mkdir -p "in/one two/three" empty
echo 1 >in/plain
echo 2 >"in/with space"
echo 3 >in/.hidden
echo 4 >"in/one two/three/deep file"

output=$(timeout 10 sh /app/backup.sh "$work/in" "$work/out") || exit 0
[ "$output" = "copied 4 files" ] || exit 0
diff -r in out >/dev/null || exit 0
output=$(timeout 10 sh /app/backup.sh "$work/empty" "$work/out 2/of empty") || exit 0
[ "$output" = "copied 0 files" ] || exit 0
[ -d "out 2/of empty" ] || exit 0
if output=$(timeout 10 sh /app/backup.sh "$work/missing" "$work/out3" 2>/dev/null); then exit 0; fi
[ -z "$output" ] || exit 0
[ ! -e out3 ] || exit 0

echo 1 >/logs/verifier/reward.txt
