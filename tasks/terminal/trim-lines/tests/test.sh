#!/bin/sh
# All files.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
[ -z "$(find /app/docs -type l)" ] || exit 0
diff -r /app/docs /tests/docs >/dev/null || exit 0

echo 1 >/logs/verifier/reward.txt
