"""The patterns of the settings decide what is side traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.collect.world import Ask, Stored

from openclaw_rl.collect.worker import Collector
from openclaw_rl.settings.load import from_flat
from openclaw_rl.types import Kind


@pytest.mark.parametrize(
    ("given", "kind", "reacts"),
    [
        ({}, Kind.MAIN, True),
        ({"collect.side_patterns": ["what is the date"]}, Kind.SIDE, False),
        ({"collect.client_prompt_patterns": ["Tell me what is the date.*"]}, Kind.SIDE, False),
        ({"collect.client_prompt_patterns": ["what is the date"]}, Kind.MAIN, True),
    ],
)
def test_configured_patterns_make_side_traffic(
    tmp_path: Path,
    given: dict[str, Any],
    kind: Kind,
    reacts: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A side pattern is searched in the message; a client prompt matches as a whole. The debug log says how it went."""
    caplog.set_level("DEBUG", logger="openclaw_rl.collect")
    world = Stored(tmp_path / "store.db")
    world.collector = Collector(world.store, from_flat(given).collect)
    world.play(
        Ask(
            name="1",
            history=["u Where shall we eat?"],
            reply="There is a good Italian place by the river.",
        )
    )
    history = ["u Where shall we eat?", "a There is a good Italian place by the river."]
    world.play(
        Ask(name="2", history=[*history, "u Tell me what is the date today."], reply="Monday.")
    )
    seen = world.seen("2")
    assert (seen.kind, "1" in seen.answers) == (kind, reacts)
    assert f"2: {kind.value}, session " in caplog.text
    assert ("reacts to 1 (exact)" in caplog.text) is reacts
    world.store.close()
