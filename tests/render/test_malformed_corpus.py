"""Calls that rules made malformed are read as they were meant, or stay text; what only looks like a call stays text."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.render import malformed_corpus as corpus
from tests.render.malformed_corpus import TOOLS, Lookalike, MalformedCall
from tests.render.test_malformed_calls import FAMILIES

from openclaw_rl.render.families import ModelFamily
from openclaw_rl.render.reply_parser import ReplyParser

LEAST_SHARE = 0.95
ROUNDS = 3
SIZES = (1, 7, 10**6)


def parse(family: ModelFamily, text: str, size: int, *, is_cut: bool = False) -> ReplyParser:
    parser = family.new_parser(thinking=False, tools=TOOLS)
    for start in range(0, len(text), size):
        parser.push(text[start : start + size])
    parser.finish(is_cut=is_cut)
    return parser


def malformed_calls(name: str, source: random.Random) -> Iterator[MalformedCall]:
    for _ in range(ROUNDS):
        if name == "qwen-xml":
            yield from corpus.malformed_xml(source)
        else:
            yield from corpus.malformed_json(corpus.JSON_FORMATS[name], source)


def lookalikes(name: str, source: random.Random) -> Iterator[Lookalike]:
    for _ in range(ROUNDS):
        if name == "qwen-xml":
            yield from corpus.xml_lookalikes(source)
        else:
            yield from corpus.json_lookalikes(corpus.JSON_FORMATS[name], source)


@pytest.mark.parametrize("name", FAMILIES)
def test_malformed_calls_are_read_as_they_were_meant(name: str) -> None:
    calls = list(malformed_calls(name, random.Random(37)))
    unread: Counter[str] = Counter()
    for call in calls:
        for size in SIZES:
            parser = parse(FAMILIES[name], call.text, size)
            read = [(one.name, json.loads(one.arguments)) for one in parser.calls]
            if read:
                assert read == [(call.name, call.arguments)], (call.rule, call.text)
                continue
            shown = parser.content + parser.reasoning
            assert shown.strip(), f"lost: {call.text!r}"
            unread[call.rule] += 1
    share = 1 - unread.total() / (len(calls) * len(SIZES))
    assert share >= LEAST_SHARE, f"{name}: {share:.1%} of {len(calls)} were read; not: {unread}"


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_that_look_like_calls_stay_text(name: str) -> None:
    for one in lookalikes(name, random.Random(37)):
        for size in SIZES:
            calls = parse(FAMILIES[name], one.text, size, is_cut=one.is_cut).calls
            assert calls == [], (one.rule, one.text)


def test_the_corpus_has_three_hundred_of_each() -> None:
    source = random.Random(37)
    assert sum(len(list(malformed_calls(name, source))) for name in FAMILIES) >= 300
    assert sum(len(list(lookalikes(name, source))) for name in FAMILIES) >= 300
