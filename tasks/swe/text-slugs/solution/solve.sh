#!/bin/sh
set -e
cp /solution/slugify.py /app/slugs/slugify.py
