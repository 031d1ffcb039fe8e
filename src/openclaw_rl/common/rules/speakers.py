"""Who speaks in a message: the person, or somebody whose words stand in it. By `assets/speakers.yaml`; pure functions.

A page or a mail that a person pastes may end a fence, a tag or a quotation by itself. So what stands between the first
and the last mark of a kind is not the person's, and where nothing ends a text of others, neither is the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import yaml

from openclaw_rl.common.assets import read_asset
from openclaw_rl.common.linear_regex import LinearPattern

MAX_OWN_CHARS = 700
"""A message with more text of which nothing says who wrote it is taken for a pasted one."""
MAX_INLINE_CHARS = 200
"""A longer quotation may hold quotation marks of its own: then it ends with the last mark of the message."""
MIN_QUOTED_CHARS = 3
"""Characters of a quotation in a script without spaces that is left out."""
LEFT_OUT = "[...]"
"""Stands in a person's words where a text of others was."""
# Stands for text of others while the marks of the rest are searched.
_MASK = "\ue000"
_HEADER_LINES = 4
_QUOTATION = re.compile(
    r'"[^"\n]{0,2000}"|“[^“”„\n]{0,2000}”|„[^“”„\n]{0,2000}[“”]|«[^«»\n]{0,2000}»|»[^«»\n]{0,2000}«'
    r"|「[^「」\n]{0,2000}」|『[^『』\n]{0,2000}』|`[^`\n]{0,2000}`"
)
_OPENING = ' \t\n"“„«「『*_`' + _MASK
_CLOSED = re.compile(r'["”“»」』]')
_WORD_GAP = re.compile(r"[\w.!?][ \u00a0,.!?…]+\w")
_NO_SPACES = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[A-Za-z][\w-]{0,40})(?P<more>\s[^<>]{0,400})?/?>|<!--|-->"
)
_WORD = re.compile(r"\w")


class Speaker(StrEnum):
    """The author of a span of a message."""

    PERSON = "person"
    TOOL = "tool"
    QUOTATION = "quotation"
    PASTED = "pasted"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class SpokenSpan:
    """A part of a message's text, and who speaks in it. `start`: its place in the text."""

    speaker: Speaker
    text: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class _Region:
    """A part of a text in which others speak."""

    start: int
    end: int
    speaker: Speaker


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a text, without its end. `end`: with it."""

    text: str
    start: int
    end: int


_ASSET: dict[str, Any] = yaml.safe_load(read_asset("speakers.yaml"))
_HTML_TAGS = frozenset(_ASSET["html_tags"])
_FORMAT_TAGS = frozenset(_ASSET["format_tags"])
_TOOL_TAGS = frozenset(_ASSET["tool_tags"])


@cache
def _pattern(name: str) -> LinearPattern:
    value = _ASSET[name]
    alternatives = value if isinstance(value, list) else [value]
    return LinearPattern(f"(?im){'|'.join(f'(?:{one})' for one in alternatives)}")


@lru_cache(maxsize=256)
def split_spans(text: str, *, with_reports: bool = False) -> tuple[SpokenSpan, ...]:
    """Return the spans of the text of a person's message, in order. Together they are the text.

    `text`: without what its client is known to add (`visible_text`), and of bounded length. `with_reports`: what the
    person reports in his own words ("my boss says it is wrong") counts as his, too.
    """
    regions = _merge(_find_regions(text, with_reports))
    spans: list[SpokenSpan] = []
    at = 0
    for region in regions:
        if region.start > at:
            spans.append(SpokenSpan(Speaker.PERSON, text[at : region.start], at))
        spans.append(SpokenSpan(region.speaker, text[region.start : region.end], region.start))
        at = region.end
    if at < len(text):
        spans.append(SpokenSpan(Speaker.PERSON, text[at:], at))
    return tuple(spans)


@lru_cache(maxsize=256)
def own_words(text: str, *, with_reports: bool = False) -> str:
    """Return what the person says in a message, without outer white space; "" if all of it is of others.

    Where a quotation stood within a line, its marks stay; `LEFT_OUT` stands for other texts. So the own words of own
    words are the same. `with_reports`: as for `split_spans`.
    """
    spans = split_spans(text, with_reports=with_reports)
    if len(spans) == 1 and spans[0].speaker is Speaker.PERSON:
        return text.strip()
    parts: list[str] = []
    for span in spans:
        if span.speaker is Speaker.PERSON:
            parts.append(span.text)
        elif span.speaker is Speaker.QUOTATION and _QUOTATION.fullmatch(span.text):
            parts.append(f"{span.text[0]}{span.text[-1]}")
        else:
            parts.append(f"\n{LEFT_OUT}\n")
    own = re.sub(r"\n{3,}", "\n\n", "".join(parts)).strip()
    return own if _WORD.search(own) or not _WORD.search(text) else ""


def words_of_others(text: str) -> list[str]:
    """Return the parts of a person's message in which others speak."""
    return [span.text for span in split_spans(text) if span.speaker is not Speaker.PERSON]


def is_observation(text: str) -> bool:
    """Return whether a message of the role `user` is what a tool said, as agents of the ReAct kind send it."""
    spans = [span for span in split_spans(text) if _WORD.search(span.text)]
    return bool(spans) and all(span.speaker is Speaker.TOOL for span in spans)


def _merge(regions: Sequence[_Region]) -> Iterator[_Region]:
    """Yield the regions without overlaps, in order: the earlier and longer one counts."""
    end = 0
    for region in sorted(regions, key=lambda one: (one.start, -one.end)):
        if region.end > end:
            yield _Region(max(region.start, end), region.end, region.speaker)
            end = region.end


def _find_regions(text: str, with_reports: bool) -> list[_Region]:
    lines = list(_lines(text))
    observed = next((line for line in lines if _pattern("observation").matches(line.text)), None)
    if observed is not None:
        before = _find_regions(text[: observed.start], with_reports) if observed.start else []
        return [*before, _Region(observed.start, len(text), Speaker.TOOL)]
    regions = [*_blocks(lines, text), *_tags(text), *_left_out(text)]
    masked = _mask(text, regions)
    regions += _quotations(masked)
    masked = _mask(text, regions)
    end = _end_of_person(masked, with_reports)
    if end < len(text):
        regions.append(_Region(end, len(text), Speaker.PASTED))
    own = len(text) - sum(region.end - region.start for region in _merge(regions))
    if own > MAX_OWN_CHARS:
        return [_Region(0, len(text), Speaker.PASTED)]
    return regions


def _lines(text: str) -> Iterator[_Line]:
    at = 0
    for line in text.splitlines(keepends=True):
        yield _Line(line.rstrip("\r\n"), at, at + len(line))
        at += len(line)


def _mask(text: str, regions: Sequence[_Region]) -> str:
    """Return the text with other characters in the regions, so that each keeps its place. Line ends stay."""
    for region in regions:
        inside = re.sub(r"[^\n]", _MASK, text[region.start : region.end])
        text = text[: region.start] + inside + text[region.end :]
    return text


# ---------------------------------------------------------------- blocks


def _blocks(lines: Sequence[_Line], text: str) -> Iterator[_Region]:
    for name in ("fence", "bracket_begin"):
        begun = [line for line in lines if _pattern(name).matches(line.text)]
        if begun:
            ends = begun[1:] if name == "fence" else _matching(lines, "bracket_end")
            later = [line.end for line in ends if line.start > begun[0].start]
            speaker = Speaker.QUOTATION if name == "fence" else Speaker.CLIENT
            yield _Region(begun[0].start, max(later, default=len(text)), speaker)
    for line in _matching(lines, "quoted_line"):
        yield _Region(line.start, line.end, Speaker.QUOTATION)
    yield from _run_of_lines(lines, "code", "code_continued", Speaker.PASTED, at_least=2)
    yield from _run_of_lines(lines, "trace_begin", "trace_continued", Speaker.TOOL, at_least=2)


def _matching(lines: Sequence[_Line], name: str) -> list[_Line]:
    return [line for line in lines if _pattern(name).matches(line.text)]


def _run_of_lines(
    lines: Sequence[_Line], first: str, continued: str, speaker: Speaker, *, at_least: int
) -> Iterator[_Region]:
    """Yield from the first to the last line of code, or of a trace, if there are enough of them."""
    begun = _matching(lines, first)
    if not begun:
        return
    later = [line for line in _matching(lines, continued) if line.start > begun[0].start]
    of_kind = {line.start: line for line in (*begun, *later)}
    if len(of_kind) >= at_least:
        yield _Region(begun[0].start, of_kind[max(of_kind)].end, speaker)


def _tags(text: str) -> Iterator[_Region]:
    if "<" not in text:
        return
    tags = [tag for tag in _TAG.finditer(text) if (tag["name"] or "").lower() not in _FORMAT_TAGS]
    closed = {tag["name"].lower() for tag in tags if tag["close"]}
    marks = []
    for tag in tags:
        name = (tag["name"] or "").lower()
        # "<name>" alone is a placeholder in the person's words.
        if not name or name in _HTML_TAGS or name in closed or tag["more"]:
            marks.append(tag)
    if not marks:
        return
    names = {(tag["name"] or "").lower() for tag in marks}
    speaker = Speaker.CLIENT
    if names & _HTML_TAGS or "" in names:
        speaker = Speaker.QUOTATION
    if (marks[0]["name"] or "").lower() in _TOOL_TAGS:
        speaker = Speaker.TOOL
    # A tag that nothing closes holds the rest of the message.
    last = marks[-1]
    is_open = bool(last["name"]) and not last["close"] and last["name"].lower() not in _HTML_TAGS
    yield _Region(marks[0].start(), len(text) if is_open else last.end(), speaker)


def _left_out(text: str) -> Iterator[_Region]:
    """Yield the places where texts of others were left out before."""
    for match in re.finditer(re.escape(LEFT_OUT), text):
        yield _Region(match.start(), match.end(), Speaker.PASTED)


def _quotations(masked: str) -> Iterator[_Region]:
    """Yield the quotations of several words: one of one word names it ("more 'dear Sir' please")."""
    is_odd = masked.count('"') % 2 == 1
    found = [match for match in _QUOTATION.finditer(masked) if _is_of_others(match[0])]
    is_long = any(len(match[0]) > MAX_INLINE_CHARS for match in found)
    if is_long or (is_odd and found):
        closed = [match.end() for match in _CLOSED.finditer(masked)]
        yield _Region(found[0].start(), max(closed[-1], found[-1].end()), Speaker.QUOTATION)
        return
    for match in found:
        yield _Region(match.start(), match.end(), Speaker.QUOTATION)


def _is_of_others(quotation: str) -> bool:
    words = quotation[1:-1].strip()
    is_spaceless = len(words) >= MIN_QUOTED_CHARS and _NO_SPACES.search(words)
    return not words or bool(_WORD_GAP.search(words) or is_spaceless)


# ---------------------------------------------------------------- from a mark to the end


def _end_of_person(masked: str, with_reports: bool) -> int:
    """Return where in a text, without the blocks of others, the words of others begin that nothing ends."""
    lines = list(_lines(masked))
    ends = [len(masked), *_header_starts(lines), *_letter_starts(lines)]
    ends += [line.start for line in _matching(lines, "forwarded")]
    end = min(ends)
    end = min(end, _end_of_introduced(masked[:end], masked, with_reports))
    if _pattern("page").matches(masked[:end]):
        return 0
    return end


def _header_starts(lines: Sequence[_Line]) -> Iterator[int]:
    headers = [
        number for number, line in enumerate(lines) if _pattern("mail_header").matches(line.text)
    ]
    for number, following in pairwise(headers):
        if following - number < _HEADER_LINES:
            yield lines[number].start
            return


def _letter_starts(lines: Sequence[_Line]) -> Iterator[int]:
    greeted = _matching(lines, "salutation")
    if greeted and any(line.start > greeted[0].start for line in _matching(lines, "valediction")):
        yield greeted[0].start


def _end_of_introduced(before: str, masked: str, with_reports: bool) -> int:
    """Return where others speak after words that announce them, in the part `before` of a text; else its length."""
    ends = [len(before)]
    names = ["relayed"] if with_reports else ["relayed", "reported"]
    for pattern in map(_pattern, names):
        ends += _ends_after(pattern, before, masked, keeps_words=False)
    if ":" in before or "：" in before:
        ends += _ends_after(_pattern("introduction"), before, masked, keeps_words=True)
        for line in _matching(list(_lines(before)), "line_end"):
            if not _pattern("own_introduction").matches(line.text):
                end = _skip_quoted(masked, line.start + len(line.text))
                if end is None:
                    ends.append(line.end)
    return min(ends)


def _ends_after(
    pattern: LinearPattern, before: str, masked: str, *, keeps_words: bool
) -> Iterator[int]:
    """Yield where others begin to speak after the words of a pattern; nothing if only quotations follow them."""
    at = 0
    while at < len(before):
        parts = pattern.partition(before[at:])
        if parts is None or not parts[1]:
            return
        start = at + len(parts[0])
        end = start + len(parts[1])
        behind = _skip_quoted(masked, end)
        if keeps_words and masked[end - 1] == ":" and masked[end : end + 1].strip(_OPENING):
            # No introduction: a smiley, a time or an address.
            behind = end
        if behind is None:
            if masked[end:].strip(":： \n,.") or not keeps_words:
                yield end if keeps_words else start
            return
        at = behind


def _skip_quoted(masked: str, at: int) -> int | None:
    """Return where the quotation or the block ends that follows at once; None if something else follows."""
    follows = re.compile(rf"[\s:：,，-]*[\"“”„«»「」『』]?{_MASK}").match(masked, at)
    if follows is None:
        return None
    end = follows.end()
    while end < len(masked) and (masked[end] == _MASK or masked[end].isspace()):
        end += 1
    return end
