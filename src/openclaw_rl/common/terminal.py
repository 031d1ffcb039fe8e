"""The console of the commands: text that it prints can neither control the terminal nor act as markup."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.highlighter import JSONHighlighter
from rich.segment import Segment
from rich.text import Text

from openclaw_rl.common.printable import to_printable, to_printable_json


class TerminalConsole(Console):
    """A console that prints strings as they are, without markup. Styles are given by `rich.text.Text`."""

    def __init__(
        self,
        *,
        stderr: bool = False,
        file: IO[str] | None = None,
        width: int | None = None,
        highlight: bool = False,
        soft_wrap: bool = False,
        force_terminal: bool | None = None,
    ) -> None:
        super().__init__(
            stderr=stderr,
            file=file,
            width=width,
            highlight=highlight,
            soft_wrap=soft_wrap,
            force_terminal=force_terminal,
            markup=False,
            emoji=False,
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with printable text. Control codes of rich itself, such as moves of the cursor, stay."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(to_printable(segment.text), segment.style)


def print_json(data: Any) -> None:
    """Print data as indented JSON."""
    text = JSONHighlighter()(Text(to_printable_json(data, indent=2)))
    TerminalConsole().print(text, soft_wrap=True)


def print_data(
    data: Any, render: Callable[[Any], RenderableType], *, as_json: bool, highlight: bool = True
) -> None:
    """Print data for people, as `render` returns it, or as indented JSON."""
    if as_json:
        print_json(data)
    else:
        TerminalConsole(highlight=highlight).print(render(data))
