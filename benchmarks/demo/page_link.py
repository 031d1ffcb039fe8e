"""The end of a demo: a link to the page, which shows what was learned, while the system stays up."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from openclaw_rl.cli.page import create_link
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.settings.load import Config


def add_keep_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", action="store_true", help="stay up until Ctrl-C, with a link to the page"
    )


def show_page(console: TerminalConsole, config: Config, home: Path, *, is_kept: bool) -> None:
    """Print how to open the page. `is_kept`: print a link, and wait until Ctrl-C while the system runs."""
    if not is_kept:
        console.print(
            "  see it on a page: make demo KEEP=1, or for this run "
            f"`.venv/bin/openclaw-rl up --home {home}`, which prints a link",
            soft_wrap=True,
        )
        return
    console.print(f"\n  the page: {create_link(config)}", soft_wrap=True)
    console.print("  The system stays up; Ctrl-C ends it.")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("  stopping ...")
