#!/bin/sh
# The names and contents of all files.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
[ -s /app/bundle.tar.gz ] || exit 0
found=$(cd /app/settings && find . -mindepth 1 | LC_ALL=C sort | while IFS= read -r file; do echo "$file $(cat "$file")"; done)
[ "$found" = "$(cat /tests/expected.txt)" ] || exit 0

echo 1 >/logs/verifier/reward.txt
