#!/usr/bin/env bash
# The recommended method: the same as openclaw-combine/run_combine_training.sh. Some descriptions submit this name to Ray.
set -euo pipefail
exec bash "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/openclaw-combine/run_combine_training.sh" "$@"
