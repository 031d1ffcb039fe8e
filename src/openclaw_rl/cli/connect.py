"""`openclaw-rl connect`: what to paste, or the file written, and the next command."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from openclaw_rl.connect import claude_code_codex, openclaw
from openclaw_rl.settings.load import Config


def connect_openclaw(config: Config, *, write: bool, into: Path | None) -> None:
    """Print the provider entry, or write it into OpenClaw's settings."""
    file = into or openclaw.FILE
    if write or into:
        copy = openclaw.write(config, file)
        click.echo(f"{file.expanduser()}: the provider {openclaw.PROVIDER!r} is in it.", err=True)
        if copy:
            click.echo(f"  the file as it was: {copy}", err=True)
    else:
        click.echo(openclaw.snippet(config))
        click.echo(f"That belongs into {file}; --write puts it there, and keeps all else.", err=True)
    if trouble := openclaw.warning(config):
        click.echo(f"Mind: {trouble}", err=True)
    click.echo(f"Next: openclaw models set {openclaw.PROVIDER}/{config.model.name}", err=True)


def connect_claude_code(config: Config) -> None:
    """Print the environment for Claude Code."""
    click.echo(claude_code_codex.claude_code(config))
    click.echo(f'Next: eval "$(openclaw-rl connect claude-code{_home(config)})" && claude', err=True)


def connect_codex(config: Config) -> None:
    """Print the lines for Codex."""
    click.echo(claude_code_codex.codex(config))
    click.echo("That belongs into ~/.codex/config.toml.", err=True)
    click.echo(f"Next: export OPENCLAW_API_KEY=$(openclaw-rl key{_home(config)}) && codex", err=True)


def _home(config: Config) -> str:
    """The flag that names the same home, where it is not the usual one: another home has another key."""
    return "" if config.home == Config().home else f" --home {shlex.quote(config.home)}"
