#!/usr/bin/env bash
# Plays tool tasks at the system that run_toolcall_rl.sh has started, after a check of each task. More: README.md
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if ! command -v openclaw-rl >/dev/null; then
    echo "openclaw-rl is not on the PATH. Activate the environment in which it is installed: docs/guides/recipes.md" >&2
    exit 127
fi
if [[ "${ENV_TYPE:-toolcall}" != toolcall ]]; then
    echo "ENV_TYPE is $ENV_TYPE, and this recipe is for toolcall: unset it, or choose the recipe of $ENV_TYPE" >&2
    exit 2
fi
if [[ -n "${TASK_TYPE:-}" ]]; then
    echo "TASK_TYPE is $TASK_TYPE. Tasks with tools have no types: unset it" >&2
    exit 2
fi
unset ENV_TYPE
export TOOLS_CONFIG="${TOOLS_CONFIG:-$here/tools_config.json}"
openclaw-rl env check tools || echo "note: tasks that are unfit are left out" >&2
exec openclaw-rl env run tools "$@"
