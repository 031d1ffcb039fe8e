#!/usr/bin/env bash
# Checks and plays tasks in repositories, and trains on them: docs/guides/task_folders.md. SWE_BENCH_PATH is a file of
# SWE-bench or a folder of such files, TASKS_PATH another folder of tasks in the format of Harbor.
set -euo pipefail
if [[ "${ENV_TYPE:-swe}" != swe ]]; then
    echo "ENV_TYPE is $ENV_TYPE, and this recipe is for swe. Unset it, or use recipes/$ENV_TYPE-rl" >&2
    exit 2
fi
if [[ "${TASK_TYPE:-bash_commands}" != bash_commands ]]; then
    echo "TASK_TYPE is $TASK_TYPE. Expected bash_commands: the tasks are solved by commands in a shell" >&2
    exit 2
fi
here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
source="harbor:${TASKS_PATH:-$here/../../tasks/swe}"
if [[ -n "${SWE_BENCH_PATH:-}" ]]; then
    folder="$(python3 "$here/../../examples/environments/swe_bench_tasks.py" "$SWE_BENCH_PATH")"
    source="harbor:$folder"
fi
unset ENV_TYPE TASK_TYPE SWE_BENCH_PATH TASKS_PATH
exec openclaw-rl env train "$source" "$@"
