#!/bin/sh
set -e
mkdir -p /app/days
awk '/^[^ ]/ {day = substr($0, 1, 10)} {print > ("/app/days/" day ".log")}' /app/service.log
