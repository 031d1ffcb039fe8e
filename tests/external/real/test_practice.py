"""Practice on SmolLM2, in one process: a wish in natural words gets into the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

import pytest
from benchmarks.in_process import Rooms

from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson

MAX_TOKENS = 24
COMPLAINT = "Too long. Keep it short, please."
STEPS = 4
SETTINGS: Mapping[str, Any] = {
    "practice.replies": 8,
    "gate.workers": 8,  # replies at once
    "practice.step_limit": STEPS * 3 // 2,  # of a wish that was said twice, two thirds
    "practice.seconds_per_hour": 3600,
    "practice.max_divergence": 1e-9,  # it does not end before the limit
    "train.batch.max_wait": 1e9,
}


async def practise(config: Config) -> None:
    """Say the wish in two conversations, then practise until the limit."""
    async with Rooms(config, max_tokens=MAX_TOKENS) as rooms:
        for number, (first, second) in enumerate(
            [
                ("How do bees make honey?", "Why do cats purr?"),
                (
                    "What is a good breakfast before a long walk?",
                    "How does a bicycle stay upright?",
                ),
            ]
        ):
            history: list[dict[str, str]] = []
            for text in (first, f"{COMPLAINT} {second}"):
                history.append({"role": "user", "content": text})
                reply = await rooms.say(history, seed=number, temperature=0.7)
                history.append({"role": "assistant", "content": reply.text})
        await rooms.settle()


@pytest.fixture(scope="module")
def config(small: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = from_flat({**small, **SETTINGS, "home": str(tmp_path_factory.mktemp("practice"))})
    asyncio.run(practise(config))
    return config


@pytest.fixture
def store(config: Config) -> Iterator[Store]:
    with Store.open(config.store_path, create=False) as store:
        yield store


def only_lesson(store: Store) -> Lesson:
    with store.read() as conn:
        (lesson,) = lessons.list_lessons(conn)
    return lesson


def test_the_missing_share_of_the_effect_falls(store: Store) -> None:
    lesson = only_lesson(store)
    assert lesson.text == "Keep answers short."
    with store.read() as conn:
        shares = [share for _, share in lessons.divergences_of(conn, lesson.id)]
    assert len(shares) == STEPS
    assert mean(shares[-2:]) < mean(shares[:2]), (
        f"share of the lesson's effect that is missing: {shares}"
    )
