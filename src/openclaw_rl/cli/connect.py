"""`openclaw-rl connect`: print or write the settings of other programs, and print the next command."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.cli.load_config import home_flag
from openclaw_rl.common.printable import echo
from openclaw_rl.connect import claude_code_codex, openclaw
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config


def connect_openclaw(config: Config, *, write: bool, into: Path | None) -> None:
    """Print the provider entry, or add it to OpenClaw's settings; on failure print it, and raise `OpenClawError`."""
    snippet = openclaw.settings_snippet(config)
    if write or into:
        try:
            echo(openclaw.apply_patch(snippet, into), err=True)
        except OpenClawError:
            echo(snippet)
            raise
    else:
        echo(snippet)
        echo(f"Add this to {openclaw.SETTINGS_FILE}, or run with --write.", err=True)
    warning = openclaw.context_warning(config)
    if warning:
        echo(f"Warning: {warning}", err=True)
    echo(f"Next: openclaw models set {openclaw.PROVIDER_NAME}/{config.model.name}", err=True)


def connect_claude_code(config: Config) -> None:
    """Print the environment variables for Claude Code."""
    echo(claude_code_codex.claude_code_environment(config))
    echo(f'Next: eval "$(openclaw-rl connect claude-code{home_flag(config)})" && claude', err=True)


def connect_codex(config: Config) -> None:
    """Print the settings for Codex."""
    echo(claude_code_codex.codex_settings(config))
    echo("Add this to ~/.codex/config.toml.", err=True)
    echo(f"Next: export OPENCLAW_API_KEY=$(openclaw-rl key{home_flag(config)}) && codex", err=True)
