"""OpenClaw's provider entry for the gateway; `openclaw config patch` adds it to OpenClaw's settings."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from openclaw_rl.errors import OpenClawError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config, foreign_environment
from openclaw_rl.supervisor.supervisor import read_key

PROVIDER_NAME = "openclaw-rl"
SETTINGS_FILE = "~/.openclaw/openclaw.json"
PATCH_COMMAND = (
    "config",
    "patch",
    "--stdin",
    "--replace-path",
    f"models.providers.{PROVIDER_NAME}.models",
)
"""Arguments of `openclaw`. Without `--replace-path` it refuses a patch that removes a model of an earlier name."""
# Seconds.
PATCH_TIMEOUT = 120.0
MIN_CONTEXT_TOKENS = 16_384
"""Minimum context, in tokens: OpenClaw's system prompt and tools alone take 9,000 to 10,000 in a usual tokenizer."""
# Maximum tokens of one reply.
MAX_REPLY_TOKENS = 8192


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
        "baseUrl": f"{config.serve.url}/v1",
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
    """Return the JSON text to add to `openclaw.json`; `openclaw config patch` accepts it, too."""
    return json.dumps({"models": {"providers": {PROVIDER_NAME: provider_entry(config)}}}, indent=2)


def context_warning(config: Config) -> str | None:
    """Return a warning if the model's context is too short for OpenClaw, else None."""
    context = context_length(config)
    if context >= MIN_CONTEXT_TOKENS:
        return None
    return (
        f"the served model's context is {context} tokens; OpenClaw's system prompt and tools alone take about 9,000. "
        f"Serve a model with {MIN_CONTEXT_TOKENS} or more (--model-path), or OpenClaw's requests are refused."
    )


def apply_patch(snippet: str, file: Path | None = None) -> str:
    """Add the snippet to OpenClaw's settings with its own command. Return what the command printed.

    `file`: another settings file than OpenClaw's default. Raises `OpenClawError` if the command is missing or fails.
    """
    by_hand = f"Nothing was changed. Add the entry to {file or SETTINGS_FILE} by hand"
    program = shutil.which("openclaw")
    if program is None:
        raise OpenClawError(f"`openclaw` is not on PATH (npm install -g openclaw). {by_hand}.")
    place = {} if file is None else {"OPENCLAW_CONFIG_PATH": str(file.expanduser().absolute())}
    try:
        done = subprocess.run(
            [program, *PATCH_COMMAND],
            input=snippet,
            env=foreign_environment(place),
            capture_output=True,
            text=True,
            timeout=PATCH_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OpenClawError(
            f"`openclaw config patch` cannot be run: {error}. {by_hand}."
        ) from error
    output = (done.stdout + done.stderr).strip()
    if done.returncode:
        raise OpenClawError(
            f"`openclaw config patch` failed with exit code {done.returncode}:\n{output}\n{by_hand}."
        )
    return output
