"""`openclaw-rl connect`: print or write the settings of other programs, and print the next command."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from openclaw_rl.connect import claude_code_codex, openclaw
from openclaw_rl.settings.load import Config


def connect_openclaw(config: Config, *, write: bool, into: Path | None) -> None:
    """Print the provider entry, or write it into OpenClaw's settings."""
    file = into or openclaw.SETTINGS_FILE
    if write or into:
        copy = openclaw.write_settings(config, file)
        click.echo(f"{file.expanduser()}: contains the provider {openclaw.PROVIDER_NAME!r}.", err=True)
        if copy:
            click.echo(f"  backup of the old file: {copy}", err=True)
    else:
        click.echo(openclaw.settings_snippet(config))
        click.echo(f"Add this to {file}, or run with --write, which keeps all other settings.", err=True)
    if trouble := openclaw.context_warning(config):
        click.echo(f"Warning: {trouble}", err=True)
    click.echo(f"Next: openclaw models set {openclaw.PROVIDER_NAME}/{config.model.name}", err=True)


def connect_claude_code(config: Config) -> None:
    """Print the environment variables for Claude Code."""
    click.echo(claude_code_codex.claude_code_environment(config))
    click.echo(f'Next: eval "$(openclaw-rl connect claude-code{_home_flag(config)})" && claude', err=True)


def connect_codex(config: Config) -> None:
    """Print the settings for Codex."""
    click.echo(claude_code_codex.codex_settings(config))
    click.echo("Add this to ~/.codex/config.toml.", err=True)
    click.echo(f"Next: export OPENCLAW_API_KEY=$(openclaw-rl key{_home_flag(config)}) && codex", err=True)


def _home_flag(config: Config) -> str:
    """Return the `--home` flag for the next command, unless the home is the default: each home has its own key."""
    return "" if config.home == Config().home else f" --home {shlex.quote(config.home)}"
