"""Command-line helpers for the evaluations: bounded numbers, settings, and one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import known_keys

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


def on_off(text: str) -> bool:
    """Parse `on` or `off` (argparse `type`)."""
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"expected on or off, got {text!r}")
    return text == "on"


def setting_argument(text: str) -> str:
    """Check a KEY=VALUE argument and return it unchanged (argparse `type`). The key must be a known setting."""
    for key in parse_settings([text]):
        if key not in known_keys():
            raise argparse.ArgumentTypeError(f"unknown setting {key!r}. `openclaw-rl config show` lists them")
    return text


def parse_settings(given: Sequence[str]) -> Mapping[str, Any]:
    """Parse KEY=VALUE texts to dotted keys and values. Raise `ArgumentTypeError` if one is malformed."""
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign:
            raise argparse.ArgumentTypeError(f"expected KEY=VALUE, e.g. train.batch.min_turns=8, got {text!r}")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise argparse.ArgumentTypeError(f"expected a value such as 8, true or [a, b], got {value!r}") from None
    return found


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with a one-line message on known errors, like the main command line does."""
    try:
        yield
    except OpenClawError as error:
        sys.exit(f"openclaw-rl: {error}")
    except OSError as error:
        if error.filename is None:
            raise
        sys.exit(f"openclaw-rl: {error.filename}: {error.strerror}. Choose another folder with --out")
    except KeyboardInterrupt:
        sys.exit(130)
