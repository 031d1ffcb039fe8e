#!/usr/bin/env bash
# Distillation on any model; the starter policy where none is named. Variables and flags: README.md
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/start.sh" "$here/opd" "$@"
