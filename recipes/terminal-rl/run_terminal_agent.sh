#!/usr/bin/env bash
# The same as run_terminal_rl.sh, by another name.
set -euo pipefail
exec bash "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run_terminal_rl.sh" "$@"
