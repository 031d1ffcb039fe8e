"""No message takes long to read: thirty of the thousand that `benchmarks/adversarial_messages.py` measures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.adversarial_messages import BYTES, adversarial_texts
from tests.growth import check_linear_growth

from openclaw_rl.errors import JudgeError
from openclaw_rl.judge.vote_parser import parse_hint, parse_vote

ROOT = Path(__file__).parents[2]


def test_rules_side_patterns_and_linking_read_an_adversarial_message_within_a_tenth_of_a_second() -> (
    None
):
    """In another process, because a pattern that backtracks cannot be interrupted."""
    command = [sys.executable, "-m", "benchmarks.adversarial_messages", "--messages", "30"]
    done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_adversarial_messages_have_their_size_and_stay_the_same() -> None:
    texts = list(adversarial_texts(20, BYTES))
    assert texts == list(adversarial_texts(20, BYTES))
    assert all(BYTES - 4 <= len(text.encode()) <= BYTES + 1 for text in texts)


@pytest.mark.parametrize("unit", ["{", '{"', '{"a":', '{"a":[', '{"score": 1', '{"\\'])
def test_an_answer_of_900_000_braces_is_no_vote(unit: str) -> None:
    def answer(size: int) -> str:
        return unit * (size // len(unit))

    def parse(text: str) -> None:
        vote = parse_vote(text)
        assert vote.score is None
        assert vote.error
        with pytest.raises(JudgeError, match="expected a JSON object with a hint"):
            parse_hint(text)

    check_linear_growth(parse, answer, 900_000)


def test_a_vote_after_many_braces_counts() -> None:
    code = "function f() { return { a: 1 } }\n" * 2000
    assert parse_vote(code + '{"score": -1, "hint": "Be brief."}').hint == "Be brief."
