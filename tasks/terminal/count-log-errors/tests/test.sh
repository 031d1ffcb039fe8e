#!/bin/sh
# The number of lines with the level ERROR.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
[ "$(tr -d '[:space:]' </app/errors.txt)" = "28" ] || exit 0

echo 1 >/logs/verifier/reward.txt
