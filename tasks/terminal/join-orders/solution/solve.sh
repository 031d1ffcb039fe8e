#!/bin/sh
set -e
awk -F , 'FNR == 1 {next} NR == FNR {name[$1] = $2; next} $2 in name {count[$2]++; sum[$2] += $3}
    END {for (id in name) print name[id], count[id] + 0, sum[id] + 0}' /app/users.csv /app/orders.csv |
    LC_ALL=C sort -k 3,3nr -k 1,1 >/app/totals.txt
