"""Leave out of tool results what addresses the judge: a page cannot ask for its verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.linear_regex import LinearPattern
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.types import JudgeInput, Message

LINE_CHARS = 400
"""Characters of the longest line that is left out as a whole: its other sentences belong to the same request."""
READ_CHARS = 8_192
"""Characters of a tool result that are read: its head and its tail."""

_SENTENCE = re.compile(
    r"[^\n.!?。！？]+(?:[.!?](?!\s|$)[^\n.!?。！？]*)*[.!?。！？]*\s*|[.!?。！？\n]+\s*"
)
"""A sentence, or a line, with what separates it from the next. A mark inside a word, as in `a.py`, ends none."""


@cache
def _combinations() -> tuple[tuple[LinearPattern, ...], ...]:
    asset = read_yaml_asset("judge_addressed.yaml")
    patterns = {name: LinearPattern(f"(?i){words}") for name, words in asset["words"].items()}
    return tuple(tuple(patterns[name] for name in names) for names in asset["combinations"])


def addresses_judge(sentence: str) -> bool:
    """Return whether a sentence asks for a verdict, or praises or blames the reply to its judge."""
    return any(
        all(pattern.matches(sentence) for pattern in patterns) for patterns in _combinations()
    )


def without_addressed_sentences(text: str) -> str:
    """Return a tool result without the lines, and of long lines the sentences, that address the judge."""
    remaining: list[str] = []
    for line in text.splitlines(keepends=True):
        if len(line) > LINE_CHARS:
            sentences = _SENTENCE.findall(line)
            remaining += [sentence for sentence in sentences if not addresses_judge(sentence)]
        elif not any(addresses_judge(sentence) for sentence in _SENTENCE.findall(line)):
            remaining.append(line)
    return "".join(remaining).strip()


def without_addressed_text(item: JudgeInput) -> JudgeInput:
    """Return a turn without what its tool results say to the judge. People's words stay as they are."""
    messages = tuple(_without_addressed_text(message) for message in item.reaction.messages)
    if messages == item.reaction.messages:
        return item
    return replace(item, reaction=replace(item.reaction, messages=messages))


def _without_addressed_text(message: Message) -> Message:
    if message.get("role") == "user":
        return message
    text = head_and_tail(message_text(message), READ_CHARS)
    remaining = without_addressed_sentences(text)
    if remaining == text.strip():
        return message
    return {**message, "content": remaining}
