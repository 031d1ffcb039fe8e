#!/bin/sh
set -e
awk '
    {split($1, part, ":"); now = part[1] * 60 + part[2]}
    $3 == "login" {begin[$2] = now; text[$2] = $1}
    $3 == "logout" && $2 in begin {
        if (now - begin[$2] > most[$2]) {most[$2] = now - begin[$2]; at[$2] = text[$2]}
        delete begin[$2]
    }
    END {for (user in most) print user, most[user], at[user]}
' /app/logins.txt | LC_ALL=C sort -k 2,2nr -k 1,1 >/app/longest.txt
