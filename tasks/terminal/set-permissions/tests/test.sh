#!/bin/sh
# The execute bits of all files; folders can still be entered.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
[ -z "$(find /app/tools -type f -name '*.sh' ! -perm -111)" ] || exit 0
[ -z "$(find /app/tools -type f ! -name '*.sh' -perm /111)" ] || exit 0
[ -z "$(find /app/tools -type d ! -perm -100)" ] || exit 0
[ "$(find /app/tools -type f | wc -l)" -eq 4 ] || exit 0

echo 1 >/logs/verifier/reward.txt
