#!/bin/sh
set -e
awk -F ';' -v OFS=';' '{print $3, $1, $2}' /app/people.txt >/app/swapped.txt
