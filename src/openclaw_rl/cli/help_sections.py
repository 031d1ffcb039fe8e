"""Groups of commands: with sections in their help, and with a command that runs if none is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

_VALUE_OPTIONS = ("--home", "--config", "--set")
"""Options of a home, which may stand before the command."""
_FIRST_COLUMNS = 80


class SectionGroup(click.Group):
    """A group whose help lists its commands in sections. Commands in no section come last."""

    def __init__(
        self, *args: Any, sections: Sequence[tuple[str, Sequence[str]]] = (), **more: Any
    ) -> None:
        """`sections`: title and commands, in the order in which they are listed."""
        super().__init__(*args, **more)
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section, and the rest."""
        named = {name for _, names in self._sections for name in names}
        rest = [name for name in self.list_commands(ctx) if name not in named]
        for title, names in (*self._sections, ("The rest", rest)):
            rows = list(self._rows(ctx, names))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _rows(self, ctx: click.Context, names: Iterable[str]) -> Iterable[tuple[str, str]]:
        longest = max(len(name) for name in self.commands)
        for name in names:
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                yield name.ljust(longest), command.get_short_help_str(_FIRST_COLUMNS - longest - 6)


class ListingGroup(click.Group):
    """A group that runs one of its commands if none is named. Options of a home may stand before the command."""

    def __init__(self, *args: Any, default: str, **more: Any) -> None:
        """`default`: the command that runs if none is named."""
        super().__init__(*args, **more)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command first, or the default where none is named."""
        return super().parse_args(ctx, self._with_command_first(ctx, args))

    def _with_command_first(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in ctx.help_option_names:
            return args
        place = 0
        while place < len(args) and args[place].startswith("-"):
            place += 2 if args[place] in _VALUE_OPTIONS else 1
        if place >= len(args):
            return [self._default, *args]
        return [args[place], *args[:place], *args[place + 1 :]]
