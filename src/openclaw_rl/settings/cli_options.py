"""The options of the command line: those that stand for settings, the same on every command, and how each is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


class Option(click.Option):
    """Once, or always with the same value: of two that differ the last would win, and nobody would be told."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if self.is_flag or self.multiple or self.count:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        given = opts.get(self.name or "")
        if isinstance(given, list) and not self.multiple:
            if not ctx.resilient_parsing:
                self._agree(ctx, given)
            opts = {**opts, self.name or "": given[-1]}
        return super().handle_parse_result(ctx, opts, args)

    def _agree(self, ctx: click.Context, given: list[Any]) -> None:
        first = self.type_cast_value(ctx, given[0])
        for other in given[1:]:
            if self.type_cast_value(ctx, other) != first:
                raise click.UsageError(
                    f"{self.opts[0]} is given twice, as {given[0]!r} and as {other!r}. Keep one of them.", ctx
                )


option = partial(click.option, cls=Option)


class Seconds(click.FloatRange):
    """More than none."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if math.isnan(number := super().convert(value, param, ctx)):
            self.fail("nan is no number of seconds.", param, ctx)
        return number


_SETTINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "--home": ("home", {"metavar": "DIR", "help": "Store, adapters, key and logs [~/.openclaw-rl]."}),
    "--model-path": ("model.path", {"metavar": "PATH", "help": "Model: a folder, hub id or checkpoint [the starter]."}),
    "--method": ("train.method", {"metavar": "NAME", "help": "Training method: binary, opd, combine, ... [combine]."}),
    "--host": ("serve.host", {"metavar": "ADDRESS", "help": "Bind address [127.0.0.1]."}),
    "--port": ("serve.port", {"type": click.IntRange(1, 65535), "help": "Port [8000]."}),
    "--backend": (
        "engine.backend",
        {"metavar": "NAME", "help": "Engine: embedded, vllm, sglang or openai [embedded]."},
    ),
    "--engine-url": ("engine.url", {"metavar": "URL", "help": "Use this running server [one is started]."}),
    "--engine-python": ("engine.python", {"metavar": "PATH", "help": "Python with the engine installed [this one]."}),
    "--log-level": ("run.log_level", {"metavar": "LEVEL", "help": "debug, info, warning or error."}),
}
"""Options that are settings: of which, and how they are told."""


def configured(function: _F) -> _F:
    """The options of every command that loads the settings, so that what one is called with fits the next."""
    for name, (_, told) in reversed(list(_SETTINGS.items())):
        function = option(name, **told)(function)
    function = option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Any setting: train.batch_min=8.")(
        function
    )
    return option("--config", "file", metavar="FILE", help="Settings file (YAML or JSON).")(function)


def words(function: _F) -> _F:
    """Every other spelling of a setting, as scripts forward them: `--lr 1e-6 --use-lora`."""
    return click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--FLAG VALUE]...")(function)


ANY = {"ignore_unknown_options": True}


def keys(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What `configured` gave, as settings' dotted keys; what was not given is left out."""
    dotted = {name.removeprefix("--").replace("-", "_"): key for name, (key, _) in _SETTINGS.items()}
    return {dotted[name]: value for name, value in flags.items() if value is not None}
