#!/bin/sh
set -e
cd /app/stock
for file in *.txt; do
    grep -v '^#' "$file" | sort -t ';' -k 1,1 -k 3,3r | awk -F ';' -v place="${file%.txt}" '!seen[$1]++ {print $1, $2, place}'
done | sort -k 1,1 -k 3,3 | awk '
    {sum[$1] += $2}
    $2 > 0 {places[$1] = places[$1] (places[$1] ? "," : "") $3}
    END {for (sku in sum) if (sum[sku] > 0) print sku, sum[sku], places[sku]}
' | LC_ALL=C sort -k 2,2nr -k 1,1 >/app/report.txt
