#!/bin/sh
# The whole list.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
cmp -s /tests/expected.txt /app/largest.txt || exit 0

echo 1 >/logs/verifier/reward.txt
