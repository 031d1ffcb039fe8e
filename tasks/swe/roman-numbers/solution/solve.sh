#!/bin/sh
set -e
cp /solution/convert.py /app/roman/convert.py
