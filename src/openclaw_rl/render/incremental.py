"""Render the prompts of a growing conversation without rendering its beginning again for each turn.

The prompt up to the end of a reply's text is kept as ids. The rest is rendered after a short placeholder conversation
and cut at a marker, as in `Renderer.text_after`. Not every template allows this, so the whole conversation is rendered
and compared each time that the number of turns has grown by half, and at the end. Total time is linear in the turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from openclaw_rl.errors import RequestError
from openclaw_rl.render.chat_template import NO_VARIABLES
from openclaw_rl.render.renderer import Renderer, Tools, stand_in
from openclaw_rl.render.template_probe import CUT
from openclaw_rl.types import Ids, Message

LONG = 16
"""Minimum number of messages; shorter conversations are always rendered whole."""


class Unequal(Exception):
    """The incremental result differs from the template's: render these conversations whole."""


class Written(NamedTuple):
    """A rendered turn. Both texts start at the same place: after the kept prefix of the prompt."""

    prompt_ids: Ids  # [P] ids of the whole prompt
    before: str  # text of the prompt
    whole: str  # text of the conversation with the reply, without a generation prompt


class _Kept(NamedTuple):
    """Prompt prefix up to the end of a reply's text; `messages`: number of messages, that reply included."""

    messages: int
    texts: int  # number of entries of `_prefix_texts`
    ids: Ids


_NOTHING = _Kept(0, 0, np.empty(0, np.int32))


class _Turn(NamedTuple):
    messages: Sequence[Message]
    reply: Message
    tools: Tools
    variables: Mapping[str, Any]


class Growing:
    """Incremental renderer for conversations, one after the other. `long`: as `MIN_INCREMENTAL_MESSAGES`."""

    def __init__(self, renderer: Renderer, *, long: float = LONG) -> None:
        self._renderer = renderer
        self._long = long if renderer.tokens.segmented else float("inf")
        self._texts: list[str] = []  # text of the kept prefix, in parts
        self._kept = _NOTHING
        self._turns, self._due = 0, 1  # turns rendered incrementally; count at which to verify next
        self._last: tuple[_Turn, _Kept, Written] | None = None  # last turn, to be verified

    def turn(
        self,
        messages: Sequence[Message],
        reply: Message,
        tools: Tools = (),
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Written:
        """Render the next turn, which must begin with the messages of the kept prefix: see `keep_at_most`.

        Raises `RequestError` if the template rejects the turn, `TemplateMismatch` if this or an earlier turn differs.
        """
        turn = _Turn(messages, reply, tools, variables)
        if len(messages) < self._long:
            return self._written(turn, _NOTHING, self._whole(turn))[0]
        kept = self._kept
        found = self._behind_kept(turn) if 0 < kept.messages < len(messages) else None
        if found is None:
            self._forget()
            kept = _NOTHING
        written, pieces = self._written(turn, kept, found or self._whole(turn))
        self._last = (turn, kept, written)
        if kept.messages:
            self._turns += 1
            if self._turns >= self._due:
                self._due += self._turns // 2 + 1
                self._try(*self._last)
        self._keep(turn, kept, written, pieces)
        return written

    def hold(self, same: int) -> None:
        """Drop the kept prefix if it is longer than the `same` messages that the next turn shares with the last one.

        Raises `TemplateMismatch`.
        """
        if self._kept.messages > same:
            self._forget()

    def _forget(self) -> None:
        self.end()
        self._texts, self._kept, self._turns, self._due = [], _NOTHING, 0, 1

    def end(self) -> None:
        """Verify the last turn; call it after the last one. Raises `TemplateMismatch`."""
        if self._last is not None and self._last[1].messages:
            self._try(*self._last)

    def _whole(self, turn: _Turn) -> tuple[str, str]:
        text = self._renderer.text
        return (
            text(turn.messages, turn.tools, variables=turn.variables),
            text([*turn.messages, turn.reply], turn.tools, generation=False, variables=turn.variables),
        )

    def _behind_kept(self, turn: _Turn) -> tuple[str, str] | None:
        at = self._kept.messages
        before = self._behind(turn, at, turn.messages[at:], generation=True)
        whole = self._behind(turn, at, [*turn.messages[at:], turn.reply], generation=False)
        return None if before is None or whole is None else (before, whole)

    def _behind(self, turn: _Turn, at: int, new: Sequence[Message], *, generation: bool) -> str | None:
        """Return the template's text after the reply before message `at`, from the next special token on."""
        if CUT in str(new):
            return None
        asked: Message = {"role": "user", "content": "x"}
        before = [asked, stand_in(turn.messages[at - 1])]
        try:
            text = self._renderer.text([*before, *new], turn.tools, generation=generation, variables=turn.variables)
        except RequestError:
            return None  # the caller renders the whole conversation, which reports the error
        cut = text.rfind(CUT)
        end = self._renderer.tokens.next_special(text, cut + len(CUT)) if cut >= 0 else -1
        return text[end:] if end >= 0 else None

    def _written(self, turn: _Turn, kept: _Kept, texts: tuple[str, str]) -> tuple[Written, list[str]]:
        tokens = self._renderer.tokens
        pieces = tokens.split(texts[0])
        return Written(np.concatenate([kept.ids, tokens.join(pieces)]), *texts), pieces

    def _keep(self, turn: _Turn, kept: _Kept, written: Written, pieces: list[str]) -> None:
        """Keep as much of this prompt as the next prompts will start with."""
        self._kept = kept
        at = self._end(turn.messages, kept.messages)
        behind = self._behind(turn, at, turn.messages[at:], generation=True) if at else None
        if behind is None or not written.before.endswith(behind):
            return
        cut = len(written.before) - len(behind)
        ends = list(accumulate(map(len, pieces)))
        if cut not in ends[::2]:  # texts and special tokens alternate: a cut must be before a special token
            return
        upto = 2 * ends[::2].index(cut) + 1
        size = len(kept.ids) + len(self._renderer.tokens.join(pieces[:upto]))
        self._texts.append(written.before[:cut])
        self._kept = _Kept(at, len(self._texts), written.prompt_ids[:size])

    def _end(self, messages: Sequence[Message], after: int) -> int:
        """Return the index after the newest reply that later turns cannot change; 0 if none is after `after`."""
        final = {"user"} if self._renderer.unbridged else {"user", "tool", "function"}
        return next(
            (
                at
                for at in range(len(messages) - 1, after, -1)
                if messages[at].get("role") in final and messages[at - 1].get("role") == "assistant"
            ),
            0,
        )

    def _try(self, turn: _Turn, kept: _Kept, written: Written) -> None:
        self._last = (turn, _NOTHING, written)  # an empty prefix marks it as verified
        begun = "".join(self._texts[: kept.texts])
        before, whole = self._whole(turn)
        ids = self._renderer.tokens.encode(before)
        if (before, whole) != (begun + written.before, begun + written.whole) or ids.tobytes() != (
            written.prompt_ids.tobytes()
        ):
            raise Unequal
