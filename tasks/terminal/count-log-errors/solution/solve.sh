#!/bin/sh
set -e
find /app/logs -name '*.log' -exec cat {} + | awk '$3 == "ERROR"' | wc -l >/app/errors.txt
