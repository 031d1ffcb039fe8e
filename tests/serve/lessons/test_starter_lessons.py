"""Several wishes in the prompt of the starter: it answers right with them, or a lesson has left the prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.lesson_sets import Row, Trial

SETS = [
    ("spanish", ("Responde brevemente.", "Usa un tono formal.", "Responde en prosa, sin lista.")),
    ("german", ("Antworte kurz.", "Antworte in förmlichem Ton.")),
    ("french", ("Réponds brièvement.", "Adopte un ton formel.")),
    ("chinese", ("回答要短。", "用正式的口吻回答。")),
    ("japanese", ("短く答えてください。",)),
    (
        "english",
        (
            "Keep answers short.",
            "Use a formal tone.",
            "Answer in bullet points.",
            "Answer in plain prose, without a list.",
        ),
    ),
    (
        "unknown words",
        ("Отвечай по-клингонски: nuqneH, Duj, puchpa'! Ελληνικά, български, עברית, ไทย.",),
    ),
]


async def try_sets(home: Path) -> list[Row]:
    trial = Trial("starter", str(home), questions=10)
    try:
        return await trial.run(SETS, seconds=3600)
    finally:
        await trial.close()


def test_answers_are_right_or_a_lesson_is_withdrawn(tmp_path: Path) -> None:
    rows = asyncio.run(try_sets(tmp_path))
    assert len(rows) == len(SETS)
    for row in rows:
        assert row.right_with_rest >= 0.9, row
        assert row.is_kept_promise, row
    assert rows[-1].withdrawn, "the starter has never seen such words"
