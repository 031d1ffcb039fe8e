#!/bin/sh
set -e
find /app/tools -type f -name '*.sh' -exec chmod a+x {} +
find /app/tools -type f ! -name '*.sh' -exec chmod a-x {} +
