#!/bin/sh
# The list of removed links, and all that is left.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
cmp -s /tests/removed.txt /app/removed.txt || exit 0
cd /app/site || exit 0
[ "$(find . -mindepth 1 | LC_ALL=C sort)" = "$(cat /tests/left.txt)" ] || exit 0
[ "$(cat home.html pages/start.html pages/section/about.html)" = "index
index
about" ] || exit 0

echo 1 >/logs/verifier/reward.txt
