#!/bin/sh
set -e
cd /app
awk '/^\[/ {inside = ($0 == "[server]")} inside && /^[ \t]*port[ \t]*=/ {print "port = 9000"; next} {print}' service.ini >new
cat new >service.ini
rm new
