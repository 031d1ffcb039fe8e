"""Command-line helpers for the evaluations: bounded numbers and one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openclaw_rl.common.printable import to_printable
from openclaw_rl.errors import OpenClawError

LARGEST_SEED = 2**31 - 1


def bounded_int(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse `type` for whole numbers from `least` to `most`."""
    bounds = f"{least} or more" if most is None else f"{least} to {most}"

    def parse_int(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected a whole number, {bounds}, got {text!r}")
        return number

    return parse_int


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with a one-line message on known errors, like the main command line does."""
    try:
        yield
    except OpenClawError as error:
        sys.exit(to_printable(f"openclaw-rl: {error}"))
    except OSError as error:
        if error.filename is None:
            raise
        sys.exit(
            to_printable(
                f"openclaw-rl: {error.filename}: {error.strerror}. Choose another folder with --out"
            )
        )
    except KeyboardInterrupt:
        sys.exit(130)
