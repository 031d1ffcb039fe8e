#!/bin/sh
set -e
tr 'A-Z' 'a-z' </app/book.txt | tr -cs 'a-z' '\n' | grep -E '^.{3,}$' | grep -vxFf /app/stop.txt | LC_ALL=C sort | uniq -c |
    LC_ALL=C sort -k 1,1nr -k 2,2 | head -n 8 | awk '{print $2, $1}' >/app/top.txt
