#!/usr/bin/env bash
# Serves and trains at the Tinker service, which TINKER_API_KEY, TINKER_ENDPOINT and TINKER_PROJECT_ID name. Further flags
# are those of `openclaw-rl up`; at the first start it shows what leaves the machine, and wants a yes (or --yes).
set -euo pipefail
if ! command -v openclaw-rl >/dev/null; then
    echo "openclaw-rl is not on the PATH. Activate the environment in which it is installed: docs/guides/recipes.md" >&2
    exit 127
fi
exec openclaw-rl up --backend tinker --set train.trainer=tinker --set gate.kind=numbers "$@"
