"""Command line options that all commands share, and their mapping to settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds above 0."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if math.isnan(number := super().convert(value, param, ctx)):
            self.fail("nan is no number of seconds.", param, ctx)
        return number


_SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "--home": ("home", {"metavar": "DIR", "help": "Store, adapters, key and logs. [default: ~/.openclaw-rl]"}),
    "--model-path": (
        "model.path",
        {"metavar": "PATH", "help": "Model folder, hub id or checkpoint. [default: a shipped one]"},
    ),
    "--method": (
        "train.method",
        {"metavar": "NAME", "help": "Training method: binary, opd, combine, ... [default: combine]"},
    ),
    "--host": ("serve.host", {"metavar": "ADDRESS", "help": "Bind address. [default: 127.0.0.1]"}),
    "--port": ("serve.port", {"type": click.IntRange(1, 65535), "help": "Port. [default: 8000]"}),
    "--backend": (
        "engine.backend",
        {"metavar": "NAME", "help": "Engine: embedded, vllm, sglang or openai. [default: embedded]"},
    ),
    "--engine-url": ("engine.url", {"metavar": "URL", "help": "Use this running server. [default: start one]"}),
    "--engine-python": (
        "engine.python",
        {"metavar": "PATH", "help": "Python with the engine installed. [default: this one]"},
    ),
    "--log-level": ("run.log_level", {"metavar": "LEVEL", "help": "debug, info, warning or error."}),
}
"""Option -> (setting, arguments of `click.option`)."""


def settings_options(function: _F) -> _F:
    """Add the shared settings options to a command."""
    for name, (_, arguments) in reversed(list(_SETTINGS.items())):
        function = click.option(name, **arguments)(function)
    function = click.option(
        "--set", "sets", metavar="KEY=VALUE", multiple=True, help="Any setting, e.g. train.seed=8."
    )(function)
    return click.option("--config", "file", metavar="FILE", help="Settings file (YAML or JSON).")(function)


def alias_flags(function: _F) -> _F:
    """Accept any alias flag of a setting, as scripts forward them: `--lr 1e-6 --use-lora`."""
    return click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--FLAG VALUE]...")(function)


UNKNOWN_FLAGS = {"ignore_unknown_options": True}


def given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of the shared options to dotted keys; options that were not given are left out."""
    dotted = {name.removeprefix("--").replace("-", "_"): key for name, (key, _) in _SETTINGS.items()}
    return {dotted[name]: value for name, value in flags.items() if value is not None}
