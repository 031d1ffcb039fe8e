#!/usr/bin/env bash
set -euo pipefail
echo "terminal-rl: environments are not part of this version. Run your own episodes as a plug-in beside openclaw-rl up: openclaw-rl rollout --rollout-function-path FILE (docs/guides/plugins.md)" >&2
exit 2
