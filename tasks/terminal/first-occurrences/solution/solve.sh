#!/bin/sh
set -e
awk '!seen[$0]++' /app/colours.txt >/app/unique.txt
