"""Probes: questions with a checkable answer, from `assets/evals/probes.yaml` or the owner's file (`gate.probes`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.strict_yaml import read_yaml

_SHIPPED = ASSETS / "evals" / "probes.yaml"
_OF_LESSONS = ASSETS / "evals" / "lesson_probes.yaml"
_TYPICAL_LESSONS = ASSETS / "evals" / "typical_lessons.yaml"
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question. A reply is correct if it has one of the answers as a word of its own, in whatever case."""

    name: str
    question: str
    answers: Sequence[str]

    def is_correct(self, reply: str) -> bool:
        """Return whether the reply has one of the answers."""
        return any(_has_word(reply, answer) for answer in self.answers)


def _has_word(reply: str, word: str) -> bool:
    """Return whether the reply has this word, and not only as a part of a longer one.

    Chinese and Japanese have no marks between words.
    """
    if _UNSPACED.match(word):
        return word in reply
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reply, re.IGNORECASE) is not None


def load_probes(path: str | None) -> list[Probe]:
    """Return the probes of a file; of None, the shipped ones. Raises `ConfigError` if the file has another form."""
    file = _SHIPPED if path is None else Path(path).expanduser()
    table = _read_table(file)
    if not isinstance(table, list) or not table:
        raise ConfigError(
            f"gate.probes: {file}: expected a list of probes, each with question and answers"
        )
    return [_read_probe(row, file, number) for number, row in enumerate(table, 1)]


def load_lesson_probes() -> list[Probe]:
    """Return the questions with which lessons are examined."""
    return load_probes(str(_OF_LESSONS))


def load_typical_lessons() -> list[str]:
    """Return lessons as people give them, which measure how many lessons a base carries."""
    texts = read_yaml(_TYPICAL_LESSONS.read_text(encoding="utf-8"))
    return [str(text) for text in texts]


def _read_table(file: Path) -> Any:
    try:
        return read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"gate.probes: {file} cannot be read: {error}") from error


def _read_probe(row: Any, file: Path, number: int) -> Probe:
    if not _is_probe(row):
        form = '{question: "What is 2 plus 3?", answers: ["5", five]}'
        raise ConfigError(
            f"gate.probes: {file}: probe {number}: expected {form}, got {str(row)[:200]}"
        )
    question = row["question"]
    answers = tuple(str(answer) for answer in row["answers"])
    return Probe(name=question, question=question, answers=answers)


def _is_probe(row: Any) -> bool:
    if not isinstance(row, dict) or row.keys() != {"question", "answers"}:
        return False
    if not isinstance(row["question"], str):
        return False
    return isinstance(row["answers"], list) and bool(row["answers"])
