#!/usr/bin/env bash
# start.sh SETTINGS [--FLAG VALUE]...: what the recipes' scripts share. One call of the command line, and nothing else.
# Each method's folder has a link to it: Ray copies a folder without the folder above it.
# SETTINGS.yaml is used, or SETTINGS_lora.yaml where LoRA is asked for; LORA_ARGS alone asks for it. With DATA_PATH (or
# --data-path) it trains from those files and ends; without, it serves and learns from what is said.
set -euo pipefail
settings="$1"
shift
if ! command -v openclaw-rl >/dev/null; then
    echo "openclaw-rl is not on the PATH. Activate the environment in which it is installed: docs/guides/recipes.md" >&2
    exit 127
fi
case "${USE_LORA:-${LORA_ARGS:+true}}" in 1 | [Tt]rue | TRUE | [Yy]es | [Oo]n) kind=_lora ;; *) kind="" ;; esac
if [[ -n "${RAY_JOB_CONFIG_JSON_ENV_VAR:-}" && -z "${MODEL_PATH:-}${DATA_PATH:-}" ]]; then
    echo "note: MODEL_PATH and DATA_PATH are not set. A Ray job does not get the variables of the shell that submits" \
        "it: docs/guides/recipes.md says how to pass them" >&2
fi
[[ -n "${DATA_PATH:-}" ]] && command=train || command=up
for word in "$@"; do
    case "$word" in
        --lora | --use-lora) kind=_lora ;;
        --data-path | --data-path=*) command=train ;;
    esac
done
exec openclaw-rl "$command" --config "$settings$kind.yaml" "$@"
