"""Settings that connect Claude Code and Codex to the gateway."""

from __future__ import annotations

import json
import shlex

from openclaw_rl.connect.openclaw import context_length
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.supervisor import read_key


def claude_code_environment(config: Config) -> str:
    """Return the environment variables for Claude Code. Raises `OpenClawError` if there is no key yet."""
    model = config.model.name
    values = {
        "ANTHROPIC_BASE_URL": config.serve.url,
        "ANTHROPIC_AUTH_TOKEN": read_key(config),
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())


def codex_settings(config: Config) -> str:
    """Return the lines for `~/.codex/config.toml`. Codex reads the key from the environment."""
    return "\n".join(
        [
            f"model = {_toml_string(config.model.name)}",
            'model_provider = "openclaw-rl"',
            f"model_context_window = {context_length(config)}",
            "",
            "[model_providers.openclaw-rl]",
            'name = "OpenClaw-RL"',
            f'base_url = "{config.serve.url}/v1"',
            'env_key = "OPENCLAW_API_KEY"',
            'wire_api = "responses"',
        ]
    )


def _toml_string(text: str) -> str:
    """Quote as a TOML string. The escapes are those of JSON, except that TOML also escapes DEL."""
    return json.dumps(text).replace("\x7f", "\\u007f")
