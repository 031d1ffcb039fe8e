#!/bin/sh
# The greeting has one line, with the name.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
[ "$(cat /app/greeting.txt)" = "Hello, Marie Curie!" ] || exit 0
[ "$(wc -l </app/greeting.txt)" -eq 1 ] || exit 0

echo 1 >/logs/verifier/reward.txt
