#!/bin/sh
set -e
mkdir -p /app/settings /tmp/bundle
tar -C /tmp/bundle -xzf /app/bundle.tar.gz
find /tmp/bundle -type f -name '*.cfg' -exec cp {} /app/settings/ \;
