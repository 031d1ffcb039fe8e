"""Calls that rules made malformed are read as they were meant, or stay text; what only looks like a call stays text."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.render import malformed_corpus as corpus
from tests.render.malformed_corpus import TOOLS, Lookalike, MalformedCall
from tests.render.test_derived_calls import DERIVED, FOLDER, call, family_of, render_with
from tests.render.test_derived_calls import TOOLS as DERIVED_TOOLS
from tests.render.test_malformed_calls import FAMILIES

from openclaw_rl.render import derived_format
from openclaw_rl.render.call_body import ToolList
from openclaw_rl.render.derived_format import TemplateSamples, derive_format
from openclaw_rl.render.families import DerivedFamily, ModelFamily
from openclaw_rl.render.reply_parser import ReplyParser

LEAST_SHARE = 0.95
ROUNDS = 3
DERIVED_ROUNDS = 4
SIZES = (1, 7, 10**6)


def parse(
    family: ModelFamily, text: str, size: int, *, is_cut: bool = False, tools: ToolList = TOOLS
) -> ReplyParser:
    parser = family.new_parser(thinking=False, tools=tools)
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
    for one in calls:
        for size in SIZES:
            parser = parse(FAMILIES[name], one.text, size)
            read = [(each.name, json.loads(each.arguments)) for each in parser.calls]
            if read:
                assert read == [(one.name, one.arguments)], (one.rule, one.text)
                continue
            shown = parser.content + parser.reasoning
            assert shown.strip(), f"lost: {one.text!r}"
            unread[one.rule] += 1
    share = 1 - unread.total() / (len(calls) * len(SIZES))
    assert share >= LEAST_SHARE, f"{name}: {share:.1%} of {len(calls)} were read; not: {unread}"


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_that_look_like_calls_stay_text(name: str) -> None:
    for one in lookalikes(name, random.Random(37)):
        for size in SIZES:
            calls = parse(FAMILIES[name], one.text, size, is_cut=one.is_cut).calls
            assert calls == [], (one.rule, one.text)


@dataclass(frozen=True, kw_only=True)
class DerivedCase:
    """A family whose format is derived from its template, and a writer of one call."""

    family: DerivedFamily
    closer: str
    samples: TemplateSamples

    def write(self, name: str, arguments: corpus.Arguments) -> str:
        """Return the text of a call, as the template writes it, without the end of the turn."""
        one = call(0, name, arguments)
        result = {"role": "tool", "content": "r", "tool_call_id": one["id"], "name": name}
        reply = {"role": "assistant", "content": "", "tool_calls": [one]}
        text = self.samples.of_reply(reply, [result])
        assert text is not None
        end = self.samples.end.strip()
        return (text.rpartition(end)[0] or text) if end else text


def derived_case(name: str, monkeypatch: pytest.MonkeyPatch) -> DerivedCase:
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    render = render_with(template)
    family = family_of(template, render)
    assert isinstance(family, DerivedFamily)
    monkeypatch.setattr(derived_format, "TOOLS", DERIVED_TOOLS)
    calls = derive_format(render)
    assert calls is not None
    closer = calls.closer or calls.after
    return DerivedCase(family=family, closer=closer, samples=TemplateSamples(render))


def derived_arguments(source: random.Random) -> corpus.Arguments:
    values = {"city": source.choice(corpus.WORDS), "days": source.randrange(10, 99), "deep": True}
    return {key: values[key] for key in source.sample(sorted(values), source.randint(1, 3))}


@pytest.mark.parametrize("name", DERIVED)
def test_malformed_calls_of_derived_formats_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = derived_case(name, monkeypatch)
    source = random.Random(37)
    unread: Counter[str] = Counter()
    count = 0
    for _ in range(DERIVED_ROUNDS):
        function = source.choice(("get_weather", "get_time"))
        arguments = derived_arguments(source)
        text = case.write(function, arguments)
        for one in corpus.malformed_derived(text, case.closer, function, arguments):
            for size in SIZES:
                count += 1
                parser = parse(case.family, one.text, size, tools=DERIVED_TOOLS)
                read = [(each.name, json.loads(each.arguments)) for each in parser.calls]
                if read:
                    assert read == [(function, arguments)], (one.rule, one.text)
                    continue
                assert (parser.content + parser.reasoning).strip(), f"lost: {one.text!r}"
                unread[one.rule] += 1
    share = 1 - unread.total() / count
    assert share >= LEAST_SHARE, f"{name}: {share:.1%} of {count} were read; not: {unread}"


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_call_that_a_limit_cut_is_not_completed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with the first of its arguments alone is another call."""
    case = derived_case(name, monkeypatch)
    arguments = {"city": "Paris", "days": 3, "deep": True}
    text = case.write("get_weather", arguments).rstrip()
    for size in (1, 10**6):
        for end in range(1, len(text)):
            calls = parse(case.family, text[:end], size, is_cut=True, tools=DERIVED_TOOLS).calls
            assert all(json.loads(one.arguments) == arguments for one in calls), text[:end]


def test_the_corpus_has_three_hundred_of_each() -> None:
    source = random.Random(37)
    assert sum(len(list(malformed_calls(name, source))) for name in FAMILIES) >= 300
    assert sum(len(list(lookalikes(name, source))) for name in FAMILIES) >= 300
