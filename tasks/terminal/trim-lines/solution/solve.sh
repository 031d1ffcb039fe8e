#!/bin/sh
set -e
find /app/docs -type f -name '*.txt' -exec sed -i -e 's/[ \t]*$//' -e '$a\' {} +
