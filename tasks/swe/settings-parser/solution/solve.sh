#!/bin/sh
set -e
cp /solution/parser.py /app/settings/parser.py
