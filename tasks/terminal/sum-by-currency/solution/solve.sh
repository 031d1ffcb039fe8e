#!/bin/sh
set -e
awk -F '\t' '{sum[$2] += $3} END {for (c in sum) print c, sum[c]}' /app/payments.tsv | LC_ALL=C sort >/app/sums.txt
