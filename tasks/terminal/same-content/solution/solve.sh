#!/bin/sh
set -e
cd /app/files
find . -type f -printf '%P\n' | LC_ALL=C sort | while IFS= read -r file; do
    printf '%s\t%s\n' "$(cksum <"$file" | tr ' ' -)" "$file"
done | awk -F '\t' '
    {count[$1]++; block[$1] = block[$1] $2 "\n"; if (!($1 in first)) {first[$1] = NR; order[NR] = $1}}
    END {for (n = 1; n <= NR; n++) if (n in order && count[order[n]] > 1) {printf "%s%s", separator, block[order[n]]; separator = "\n"}}
' >/app/same.txt
