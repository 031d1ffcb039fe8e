"""What never ran with its real counterpart says so in the line of the start and in the help."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from openclaw_rl.cli.main import announce_start, cli
from openclaw_rl.settings.load import from_flat

WORKERS = ("engine", "gateway", "collect", "judge", "train")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"engine.backend": "sglang"}, ["engine.backend sglang"]),
        ({"train.trainer": "external", "gate.kind": "numbers"}, ["train.trainer external"]),
    ],
)
def test_the_start_names_what_is_experimental(
    settings: dict[str, Any], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    announce_start(from_flat(settings), WORKERS)
    lines = [line for line in capsys.readouterr().err.splitlines() if "experimental" in line]
    assert lines == [
        f"  experimental: {part}, which never ran with its real counterpart" for part in expected
    ]


def test_a_part_that_does_not_run_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    announce_start(from_flat({"engine.backend": "sglang"}), ("train",))
    assert "experimental" not in capsys.readouterr().err


def test_help_marks_the_names() -> None:
    text = " ".join(CliRunner().invoke(cli, ["up", "--help"]).output.split())
    assert "sglang (experimental), openai, tinker or fireworks (experimental)" in text
    assert "local, external (experimental) or tinker" in text
