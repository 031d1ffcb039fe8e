"""A prompt in the terminal that other lines do not run into."""

from __future__ import annotations

import contextlib
import sys

from rich.cells import cell_len
from rich.text import Text

from openclaw_rl.common.terminal import TerminalConsole

with contextlib.suppress(ImportError):
    # Not part of every build of Python. It makes `input` a line editor, whose line can be shown again.
    import readline

# Column 0, and clear the screen from there.
_CLEAR = "\r\x1b[J"
_UP = "\x1b[{}A"


class PromptLine:
    """Reads lines. Lines that are printed meanwhile stand above the prompt, with what was typed so far below them."""

    def __init__(self, console: TerminalConsole, prompt: Text) -> None:
        self._console = console
        self._prompt = prompt
        self._is_waiting = False

    def read(self) -> str:
        """Return the next line of the person. Raises `EOFError`."""
        self._is_waiting = True
        try:
            return self._console.input(self._prompt)
        finally:
            self._is_waiting = False

    def print_above(self, line: Text) -> None:
        """Print a line; if the prompt waits in a terminal, above it."""
        if not self._is_waiting or not self._console.is_terminal:
            self._console.print(line)
            return
        typed = _typed_so_far()
        rows = cell_len(self._prompt.plain + typed) // self._console.width
        up = _UP.format(rows) if rows else ""
        self._console.file.write(up + _CLEAR)
        self._console.print(line)
        self._console.print(self._prompt, end="")
        self._console.file.write(typed)
        self._console.file.flush()


def _typed_so_far() -> str:
    """Return what stands behind the prompt."""
    return readline.get_line_buffer() if "readline" in sys.modules else ""
