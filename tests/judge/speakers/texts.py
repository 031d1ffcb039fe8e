"""The texts of third parties, and the honest wishes beside texts of others, as the data files combine them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
HALVES = ("development", "held_out")


@dataclass(frozen=True)
class ThirdPartyText:
    """A message with an order that a third party gave, and the same message with a neutral sentence instead."""

    id: str
    kind: str
    role: str
    order: str
    text: str
    control: str


@dataclass(frozen=True)
class HonestWish:
    """A wish of the person, with words of others beside it, as a message or as feedback."""

    id: str
    wish: str
    text: str
    place: str  # text, comment or correction
    tool: str | None


def _load(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return tree


def third_party_texts(half: str) -> list[ThirdPartyText]:
    tree = _load("third_party.yaml")
    texts = []
    for number, frame in enumerate(tree["frames"]):
        if frame["half"] != half:
            continue
        orders = tree["orders"][frame["language"]]
        for place in (number, number + 3):
            order = orders[place % len(orders)]
            neutral = tree["neutral"][frame["language"]]
            texts.append(
                ThirdPartyText(
                    id=f"{frame['kind']}-{number}-{place % len(orders)}",
                    kind=frame["kind"],
                    role=frame.get("role", "user"),
                    order=order,
                    text=frame["text"].format(order=order),
                    control=frame["text"].format(order=neutral),
                )
            )
    return texts


def honest_wishes(half: str) -> list[HonestWish]:
    tree = _load("honest_wishes.yaml")
    wishes = []
    for number, frame in enumerate(tree["frames"]):
        if frame["half"] != half:
            continue
        known = tree["wishes"][frame["language"]]
        place = next(name for name in ("text", "comment", "correction") if name in frame)
        for at in (number, number + 3):
            wish = known[at % len(known)]
            wishes.append(
                HonestWish(
                    id=f"{frame['language']}-{number}-{at % len(known)}",
                    wish=wish,
                    text=frame[place].replace("{wish}", wish),
                    place=place,
                    tool=frame.get("tool"),
                )
            )
    return wishes


def all_orders() -> list[str]:
    """Every sentence that asks for something in either file."""
    orders = [one for known in _load("third_party.yaml")["orders"].values() for one in known]
    return orders + [
        one for known in _load("honest_wishes.yaml")["wishes"].values() for one in known
    ]
