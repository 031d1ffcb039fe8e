#!/bin/sh
set -e
awk -F '[: ]+' '
    {name[$1] = 1; for (n = 2; n <= NF; n++) if ($n != "") needs[$1] = needs[$1] " " $n}
    END {
        for (p in name) total++
        for (step = 0; step < total; step++) {
            best = ""
            for (p in name) {
                if (p in done) continue
                ready = 1; count = split(needs[p], part, " ")
                for (n = 1; n <= count; n++) if (!(part[n] in done)) ready = 0
                if (ready && (best == "" || p < best)) best = p
            }
            print best; done[best] = 1
        }
    }
' /app/packages.txt >/app/order.txt
