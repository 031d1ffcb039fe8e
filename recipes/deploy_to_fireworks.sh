#!/usr/bin/env bash
# Uploads the newest version of the home to the Fireworks service, and loads it on the deployment of the settings. Flags are
# those of `openclaw-rl fireworks deploy`; --gpus N creates the deployment. It shows what leaves the machine, and wants a
# yes (or --yes). FIREWORKS_API_KEY and FIREWORKS_ACCOUNT_ID name the account: docs/guides/fireworks.md
set -euo pipefail
if ! command -v openclaw-rl >/dev/null; then
    echo "openclaw-rl is not on the PATH. Activate the environment in which it is installed: docs/guides/recipes.md" >&2
    exit 127
fi
exec openclaw-rl fireworks deploy "$@"
