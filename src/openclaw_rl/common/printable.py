"""Text that is harmless for a terminal: data of other people may contain escape sequences and direction marks.

All output of the commands passes here, that of tables through `terminal.TerminalConsole`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from typing import Any

import click

# Control characters (C0, DEL, C1) except tab and line feed; marks, embeddings and isolates that change the direction
# of the text around them; line and paragraph separators; lone surrogates, which no encoding of a terminal has.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
REPLACEMENT = "\ufffd"


def to_printable(text: str) -> str:
    """Return the text with a replacement character for each character that could control the terminal."""
    return _UNPRINTABLE.sub(REPLACEMENT, text)


def cut_text(text: str, characters: int) -> str:
    """Return the text, or its beginning with a mark that the rest is left out."""
    return text if len(text) <= characters else text[: characters - 1] + "…"


def to_printable_json(data: Any, *, indent: int | None = None) -> str:
    """Return JSON with an escape (`\\uXXXX`) for each character that could control the terminal: no data is lost."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text to stdout or, with `err`, to stderr. `nl`: with a newline at the end."""
    click.echo(to_printable(text), err=err, nl=nl)


def echo_error(text: str, *, nl: bool = True) -> None:
    """Print an error or a note to stderr. A terminal gets lines that are wrapped between words; a file, whole lines."""
    # None: closed, so nothing is printed.
    if sys.stderr is not None and sys.stderr.isatty():
        text = wrap_lines(text, shutil.get_terminal_size().columns)
    echo(text, err=True, nl=nl)


def wrap_lines(text: str, width: int) -> str:
    """Wrap each line between words. A word that is longer than the width (a path, a URL) stays whole."""
    wrapper = textwrap.TextWrapper(
        width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    wrapped: list[str] = []
    for line in text.split("\n"):
        wrapped += wrapper.wrap(line) or [line]
    return "\n".join(wrapped)
