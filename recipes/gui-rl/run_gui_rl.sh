#!/usr/bin/env bash
# Checks and plays tasks in a browser, and trains on them: docs/guides/environment_libraries.md. GUI_TASK is another
# source of tasks, such as miniwob.click-test-2, and GUI_PYTHON the Python that has browsergym-miniwob.
# With SCREENSHOT_BACKEND, each episode leaves a filmstrip of screenshots in GUI_FILM; playwright takes them.
set -euo pipefail
if [[ "${ENV_TYPE:-gui}" != gui ]]; then
    echo "ENV_TYPE is $ENV_TYPE, and this recipe is for gui. Unset it, or use recipes/$ENV_TYPE-rl" >&2
    exit 2
fi
if [[ -n "${TASK_TYPE:-}" ]]; then
    echo "TASK_TYPE is $TASK_TYPE. Tasks in a browser have no types: unset it" >&2
    exit 2
fi
backend="${SCREENSHOT_BACKEND:-}"
if [[ -n "$backend" && "$backend" != playwright && "$backend" != selenium ]]; then
    echo "SCREENSHOT_BACKEND is $backend. Expected playwright or selenium, or unset it" >&2
    exit 2
fi
if [[ "$backend" == selenium ]]; then
    echo "SCREENSHOT_BACKEND is selenium: playwright takes the same screenshots" >&2
fi
here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
source="browsergym:${GUI_TASK:-$here/../../tasks/web}"
film="${GUI_FILM:-}"
[[ -n "$backend" && -z "$film" ]] && film="${OPENCLAW_HOME:-$HOME/.openclaw-rl}/film"
if [[ -n "$film" ]]; then
    [[ "$film" == /* ]] || film="$PWD/$film"
    for char in % '&' +; do film="${film//"$char"/$(printf %%%02X "'$char")}"; done  # what has a meaning in a query
    [[ "$source" == *\?* ]] && source+="&" || source+="?"
    source+="film=$film"
fi
python="$here/../../.browsergym-venv/bin/python"
if [[ -n "${GUI_PYTHON:-}" ]]; then
    python="$(type -P -- "$GUI_PYTHON" || true)"
    if [[ ! -f "$python" || ! -x "$python" ]]; then
        echo "GUI_PYTHON is $GUI_PYTHON: no such program. Expected a Python on PATH, or the path of one" >&2
        exit 2
    fi
fi
[[ -x "$python" ]] && python=(--python "$python") || python=()
[[ -n "${MAX_GUI_STEPS:-}" ]] && export MAX_STEPS="$MAX_GUI_STEPS"
unset ENV_TYPE SCREENSHOT_BACKEND GUI_FILM GUI_TASK GUI_PYTHON MAX_GUI_STEPS
exec openclaw-rl env train "$source" "${python[@]}" "$@"
