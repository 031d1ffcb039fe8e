#!/usr/bin/env bash
# Checks and plays tasks in a terminal, and trains on them: docs/guides/task_folders.md. TASKS_PATH is another folder of
# tasks in the format of Harbor.
set -euo pipefail
if [[ "${ENV_TYPE:-terminal}" != terminal ]]; then
    echo "ENV_TYPE is $ENV_TYPE, and this recipe is for terminal. Unset it, or use recipes/$ENV_TYPE-rl" >&2
    exit 2
fi
if [[ "${TASK_TYPE:-bash_commands}" != bash_commands ]]; then
    echo "TASK_TYPE is $TASK_TYPE. Expected bash_commands: the tasks are solved by commands in a shell" >&2
    exit 2
fi
here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
source="harbor:${TASKS_PATH:-$here/../../tasks/terminal}"
unset ENV_TYPE TASK_TYPE TASKS_PATH
exec openclaw-rl env train "$source" "$@"
