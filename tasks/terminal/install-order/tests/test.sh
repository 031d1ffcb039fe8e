#!/bin/sh
# The whole order.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
cmp -s /tests/expected.txt /app/order.txt || exit 0

echo 1 >/logs/verifier/reward.txt
