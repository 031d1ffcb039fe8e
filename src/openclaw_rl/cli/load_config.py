"""Load the settings from the options that the commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.settings.cli_options import given_settings

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config, LoadedSettings


def load_config(*, file: str | None, sets: tuple[str, ...], words: tuple[str, ...] = (), **flags: Any) -> Config:
    """Return the settings; without any option those that the supervisor passed. Prints notices to stderr."""
    from openclaw_rl.settings import load as settings

    inherited = settings.inherited_config()
    if inherited is not None and not (file or sets or words or any(v is not None for v in flags.values())):
        return inherited
    loaded = load_settings(file=file, sets=sets, words=words, **flags)
    for notice in loaded.notices:
        click.echo(f"note: {notice}", err=True)
    return loaded.config


def load_settings(
    *, file: str | None, sets: tuple[str, ...], words: tuple[str, ...] = (), **flags: Any
) -> LoadedSettings:
    """Return the settings with their sources and notices."""
    from openclaw_rl.settings import load as settings

    return settings.load_all(file=file, flags=given_settings(flags), sets=sets, words=words)
