"""Lines that are printed while the chat waits for the person."""

from __future__ import annotations

import io

from rich.text import Text

from openclaw_rl.cli.prompt_line import PromptLine
from openclaw_rl.common.terminal import TerminalConsole


class WaitingConsole(TerminalConsole):
    """A console in which a line arrives while the person has typed nothing yet."""

    def __init__(self, *, force_terminal: bool) -> None:
        super().__init__(file=io.StringIO(), width=40, force_terminal=force_terminal)
        self.line = PromptLine(self, Text("you "))

    def input(self, *_: object, **__: object) -> str:
        self.print("you ", end="")
        self.line.print_above(Text("version 2 is live"))
        return "hello"


def test_a_line_stands_above_the_waiting_prompt() -> None:
    console = WaitingConsole(force_terminal=True)
    assert console.line.read() == "hello"
    assert console.file.getvalue() == "you \r\x1b[Jversion 2 is live\nyou "
    console.line.print_above(Text("after it"))
    assert console.file.getvalue().endswith("you after it\n")


def test_without_a_terminal_a_line_is_only_printed() -> None:
    console = WaitingConsole(force_terminal=False)
    console.line.read()
    assert console.file.getvalue() == "you version 2 is live\n"
