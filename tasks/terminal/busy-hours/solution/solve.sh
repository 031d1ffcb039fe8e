#!/bin/sh
set -e
LC_ALL=C sort -t ';' -k 1,1 -k 2,2 -k 3,3 /app/bookings.txt | awk -F ';' '
    function minutes(time) {return substr(time, 1, 2) * 60 + substr(time, 4, 2)}
    function flush() {if (room != "") {times = times (times ? "," : "") from "-" to; sum += minutes(to) - minutes(from)}}
    $1 != room {flush(); if (room != "") print room ";" sum ";" times; room = $1; from = $2; to = $3; sum = 0; times = ""; next}
    $2 <= to {if ($3 > to) to = $3; next}
    {flush(); from = $2; to = $3}
    END {flush(); print room ";" sum ";" times}
' | LC_ALL=C sort -t ';' -k 2,2nr -k 1,1 >/app/busy.txt
