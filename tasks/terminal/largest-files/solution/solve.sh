#!/bin/sh
set -e
cd /app/data
find . -type f -printf '%s %P\n' | sort -rn | head -n 3 | cut -d ' ' -f 2- >/app/largest.txt
