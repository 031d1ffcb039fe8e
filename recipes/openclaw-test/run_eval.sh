#!/usr/bin/env bash
# Scores a checkpoint: run_eval.sh --model-path P --eval-tasks "conversation,coding,tool-use". More: README.md
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if ! command -v openclaw-rl >/dev/null; then
    echo "openclaw-rl is not on the PATH. Activate the environment in which it is installed: docs/guides/recipes.md" >&2
    exit 127
fi
exec openclaw-rl evaluate --config "$here/eval.yaml" "$@"
