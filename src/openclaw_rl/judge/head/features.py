"""The columns of the head: the states of a record in the base, and a few counts of its text."""

from __future__ import annotations

import math

import numpy as np

from openclaw_rl.judge.head.records import HeadRecord
from openclaw_rl.judge.head.regression import Floats
from openclaw_rl.types import States, Verdict

TEXT_COLUMNS = 9
TEXT_SCALE = 2.0
"""Factor of the counts: one of them weighs as much as this squared number of columns of states."""


def make_features(record: HeadRecord, states: States, by_rules: Verdict) -> Floats:
    """Return the columns [D] of one record: its states [K, S, D'], flattened, then `TEXT_COLUMNS` counts."""
    return np.concatenate([states.ravel().astype(np.float64), text_columns(record, by_rules)])


def text_columns(record: HeadRecord, by_rules: Verdict) -> Floats:
    """Return what is counted in the text, and what the rules say of it."""
    reaction = record.reaction.strip()
    words = _words(reaction)
    last = reaction.rstrip(")\"'»”’ ")[-1:]
    return np.array(
        [
            float(record.is_tool),
            float(record.has_error_mark),
            float(by_rules.score == 1),
            float(by_rules.score == -1),
            float(bool(by_rules.hints)),
            math.log1p(len(reaction)),
            float(last in ("?", "？")),
            _share_in(words, _words(record.request)),
            _share_in(words, _words(record.reply)),
        ]
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.casefold().split())


def _share_in(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the share of the words that are among the others."""
    return len(words & others) / len(words) if words else 0.0
