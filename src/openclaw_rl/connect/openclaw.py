"""Print OpenClaw's provider entry for the gateway, or write it into OpenClaw's settings file."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from openclaw_rl.connect.json5 import Json5Error, parse, set_value
from openclaw_rl.errors import OpenClawError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.supervisor import read_key

PROVIDER_NAME = "openclaw-rl"
SETTINGS_FILE = Path("~/.openclaw/openclaw.json")
MIN_CONTEXT_TOKENS = 16_384
"""Minimum context, in tokens: OpenClaw's system prompt and tools alone take 9,000 to 10,000 in a usual tokenizer."""
MAX_REPLY_TOKENS = 8192  # maximum tokens of one reply


def base_url(config: Config) -> str:
    """Return the gateway's URL for clients on this machine, without a path."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(config.serve.host, config.serve.host)
    return f"http://{host}:{config.serve.port}"


def context_length(config: Config) -> int:
    """Return the served model's context length in tokens. Raises `OpenClawError` if settings and model have none."""
    known = config.engine.max_context or ModelFiles.from_config(config.model).context_length
    if known is None:
        raise OpenClawError(
            f"{config.model.path} does not define its context length. Set engine.max_context (in tokens)."
        )
    return known


def provider_entry(config: Config) -> dict[str, Any]:
    """Return the provider entry. Raises `OpenClawError` if there is no key yet."""
    context = context_length(config)
    return {
        "baseUrl": f"{base_url(config)}/v1",
        "apiKey": read_key(config),
        "api": "openai-completions",
        "models": [
            {
                "id": config.model.name,
                "name": config.model.name,
                "reasoning": False,
                "input": ["text"],
                "contextWindow": context,
                "maxTokens": min(MAX_REPLY_TOKENS, context // 4),
                "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            }
        ],
    }


def settings_snippet(config: Config) -> str:
    """Return the JSON text to add to `openclaw.json`."""
    return json.dumps({"models": {"mode": "merge", "providers": {PROVIDER_NAME: provider_entry(config)}}}, indent=2)


def context_warning(config: Config) -> str | None:
    """Return a warning if the model's context is too short for OpenClaw, else None."""
    context = context_length(config)
    if context >= MIN_CONTEXT_TOKENS:
        return None
    return (
        f"the served model's context is {context} tokens; OpenClaw's system prompt and tools alone take about 9,000. "
        f"Serve a model with {MIN_CONTEXT_TOKENS} or more (--model-path), or OpenClaw's requests are refused."
    )


def write_settings(config: Config, file: Path) -> Path | None:
    """Write the entry into the settings file, and keep comments and all other settings. Returns the backup's path.

    Returns None if the file was up to date or did not exist. Raises `OpenClawError` if it cannot be read or written.
    """
    path = file.expanduser()
    try:
        old = path.read_bytes().decode("utf-8") if path.exists() else ""  # bytes, to keep the line ends
        new = edit_settings(old, provider_entry(config))
        if new == old:
            return None
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy = _write_backup(path, old)
        _replace_file(path, new)
    except Json5Error as error:
        raise OpenClawError(
            f"{path}: {error}. Nothing was changed. Add the entry by hand: `openclaw-rl connect openclaw` prints it."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise OpenClawError(f"{path}: cannot be edited: {error}. `openclaw-rl connect openclaw` prints it.") from error
    return copy


def edit_settings(text: str, entry: dict[str, Any]) -> str:
    """Return the file's text with the entry added or updated. Raises `Json5Error`."""
    new = text if text.strip() else "{}\n"
    if "mode" not in _models_section(new):
        new = set_value(new, ["models", "mode"], "merge")
    for key, value in entry.items():
        new = set_value(new, ["models", "providers", PROVIDER_NAME, key], value)
    return new


def _models_section(text: str) -> dict[str, Any]:
    whole = parse(text).value
    models = whole.get("models") if isinstance(whole, dict) else None
    return models if isinstance(models, dict) else {}


def _write_backup(path: Path, old: str) -> Path | None:
    if not path.exists():
        return None
    copy = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
    copy.touch(mode=0o600)
    copy.write_bytes(old.encode("utf-8"))
    return copy


def _replace_file(path: Path, text: str) -> None:
    """Replace the file atomically, with mode 600 because it contains a key. A symbolic link is followed."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".openclaw-")  # mode 600
    with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(name).replace(target)
