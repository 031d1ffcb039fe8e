"""Blocks of others in a message: fences, quoted lines, tags, code, traces, and quotations within a line.

A page that a person pastes may end a fence or a tag by itself. So all between the first and the last mark of a kind is
of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from openclaw_rl.common.rules.speaker_types import (
    SPEAKER_ASSET,
    ForeignPart,
    Speaker,
    TextLine,
    lines_of,
    matching_lines,
)

LEFT_OUT = "[...]"
"""Stands in a person's words where a text of others was."""
MASK = "\ue000"
"""Stands for text of others while the marks of the rest are searched."""
MAX_INLINE_CHARS = 200
"""A longer quotation may hold quotation marks of its own: then it ends with the last mark of the message."""
MIN_QUOTED_CHARS = 3
"""Characters of a quotation in a script without spaces that is left out."""
MIN_CODE_LINES = 2
QUOTATION = re.compile(
    r'"[^"\n]{0,2000}"|“[^“”„\n]{0,2000}”|„[^“”„\n]{0,2000}[“”]|«[^«»\n]{0,2000}»|»[^«»\n]{0,2000}«'
    r"|「[^「」\n]{0,2000}」|『[^『』\n]{0,2000}』|`[^`\n]{0,2000}`"
)
"""A quotation within a line, with its marks."""
_CLOSED = re.compile(r'["”“»」』]')
_LEFT_OUT = re.compile(re.escape(LEFT_OUT))
_NOT_LINE_END = re.compile(r"[^\n]")
_WORD_GAP = re.compile(r"[\w.!?][ \u00a0,.!?…]+\w")
_NO_SPACES = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[A-Za-z][\w-]{0,40})(?P<more>\s[^<>]{0,400})?/?>|<!--|-->"
)
_HTML_TAGS = frozenset(SPEAKER_ASSET["html_tags"])
_FORMAT_TAGS = frozenset(SPEAKER_ASSET["format_tags"])
_TOOL_TAGS = frozenset(SPEAKER_ASSET["tool_tags"])


def find_blocks(text: str) -> list[ForeignPart]:
    """Return the blocks of a text, and then the quotations outside of them."""
    lines = lines_of(text)
    blocks = [
        *_fences(lines, len(text)),
        *_attachments(lines, len(text)),
        *_quoted_lines(lines),
        *_run_of_lines(lines, "code", Speaker.PASTED),
        *_run_of_lines(lines, "trace", Speaker.TOOL),
        *_tags(text),
        *_places_left_out(text),
    ]
    return [*blocks, *_quotations(mask_parts(text, blocks))]


def mask_parts(text: str, parts: Sequence[ForeignPart]) -> str:
    """Return the text with `MASK` for each character of the parts but line ends, so that all keep their places."""
    for part in parts:
        inside = _NOT_LINE_END.sub(MASK, text[part.start : part.end])
        text = text[: part.start] + inside + text[part.end :]
    return text


def _fences(lines: Sequence[TextLine], end: int) -> Iterator[ForeignPart]:
    marks = matching_lines(lines, "fence")
    if marks:
        last = marks[-1].end if len(marks) > 1 else end
        yield ForeignPart(marks[0].start, last, Speaker.QUOTATION)


def _attachments(lines: Sequence[TextLine], end: int) -> Iterator[ForeignPart]:
    begun = matching_lines(lines, "bracket_begin")
    if begun:
        ends = [line.end for line in matching_lines(lines, "bracket_end")]
        last = max((one for one in ends if one > begun[0].end), default=end)
        yield ForeignPart(begun[0].start, last, Speaker.CLIENT)


def _quoted_lines(lines: Sequence[TextLine]) -> Iterator[ForeignPart]:
    for line in matching_lines(lines, "quoted_line"):
        yield ForeignPart(line.start, line.end, Speaker.QUOTATION)


def _run_of_lines(lines: Sequence[TextLine], kind: str, speaker: Speaker) -> Iterator[ForeignPart]:
    """Yield from the first to the last line of code, or of a trace, if there are enough of them."""
    begun = matching_lines(lines, f"{kind}_begin")
    of_kind = set(begun)
    if begun:
        of_kind.update(matching_lines(_after(lines, begun[0]), f"{kind}_continued"))
    if len(of_kind) >= MIN_CODE_LINES:
        yield ForeignPart(begun[0].start, max(line.end for line in of_kind), speaker)


def _after(lines: Sequence[TextLine], first: TextLine) -> list[TextLine]:
    return [line for line in lines if line.start > first.start]


def _tags(text: str) -> Iterator[ForeignPart]:
    """Yield from the first to the last tag; to the end of the text if nothing closes the last one."""
    tags = [tag for tag in _TAG.finditer(text) if _name(tag) not in _FORMAT_TAGS]
    closed = {_name(tag) for tag in tags if tag["close"]}
    marks = [tag for tag in tags if _is_markup(tag, closed)]
    if marks:
        end = len(text) if _is_open(marks[-1]) else marks[-1].end()
        yield ForeignPart(marks[0].start(), end, _speaker_of_tags(marks))


def _name(tag: re.Match[str]) -> str:
    """Return the name of a tag; "" for a comment."""
    return (tag["name"] or "").lower()


def _is_markup(tag: re.Match[str], closed: set[str]) -> bool:
    """Return whether a tag is markup. "<name>" alone is a placeholder in the words of the person."""
    return not _name(tag) or _name(tag) in (_HTML_TAGS | closed) or bool(tag["more"])


def _is_open(tag: re.Match[str]) -> bool:
    return bool(_name(tag)) and not tag["close"] and _name(tag) not in _HTML_TAGS


def _speaker_of_tags(tags: Sequence[re.Match[str]]) -> Speaker:
    names = set(map(_name, tags))
    if _name(tags[0]) in _TOOL_TAGS:
        return Speaker.TOOL
    return Speaker.QUOTATION if names & (_HTML_TAGS | {""}) else Speaker.CLIENT


def _places_left_out(text: str) -> Iterator[ForeignPart]:
    for match in _LEFT_OUT.finditer(text):
        yield ForeignPart(match.start(), match.end(), Speaker.PASTED)


def _quotations(masked: str) -> Iterator[ForeignPart]:
    """Yield the quotations of others. One that may hold marks of its own ends with the last mark of the text."""
    quotations = [match for match in QUOTATION.finditer(masked) if _is_of_others(match[0])]
    if quotations and _has_inner_marks(masked, quotations):
        last = max(match.end() for match in _CLOSED.finditer(masked))
        yield ForeignPart(quotations[0].start(), last, Speaker.QUOTATION)
    for match in quotations:
        yield ForeignPart(match.start(), match.end(), Speaker.QUOTATION)


def _has_inner_marks(masked: str, quotations: Sequence[re.Match[str]]) -> bool:
    longest = max(len(match[0]) for match in quotations)
    return longest > MAX_INLINE_CHARS or masked.count('"') % 2 == 1


def _is_of_others(quotation: str) -> bool:
    """Return whether a quotation has several words: one of one word names it ("more 'dear Sir' please")."""
    words = quotation[1:-1].strip()
    is_spaceless = len(words) >= MIN_QUOTED_CHARS and _NO_SPACES.search(words)
    return not words or bool(_WORD_GAP.search(words) or is_spaceless)
