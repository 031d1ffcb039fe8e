#!/bin/sh
# The names and contents of all files.
mkdir -p /logs/verifier
echo 0 >/logs/verifier/reward.txt
expected="2025/cat.jpg cat
2025/jpeg.txt about .jpeg files
2025/summer/old tower.jpg tower
a day at home.jpg home
sea.jpg sea
x.jpeg.bak copy"
found=$(cd /app/photos && find . -type f | LC_ALL=C sort | while IFS= read -r file; do
    echo "${file#./} $(cat "$file")"
done)
[ "$found" = "$expected" ] || exit 0

echo 1 >/logs/verifier/reward.txt
