#!/bin/sh
# The whole report.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
cmp -s /tests/expected.txt /app/longest.txt || exit 0

echo 1 >/logs/verifier/reward.txt
