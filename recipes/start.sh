#!/usr/bin/env bash
# start.sh SETTINGS [--FLAG VALUE]...: what the recipes' scripts share. One call of the command line, and nothing else.
# SETTINGS.yaml is used, or SETTINGS_lora.yaml where LoRA is asked for. With DATA_PATH (or --data-path) it trains from
# those files and ends; without, it serves and learns from what is said.
set -euo pipefail
settings="$1"
shift
if ! command -v openclaw-rl >/dev/null; then
    echo "openclaw-rl is not on the PATH. Activate the environment in which it is installed: docs/guides/recipes.md" >&2
    exit 127
fi
case "${USE_LORA:-}" in 1 | [Tt]rue | TRUE | [Yy]es | [Oo]n) kind=_lora ;; *) kind="" ;; esac
[[ -n "${DATA_PATH:-}" ]] && command=train || command=up
# LORA_ARGS holds flags, so it is split at its spaces.
for word in ${LORA_ARGS:-} "$@"; do
    case "$word" in
        --lora | --use-lora) kind=_lora ;;
        --data-path | --data-path=*) command=train ;;
    esac
done
exec openclaw-rl "$command" --config "$settings$kind.yaml" "$@"
