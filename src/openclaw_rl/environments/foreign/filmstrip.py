"""Filmstrips of episodes: the pages from left to right with what was done, above them the task and the reward.

Beside each strip is a file of JSON with the same words, and `index.html` lists all strips of the folder. Runs in the
Python of the library, and needs Pillow.
"""

from __future__ import annotations

import html
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

INDEX = "index.html"
HEADER = 64
"""Pixels above the pages."""
CAPTION = 40
"""Pixels below each page."""
_FONT_SIZE = 18
_MARGIN = 10
_MAX_GOAL = 300
_MAX_ACTION = 80
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }
img { max-width: 100%; border: 1px solid #ccc }
h2 { font-size: 1.1rem; margin-bottom: 0 }
p { margin: .2rem 0 }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmFrame:
    """A page, and what was done to reach it; "" for the first. `image`: a PIL image."""

    image: Any
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmWords:
    """The words of a strip."""

    name: str
    task: str
    goal: str
    actions: Sequence[str]
    reward: float


def write_film(
    folder: Path, name: str, frames: Sequence[FilmFrame], *, task: str, goal: str, reward: float
) -> None:
    """Write the strip of an episode, its words, and the page that lists all strips of the folder."""
    words = FilmWords(
        name=name,
        task=task,
        goal=goal[:_MAX_GOAL],
        actions=[frame.action[:_MAX_ACTION] for frame in frames if frame.action],
        reward=reward,
    )
    folder.mkdir(parents=True, exist_ok=True)
    draw_strip(frames, words).save(folder / f"{name}.png")
    _write_text(folder / f"{name}.json", json.dumps(asdict(words)))
    _write_text(folder / INDEX, index_page(_read_words(folder)))


def draw_strip(frames: Sequence[FilmFrame], words: FilmWords) -> Any:
    """Return the image of a strip."""
    from PIL import Image, ImageDraw

    width = sum(frame.image.width for frame in frames)
    height = max(frame.image.height for frame in frames)
    strip = Image.new("RGB", (width, HEADER + height + CAPTION), "white")
    draw = ImageDraw.Draw(strip)
    font = _load_font()
    first = f"task {words.task}, reward {words.reward:g}"
    draw.text((_MARGIN, 6), first, "black", font)
    draw.text((_MARGIN, 34), _one_line(words.goal), "dimgray", font)
    left = 0
    for number, frame in enumerate(frames):
        strip.paste(frame.image, (left, HEADER))
        label = f"{number}. {_one_line(frame.action)[:_MAX_ACTION]}" if number else "the first page"
        draw.text((left + _MARGIN, HEADER + height + 8), label, "black", font)
        left += frame.image.width
    return strip


def index_page(films: Iterable[FilmWords]) -> str:
    """Return the page of a folder: each strip with its task, actions and reward. It has no script."""
    parts = []
    for film in films:
        title = html.escape(f"{film.task}: reward {film.reward:g}")
        steps = html.escape(" → ".join(film.actions) or "no action")
        file = html.escape(f"{film.name}.png", quote=True)
        parts.append(
            f"<h2>{title}</h2>\n<p>{html.escape(film.goal)}</p>\n<p>{steps}</p>\n"
            f'<a href="{file}"><img loading="lazy" src="{file}" alt="{title}"></a>'
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Filmstrips</title>\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{len(parts)} filmstrips</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _read_words(folder: Path) -> list[FilmWords]:
    """Return the words of all strips of a folder, the newest first."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [FilmWords(**_read_json(file)) for file in files]


def _read_json(file: Path) -> Mapping[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))


def _write_text(file: Path, text: str) -> None:
    """Write a file at once: several workers write into a folder."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".film-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
    Path(name).chmod(0o644)
    Path(name).replace(file)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _load_font() -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.load_default(_FONT_SIZE)
    except TypeError:
        # Pillow before 10.1 has one size.
        return ImageFont.load_default()
