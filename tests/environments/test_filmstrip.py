"""Filmstrips of episodes: the picture, its words, and the page that lists all of a folder."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from openclaw_rl.environments.foreign.filmstrip import (
    CAPTION,
    HEADER,
    INDEX,
    FilmFrame,
    write_film,
)


def frames(*actions: str) -> list[FilmFrame]:
    colours = ("red", "green", "blue")
    return [
        FilmFrame(image=Image.new("RGB", (200, 100), colours[number]), action=action)
        for number, action in enumerate(actions)
    ]


def test_a_strip_shows_the_pages_with_their_words_around_them(tmp_path: Path) -> None:
    write_film(
        tmp_path, "e1", frames("", "click('1')", "noop()"), task="book", goal="Find it", reward=0.5
    )
    strip = Image.open(tmp_path / "e1.png")
    assert strip.size == (600, HEADER + 100 + CAPTION)
    middles = [strip.getpixel((left, HEADER + 50)) for left in (100, 300, 500)]
    assert middles == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    for box in ((0, 0, 600, HEADER), (200, HEADER + 100, 400, HEADER + 100 + CAPTION)):
        assert strip.crop(box).convert("L").getextrema()[0] < 255, "there are words"
    assert json.loads((tmp_path / "e1.json").read_text()) == {
        "name": "e1",
        "task": "book",
        "goal": "Find it",
        "actions": ["click('1')", "noop()"],
        "reward": 0.5,
    }


def test_the_index_lists_every_strip_and_escapes_its_words(tmp_path: Path) -> None:
    write_film(tmp_path, "e1", frames(""), task="one", goal="<b>bold</b>", reward=0)
    write_film(tmp_path, "e2", frames("", "fill('1', '<i>')"), task="two", goal="g", reward=1)
    page = (tmp_path / INDEX).read_text(encoding="utf-8")
    assert "<h1>2 filmstrips</h1>" in page
    assert all(words in page for words in ('src="e1.png"', 'src="e2.png"', "two: reward 1"))
    assert "<b>" not in page
    assert "<i>" not in page
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        [INDEX, "e1.json", "e1.png", "e2.json", "e2.png"]
    )
