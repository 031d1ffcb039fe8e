#!/bin/sh
set -e
awk '{
    line = ""; field = ""; quoted = 0; size = length($0)
    for (n = 1; n <= size; n++) {
        c = substr($0, n, 1)
        if (quoted && c == "\"" && substr($0, n + 1, 1) == "\"") {field = field c; n++}
        else if (c == "\"") quoted = !quoted
        else if (c == "," && !quoted) {line = line field "\t"; field = ""}
        else field = field c
    }
    print line field
}' /app/table.csv >/app/table.tsv
