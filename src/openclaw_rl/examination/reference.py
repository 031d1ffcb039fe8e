"""Select the questions with which lessons are examined: those that the base answers right without lessons. Pure.

A base that knows few of the shipped answers is compared with its own answers. Of each answer, the words count that are
in no other answer and not in the question: a reply with one of them is about the question, and gives the same answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from openclaw_rl.examination.probe_set import Probe

MAX_QUESTIONS = 20
"""Questions of one examination, at most."""
MIN_KNOWN = 8
"""Questions that the base has to answer right; if it answers fewer right, its own answers are the reference."""
ACCEPTED_LOSS = 0.05
"""Share of the right answers that lessons may cost."""
_WORDS = re.compile(r"\w+")


def reference_probes(probes: Sequence[Probe], answers: Mapping[str, str]) -> list[Probe]:
    """Return the questions that count, with the answers that are right. `answers`: of the base, by question."""
    known = [probe for probe in probes if probe.is_correct(answers.get(probe.question, ""))]
    if len(known) >= MIN_KNOWN:
        return known[:MAX_QUESTIONS]
    return _distinctive_answers(probes, answers)[:MAX_QUESTIONS]


def _distinctive_answers(probes: Sequence[Probe], answers: Mapping[str, str]) -> list[Probe]:
    """Return the questions with those words of the base's answer that are in no other answer, nor in the question."""
    words_of = {probe.question: _words(answers.get(probe.question, "")) for probe in probes}
    frequency = Counter[str]()
    for answer_words in words_of.values():
        frequency.update(answer_words)
    references = []
    for probe in probes:
        candidates = words_of[probe.question] - _words(probe.question)
        distinctive = sorted(word for word in candidates if frequency[word] == 1)
        if distinctive:
            references.append(replace(probe, answers=tuple(distinctive)))
    return references


def accepted_losses(questions: int) -> int:
    """Return how many right answers may be lost, of that many questions."""
    return max(1, int(ACCEPTED_LOSS * questions))


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORDS.findall(text)}
