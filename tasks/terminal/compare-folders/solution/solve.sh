#!/bin/sh
set -e
cd /app
{ (cd old && find . -type f -printf '%P\n'); (cd new && find . -type f -printf '%P\n'); } | LC_ALL=C sort -u |
    while IFS= read -r file; do
        if [ ! -f "new/$file" ]; then echo "removed $file"
        elif [ ! -f "old/$file" ]; then echo "added $file"
        elif ! cmp -s "old/$file" "new/$file"; then echo "changed $file"
        fi
    done >changes.txt
