"""Where the words of others begin that nothing ends: mails, letters, pages, and what "my boss says:" announces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from openclaw_rl.common.rules.foreign_blocks import MASK
from openclaw_rl.common.rules.speaker_types import (
    TextLine,
    lines_of,
    matching_lines,
    speaker_pattern,
)

_HEADER_LINES = 4
# Behind the colon of an introduction.
_OPENING = ' \t\n"“„«「『*_`' + MASK
_QUOTED_NEXT = re.compile(rf"[\s:：,，-]*[\"“”„«»「」『』]?{MASK}[{MASK}\s]*")


def end_of_person(masked: str, with_reports: bool) -> int:
    """Return where in a text, without the blocks of others, the words of others begin; its length if they do not.

    `with_reports`: what the person reports counts as his.
    """
    lines = lines_of(masked)
    starts = [*_header_starts(lines), *_letter_starts(lines)]
    starts += [line.start for line in matching_lines(lines, "forwarded")]
    before = masked[: min(starts, default=len(masked))]
    end = min([len(before), *_announced(before, masked, with_reports)])
    return 0 if speaker_pattern("page").matches(masked[:end]) else end


def _header_starts(lines: Sequence[TextLine]) -> list[int]:
    """Return where the head of a mail begins: two of its lines near each other."""
    places = {line.start: number for number, line in enumerate(lines)}
    headers = matching_lines(lines, "mail_header")
    near = [
        first.start
        for first, second in pairwise(headers)
        if places[second.start] - places[first.start] < _HEADER_LINES
    ]
    return near[:1]


def _letter_starts(lines: Sequence[TextLine]) -> list[int]:
    """Return where a letter begins: a salutation with a valediction below it."""
    greeted = matching_lines(lines, "salutation")[:1]
    ended = matching_lines(lines, "valediction")[-1:]
    return [one.start for one, last in zip(greeted, ended, strict=False) if last.start > one.start]


def _announced(before: str, masked: str, with_reports: bool) -> Iterator[int]:
    """Yield where others speak after words that announce them, in the part `before` of a text."""
    yield from _behind(before, masked, "relayed")
    if not with_reports:
        yield from _behind(before, masked, "reported")
    if ":" in before or "：" in before:
        yield from _behind(before, masked, "introduction")
        yield from _behind_lines(before, masked)


def _behind_lines(before: str, masked: str) -> Iterator[int]:
    """Yield the ends of lines that introduce what follows them by a colon, if no quotation does."""
    for line in matching_lines(lines_of(before), "line_end"):
        is_own = speaker_pattern("own_introduction").matches(line.text)
        if not is_own and _skip_quoted(masked, line.start + len(line.text)) is None:
            yield line.end


def _behind(before: str, masked: str, name: str) -> Iterator[int]:
    """Yield where others begin to speak after the words of a pattern; nothing if quotations alone follow them.

    Words that introduce a text are the person's. Those that report or relay one are left out with it.
    """
    at: int | None = 0
    while at is not None and at < len(before):
        parts = speaker_pattern(name).partition(before[at:])
        if parts is None or not parts[1]:
            return
        start = at + len(parts[0])
        end = start + len(parts[1])
        at = end if _is_no_introduction(masked, end, name) else _skip_quoted(masked, end)
        if at is None:
            yield end if name == "introduction" else start


def _is_no_introduction(masked: str, end: int, name: str) -> bool:
    """Return whether the colon at the end of an introduction is of a smiley, a time or an address."""
    is_colon = name == "introduction" and masked[end - 1] == ":"
    return is_colon and bool(masked[end : end + 1].strip(_OPENING))


def _skip_quoted(masked: str, at: int) -> int | None:
    """Return where the quotation or the block ends that follows at once; None if something else follows."""
    follows = _QUOTED_NEXT.match(masked, at)
    return None if follows is None else follows.end()
