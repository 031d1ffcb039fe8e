#!/usr/bin/env bash
set -euo pipefail
echo "Fireworks is not part of this version. Train here with recipes/openclaw-combine/run_combine_training.sh, on several GPUs or machines as docs/guides/many_gpus.md says." >&2
exit 2
