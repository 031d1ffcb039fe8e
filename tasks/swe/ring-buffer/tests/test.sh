#!/bin/sh
# The tests of the repository as they were, and those of the report.
exec python3 -I /tests/write_result.py --run /tests/run_tests.py /app
