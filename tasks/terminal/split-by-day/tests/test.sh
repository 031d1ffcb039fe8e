#!/bin/sh
# All files.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
[ -z "$(find /app/days -type l)" ] || exit 0
diff -r /app/days /tests/days >/dev/null || exit 0

echo 1 >/logs/verifier/reward.txt
