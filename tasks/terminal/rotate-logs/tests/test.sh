#!/bin/sh
# checks.py runs the script of the policy, and compares here what it leaves.
exec python3 -I /tests/write_result.py --run /tests/checks.py
