"""Command-line arguments of the measurements: settings and switches."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from openclaw_rl.settings.load import known_keys


def on_off(text: str) -> bool:
    """Parse `on` or `off` (argparse `type`)."""
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"expected on or off, got {text!r}")
    return text == "on"


def setting_argument(text: str) -> str:
    """Check a KEY=VALUE argument and return it unchanged (argparse `type`). The key must be a known setting."""
    for key in parse_settings([text]):
        if key not in known_keys():
            raise argparse.ArgumentTypeError(
                f"unknown setting {key!r}. `openclaw-rl config show` lists them"
            )
    return text


def parse_settings(given: Sequence[str]) -> Mapping[str, Any]:
    """Parse KEY=VALUE texts to dotted keys and values. Raise `ArgumentTypeError` if one is malformed."""
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign:
            raise argparse.ArgumentTypeError(
                f"expected KEY=VALUE, e.g. train.batch.min_turns=8, got {text!r}"
            )
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise argparse.ArgumentTypeError(
                f"expected a value such as 8, true or [a, b], got {value!r}"
            ) from None
    return found


def share_argument(text: str) -> float:
    """Check a share (argparse `type`): a number from 0 to 1."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return share
