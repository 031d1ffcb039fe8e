#!/usr/bin/env bash
# Checks and plays tasks in repositories, and trains on them: docs/guides/task_folders.md. SWE_BENCH_PATH is a file of
# SWE-bench or a folder of such files, of which --benchmark NAME takes one; TASKS_PATH is another folder of tasks in the
# format of Harbor.
set -euo pipefail
if [[ "${ENV_TYPE:-swe}" != swe ]]; then
    echo "ENV_TYPE is $ENV_TYPE, and this recipe is for swe. Unset it, or use recipes/$ENV_TYPE-rl" >&2
    exit 2
fi
if [[ "${TASK_TYPE:-bash_commands}" != bash_commands ]]; then
    echo "TASK_TYPE is $TASK_TYPE. Expected bash_commands: the tasks are solved by commands in a shell" >&2
    exit 2
fi
benchmark=""
flags=()
while (($# > 0)); do
    case "$1" in
        --benchmark) benchmark="${2:-}" && shift ;;
        --benchmark=*) benchmark="${1#*=}" ;;
        *) flags+=("$1") && shift && continue ;;
    esac
    case "$benchmark" in
        swe-bench | swe-bench-lite | swe-bench-verified) shift ;;
        *) echo "--benchmark is '$benchmark'. Expected swe-bench, swe-bench-lite or swe-bench-verified" >&2 && exit 2 ;;
    esac
done
if [[ -n "$benchmark" && -z "${SWE_BENCH_PATH:-}" ]]; then
    echo "--benchmark $benchmark: its instances are not downloaded. Set SWE_BENCH_PATH to a folder with" \
        "$benchmark.jsonl and the repositories in repos, as docs/guides/task_folders.md#swe-bench says" >&2
    exit 2
fi
if [[ -n "$benchmark" && -d "$SWE_BENCH_PATH" ]]; then
    if [[ ! -f "$SWE_BENCH_PATH/$benchmark.jsonl" ]]; then
        echo "--benchmark $benchmark: $SWE_BENCH_PATH has no $benchmark.jsonl. Name the file so, or set" \
            "SWE_BENCH_PATH to the file itself" >&2
        exit 2
    fi
    SWE_BENCH_PATH="$SWE_BENCH_PATH/$benchmark.jsonl"
fi
here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
source="harbor:${TASKS_PATH:-$here/../../tasks/swe}"
if [[ -n "${SWE_BENCH_PATH:-}" ]]; then
    folder="$(python3 "$here/../../examples/environments/swe_bench_tasks.py" "$SWE_BENCH_PATH")"
    source="harbor:$folder"
fi
unset ENV_TYPE TASK_TYPE SWE_BENCH_PATH TASKS_PATH
exec openclaw-rl env train "$source" "${flags[@]}"
