#!/usr/bin/env bash
# Binary RL on Qwen3, an adapter. Variables and flags: README.md
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export MODEL_SIZE="${MODEL_SIZE:-7b}"
exec bash "$here/start.sh" "$here/binary" --use-lora "$@"
