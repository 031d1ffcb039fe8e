#!/usr/bin/env bash
# Serves a model and trains it on the episodes that run_toolcall_agent.sh plays. Variables and flags: README.md
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
unset ENV_TYPE TOOLS_CONFIG # of the agent
exec openclaw-rl up --config "$here/groups.yaml" "$@"
