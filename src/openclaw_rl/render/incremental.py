"""The prompts of a conversation that grows, without rendering its beginning again for each of them.

What stands in a prompt up to the end of a reply's words is kept, as ids; what stands behind is rendered behind a
conversation that stands in for the real one, and cut at a marker (as `Renderer.text_after` does). Whether a template
allows that shows only when it is tried: each time that there are half as many turns again, and at the end, the whole
conversation is rendered as well and must say the same. All of that together takes time in proportion to the turns.
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
"""Messages. Shorter conversations are always rendered whole."""


class Unequal(Exception):
    """What was put together is not what the template writes: render these conversations whole."""


class Written(NamedTuple):
    """A turn as the template writes it. Both texts begin at the same place: that of the prompt's part that was kept."""

    prompt_ids: Ids  # [P] the whole prompt
    before: str  # the prompt
    whole: str  # the prompt's conversation and the reply, with no opening of another one


class _Kept(NamedTuple):
    """The prompt up to the end of a reply's words; `messages`: how many, that reply the last of them."""

    messages: int
    texts: int  # of `_texts`
    ids: Ids


_NOTHING = _Kept(0, 0, np.empty(0, np.int32))


class _Turn(NamedTuple):
    messages: Sequence[Message]
    reply: Message
    tools: Tools
    variables: Mapping[str, Any]


class Growing:
    """One conversation after the other, or one alone. `long`: as `LONG`."""

    def __init__(self, renderer: Renderer, *, long: float = LONG) -> None:
        self._renderer = renderer
        self._long = long if renderer.tokens.segmented else float("inf")
        self._texts: list[str] = []  # what was kept, in parts
        self._kept = _NOTHING
        self._turns, self._due = 0, 1  # that were put together; when the whole is rendered again
        self._last: tuple[_Turn, _Kept, Written] | None = None  # not tried yet

    def turn(
        self,
        messages: Sequence[Message],
        reply: Message,
        tools: Tools = (),
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Written:
        """The next turn. What was kept must be of its conversation: see `hold`.

        Raises `RequestError` when the template refuses it, `Unequal` for this one or one before.
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
        """The next turns begin with no more than `same` messages of those before, or have other tools or variables.

        Raises `Unequal`.
        """
        if self._kept.messages > same:
            self._forget()

    def _forget(self) -> None:
        self.end()
        self._texts, self._kept, self._turns, self._due = [], _NOTHING, 0, 1

    def end(self) -> None:
        """There are no more turns. Raises `Unequal`."""
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
        """What the template puts behind the words of the reply before message `at`, from a special token on."""
        if CUT in str(new):
            return None
        asked: Message = {"role": "user", "content": "x"}
        before = [asked, stand_in(turn.messages[at - 1])]
        try:
            text = self._renderer.text([*before, *new], turn.tools, generation=generation, variables=turn.variables)
        except RequestError:
            return None  # the whole conversation is rendered instead, and says what is wrong
        cut = text.rfind(CUT)
        end = self._renderer.tokens.next_special(text, cut + len(CUT)) if cut >= 0 else -1
        return text[end:] if end >= 0 else None

    def _written(self, turn: _Turn, kept: _Kept, texts: tuple[str, str]) -> tuple[Written, list[str]]:
        tokens = self._renderer.tokens
        pieces = tokens.split(texts[0])
        return Written(np.concatenate([kept.ids, tokens.join(pieces)]), *texts), pieces

    def _keep(self, turn: _Turn, kept: _Kept, written: Written, pieces: list[str]) -> None:
        """As much of this prompt as the next ones will begin with."""
        self._kept = kept
        at = self._end(turn.messages, kept.messages)
        behind = self._behind(turn, at, turn.messages[at:], generation=True) if at else None
        if behind is None or not written.before.endswith(behind):
            return
        cut = len(written.before) - len(behind)
        ends = list(accumulate(map(len, pieces)))
        if cut not in ends[::2]:  # texts and special tokens in turn: a text ends where a special token begins
            return
        upto = 2 * ends[::2].index(cut) + 1
        size = len(kept.ids) + len(self._renderer.tokens.join(pieces[:upto]))
        self._texts.append(written.before[:cut])
        self._kept = _Kept(at, len(self._texts), written.prompt_ids[:size])

    def _end(self, messages: Sequence[Message], after: int) -> int:
        """Behind the newest reply that will always stand as it does now; 0: there is none behind `after` messages."""
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
        self._last = (turn, _NOTHING, written)  # tried
        begun = "".join(self._texts[: kept.texts])
        before, whole = self._whole(turn)
        ids = self._renderer.tokens.encode(before)
        if (before, whole) != (begun + written.before, begun + written.whole) or ids.tobytes() != (
            written.prompt_ids.tobytes()
        ):
            raise Unequal
