"""Who speaks in a message: the person, or somebody whose words stand in it. By `assets/speakers.yaml`; pure functions.

A page or a mail that a person pastes may end a fence, a tag or a quotation by itself. So what stands between the first
and the last mark of a kind is not the person's, and where nothing ends a text of others, neither is the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from openclaw_rl.common.rules.foreign_blocks import LEFT_OUT, QUOTATION, find_blocks, mask_parts
from openclaw_rl.common.rules.foreign_ends import end_of_person
from openclaw_rl.common.rules.speaker_types import (
    ForeignPart,
    Speaker,
    SpokenSpan,
    lines_of,
    matching_lines,
    speaker_pattern,
)

MAX_OWN_CHARS = 700
"""A message with more text of which nothing says who wrote it is taken for a pasted one."""
# Without any of these, only words announce others.
_MARK = re.compile(r"[\n<>\"“”„«»「」『』`\[\]:：|©*]")
_WORD = re.compile(r"\w")
_MANY_LINE_ENDS = re.compile(r"\n{3,}")


@lru_cache(maxsize=256)
def split_spans(text: str, *, with_reports: bool = False) -> tuple[SpokenSpan, ...]:
    """Return the spans of the text of a person's message, in order. Together they are the text.

    `text`: without what its client is known to add (`visible_text`), and of bounded length. `with_reports`: what the
    person reports in his own words ("my boss says it is wrong") counts as his, too.
    """
    if _is_plain(text):
        return (SpokenSpan(Speaker.PERSON, text),)
    parts = list(_merge(_find_foreign(text, with_reports)))
    starts = [0, *(part.end for part in parts)]
    ends = [*(part.start for part in parts), len(text)]
    own = map(partial(ForeignPart, speaker=Speaker.PERSON), starts, ends)
    in_order = sorted([*own, *parts], key=lambda part: (part.start, part.end))
    spans = (SpokenSpan(part.speaker, text[part.start : part.end], part.start) for part in in_order)
    return tuple(filter(lambda span: span.text, spans))


def _is_plain(text: str) -> bool:
    """Return whether a text certainly has no words of others. Takes some microseconds, as for most messages."""
    return 0 < len(text) <= MAX_OWN_CHARS and not _MARK.search(text) and not _announces(text)


def _announces(text: str) -> bool:
    return any(speaker_pattern(name).matches(text) for name in ("relayed", "reported", "page"))


@lru_cache(maxsize=256)
def own_words(text: str, *, with_reports: bool = False) -> str:
    """Return what the person says in a message, without outer white space; "" if all of it is of others.

    Where a quotation stood within a line, its marks stay; `LEFT_OUT` stands for other texts. So the own words of own
    words are the same. `with_reports`: as for `split_spans`.
    """
    spans = split_spans(text, with_reports=with_reports)
    if any(span.speaker is Speaker.PERSON and _WORD.search(span.text) for span in spans):
        return _MANY_LINE_ENDS.sub("\n\n", "".join(map(_own_part, spans))).strip()
    return "" if _WORD.search(text) else text.strip()


def _own_part(span: SpokenSpan) -> str:
    if span.speaker is Speaker.PERSON:
        return span.text
    if span.speaker is Speaker.QUOTATION and QUOTATION.fullmatch(span.text):
        return f"{span.text[0]}{span.text[-1]}"
    return f"\n{LEFT_OUT}\n"


def words_of_others(text: str) -> list[str]:
    """Return the parts of a person's message in which others speak."""
    return [span.text for span in split_spans(text) if span.speaker is not Speaker.PERSON]


def is_observation(text: str) -> bool:
    """Return whether a message of the role `user` is what a tool said, as agents of the ReAct kind send it."""
    speakers = {span.speaker for span in split_spans(text) if _WORD.search(span.text)}
    return speakers == {Speaker.TOOL}


def _merge(parts: Sequence[ForeignPart]) -> Iterator[ForeignPart]:
    """Yield the parts without overlaps, in order: the earlier and longer one counts."""
    end = 0
    for part in sorted(parts, key=lambda one: (one.start, -one.end)):
        if part.end > max(end, part.start):
            yield ForeignPart(max(part.start, end), part.end, part.speaker)
            end = part.end


def _find_foreign(text: str, with_reports: bool) -> list[ForeignPart]:
    observed = matching_lines(lines_of(text), "observation")
    end = observed[0].start if observed else len(text)
    parts = _foreign_before_observation(text[:end], with_reports)
    if observed:
        parts.append(ForeignPart(end, len(text), Speaker.TOOL))
    return parts


def _foreign_before_observation(text: str, with_reports: bool) -> list[ForeignPart]:
    parts = find_blocks(text)
    end = end_of_person(mask_parts(text, parts), with_reports)
    parts.append(ForeignPart(end, len(text), Speaker.PASTED))
    own_chars = len(text) - sum(part.end - part.start for part in _merge(parts))
    return parts if own_chars <= MAX_OWN_CHARS else [ForeignPart(0, len(text), Speaker.PASTED)]
