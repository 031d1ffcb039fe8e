#!/usr/bin/env bash
# The same as run_swe_rl.sh, by another name.
set -euo pipefail
exec bash "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run_swe_rl.sh" "$@"
