"""What `inspect` says at its head."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.render.trl_templates import make_kind

from openclaw_rl.config import from_flat
from openclaw_rl.views import template


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("starter", "hermes format; keeps everything"),
        ("qwen3", "hermes format; drops the reasoning of earlier turns (keeps it inside a tool loop)"),
        ("gptoss", "harmony format; drops the reasoning of earlier turns"),
        ("nowhere/to-be-found", "that of nowhere/to-be-found"),
    ],
)
def test_what_the_template_does_is_said(kind: str, words: str, tmp_path: Path) -> None:
    path = kind if kind == "starter" or "/" in kind else str(make_kind(tmp_path / kind, kind))
    assert words in template(from_flat({"home": str(tmp_path), "model.path": path})).plain


def test_a_broken_folder_does_not_hide_the_store(tmp_path: Path) -> None:
    assert "no tokenizer.json" in template(from_flat({"home": str(tmp_path), "model.path": str(tmp_path)})).plain
