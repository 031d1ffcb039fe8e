"""The trainer says why lessons are not practised with these settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.methods.registry import make_method
from openclaw_rl.practice.make_practice import no_practice_reason
from openclaw_rl.settings.load import from_flat


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"train.method": "binary"}, "no practice: method binary learns from scores alone"),
        ({"practice.enabled": False}, "no practice: practice.enabled is false"),
    ],
)
def test_no_practice_reason(settings: dict[str, object], reason: str, tmp_path: Path) -> None:
    config = from_flat({"home": str(tmp_path), "practice.enabled": True, **settings})
    assert no_practice_reason(config, make_method(config.train)) == reason
