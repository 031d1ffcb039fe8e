"""Command line options that all commands share, and their mapping to settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import click

from openclaw_rl.settings import aliases

_F = TypeVar("_F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds above 0."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is no number of seconds.", param, ctx)
        return number


class EngineOption(click.Option):
    """`--backend`. Its help names the engines that are built in and installed, which takes time to find."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        # Imported here to keep commands fast.
        from openclaw_rl.settings.registry import name_list

        self.help = f"Engine: {name_list('engine.backend')}."
        return super().get_help_record(ctx)


_SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "--home": ("home", {"metavar": "DIR", "help": "Home folder. [default: ~/.openclaw-rl]"}),
    "--model-path": (
        "model.path",
        {"metavar": "PATH", "help": "Model: folder, hub id or checkpoint."},
    ),
    "--method": (
        "train.method",
        {"metavar": "NAME", "help": "Training method. [default: combine]"},
    ),
    "--host": ("serve.host", {"metavar": "ADDRESS", "help": "Bind address. [default: 127.0.0.1]"}),
    "--port": (
        "serve.port",
        {"type": click.IntRange(1, 65535), "metavar": "PORT", "help": "Port. [default: 8000]"},
    ),
    "--backend": (
        "engine.backend",
        {"metavar": "NAME", "cls": EngineOption},
    ),
    "--engine-url": ("engine.url", {"metavar": "URL", "help": "Use this running server."}),
    "--engine-python": (
        "engine.python",
        {"metavar": "PATH", "help": "Python with the engine installed."},
    ),
    "--log-level": (
        "run.log_level",
        {"metavar": "LEVEL", "help": "debug, info, warning or error."},
    ),
}
"""Option -> (setting, arguments of `click.option`)."""


def settings_options(function: _F) -> _F:
    """Add the options for settings to a command that starts something."""
    for name, (_, arguments) in reversed(list(_SETTINGS.items())):
        function = click.option(name, **arguments)(function)
    return _source_options(function)


def consent_option(function: _F) -> _F:
    """Add `--yes` to a command that may start a system whose texts go to a service."""
    return click.option(
        "--yes", is_flag=True, help="Agree to what is sent to a service, if one is used."
    )(function)


def home_options(function: _F) -> _F:
    """Add the options for settings to a command that only reads or changes a home."""
    return _source_options(click.option("--home", **_SETTINGS["--home"][1])(function))


def _source_options(function: _F) -> _F:
    function = click.option(
        "--set", "sets", metavar="KEY=VALUE", multiple=True, help="Any setting, e.g. train.seed=8."
    )(function)
    return click.option("--config", "file", metavar="FILE", help="Settings file (YAML or JSON).")(
        function
    )


class FlagCommand(click.Command):
    """Command that takes any flag of the settings (`--lr 1e-6 --use-lora`), as scripts forward them.

    They are in the parameter `arguments`.
    """

    ignore_unknown_options = True

    def __init__(self, *args: Any, shown: Sequence[str] = ("",), **more: Any) -> None:
        """`shown`: prefixes of the settings whose flags `--help` lists."""
        super().__init__(*args, **more)
        self._shown = tuple(shown)
        arguments = click.Argument(
            ["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[--FLAG VALUE]..."
        )
        self.params.append(arguments)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the flags."""
        super().format_options(ctx, formatter)
        with formatter.section("Flags for settings"):
            formatter.write_dl(list(_flag_rows(self._shown)))


def _flag_rows(shown: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (flags, their settings with the default) for each alias of settings with one of the prefixes."""
    # Imported here to keep commands fast.
    from openclaw_rl.settings.load import Config
    from openclaw_rl.settings.registry import CHOICES, name_list

    for keys, same in _flags_by_keys(shown).items():
        meaning = ", ".join(keys)
        if len(keys) == 1:
            meaning += _default_text(attrgetter(keys[0])(Config()))
        if keys[0] in CHOICES:
            meaning += f": {name_list(keys[0])}"
        value = "" if same[0].switch else " VALUE"
        yield f"{', '.join(one.name for one in same)}{value}", meaning


def _flags_by_keys(shown: tuple[str, ...]) -> dict[tuple[str, ...], list[aliases.SettingAlias]]:
    """Return the flags of settings with one of the prefixes `shown`, by the settings that they set."""
    flags: dict[tuple[str, ...], list[aliases.SettingAlias]] = {}
    of_options = {(key,) for key, _ in _SETTINGS.values()}
    for alias in aliases.by_form("flag").values():
        is_shown = bool(alias.keys) and alias.keys[0].startswith(shown)
        if is_shown and alias.keys not in of_options:
            flags.setdefault(alias.keys, []).append(alias)
    return flags


def _default_text(default: Any) -> str:
    """Return a default in brackets; empty without a default."""
    if default in (None, ()):
        return ""
    if isinstance(default, bool):
        return f" [{str(default).lower()}]"
    return f" [{default}]"


def given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of the shared options to dotted keys; options that were not given are left out."""
    dotted = {
        name.removeprefix("--").replace("-", "_"): key for name, (key, _) in _SETTINGS.items()
    }
    return {dotted[name]: value for name, value in flags.items() if value is not None}
