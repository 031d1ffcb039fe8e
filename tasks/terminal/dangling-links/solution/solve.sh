#!/bin/sh
set -e
cd /app/site
find . -xtype l | sed 's|^\./||' | LC_ALL=C sort >/app/removed.txt
find . -xtype l -exec rm {} +
