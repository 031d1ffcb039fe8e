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
from openclaw_rl.render.call_body import ToolList
from openclaw_rl.render.chat_template import NO_VARIABLES
from openclaw_rl.render.renderer import Renderer, placeholder_reply
from openclaw_rl.render.template_probe import CUT_MARKER
from openclaw_rl.types import Ids, Message

MIN_INCREMENTAL_MESSAGES = 16
"""Minimum number of messages; shorter conversations are always rendered whole."""


class TemplateMismatch(Exception):
    """The incremental result differs from the template's: render these conversations whole."""


class RenderedTurn(NamedTuple):
    """A rendered turn. Both texts start at the same place: after the kept prefix of the prompt."""

    prompt_ids: Ids  # [P] ids of the whole prompt
    prompt_text: str  # text of the prompt
    full_text: str  # text of the conversation with the reply, without a generation prompt


class _KeptPrefix(NamedTuple):
    """Prompt prefix up to the end of a reply's text; `messages`: number of messages, that reply included."""

    messages: int
    texts: int  # number of entries of `_prefix_texts`
    ids: Ids


_EMPTY_PREFIX = _KeptPrefix(0, 0, np.empty(0, np.int32))


class _TurnInput(NamedTuple):
    messages: Sequence[Message]
    reply: Message
    tools: ToolList
    variables: Mapping[str, Any]


class IncrementalRenderer:
    """Incremental renderer for conversations, one after the other. `long`: as `MIN_INCREMENTAL_MESSAGES`."""

    def __init__(self, renderer: Renderer, *, long: float = MIN_INCREMENTAL_MESSAGES) -> None:
        self._renderer = renderer
        self._min_messages = long if renderer.tokenizer.is_segmented else float("inf")
        # Text of the kept prefix, in parts.
        self._prefix_texts: list[str] = []
        self._prefix = _EMPTY_PREFIX
        # Turns rendered incrementally; count at which to verify next.
        self._turn_count = 0
        self._next_verification = 1
        # Last turn, to be verified.
        self._last_turn: tuple[_TurnInput, _KeptPrefix, RenderedTurn] | None = None

    def render_turn(
        self,
        messages: Sequence[Message],
        reply: Message,
        tools: ToolList = (),
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> RenderedTurn:
        """Render the next turn, which must begin with the messages of the kept prefix: see `keep_at_most`.

        Raises `RequestError` if the template rejects the turn, `TemplateMismatch` if this or an earlier turn differs.
        """
        turn = _TurnInput(messages, reply, tools, variables)
        if len(messages) < self._min_messages:
            return self._make_turn(turn, _EMPTY_PREFIX, self._render_whole(turn))[0]
        prefix = self._prefix
        after_prefix = (
            self._render_after_prefix(turn) if 0 < prefix.messages < len(messages) else None
        )
        if after_prefix is None:
            self._drop_prefix()
            prefix = _EMPTY_PREFIX
        written, pieces = self._make_turn(turn, prefix, after_prefix or self._render_whole(turn))
        self._last_turn = (turn, prefix, written)
        if prefix.messages:
            self._turn_count += 1
            if self._turn_count >= self._next_verification:
                self._next_verification += self._turn_count // 2 + 1
                self._verify_turn(*self._last_turn)
        self._extend_prefix(turn, prefix, written, pieces)
        return written

    def keep_at_most(self, same: int) -> None:
        """Drop the kept prefix if it is longer than the `same` messages that the next turn shares with the last one.

        Raises `TemplateMismatch`.
        """
        if self._prefix.messages > same:
            self._drop_prefix()

    def _drop_prefix(self) -> None:
        self.verify_last_turn()
        self._prefix_texts = []
        self._prefix = _EMPTY_PREFIX
        self._turn_count = 0
        self._next_verification = 1

    def verify_last_turn(self) -> None:
        """Verify the last turn; call it after the last one. Raises `TemplateMismatch`."""
        if self._last_turn is not None and self._last_turn[1].messages:
            self._verify_turn(*self._last_turn)

    def _render_whole(self, turn: _TurnInput) -> tuple[str, str]:
        text = self._renderer.text
        return (
            text(turn.messages, turn.tools, variables=turn.variables),
            text(
                [*turn.messages, turn.reply], turn.tools, generation=False, variables=turn.variables
            ),
        )

    def _render_after_prefix(self, turn: _TurnInput) -> tuple[str, str] | None:
        at = self._prefix.messages
        before = self._render_after(turn, at, turn.messages[at:], generation=True)
        whole = self._render_after(turn, at, [*turn.messages[at:], turn.reply], generation=False)
        return None if before is None or whole is None else (before, whole)

    def _render_after(
        self, turn: _TurnInput, at: int, new: Sequence[Message], *, generation: bool
    ) -> str | None:
        """Return the rendered text that follows the reply at message `at - 1`, from its first special token on."""
        if CUT_MARKER in str(new):
            return None
        asked: Message = {"role": "user", "content": "x"}
        before = [asked, placeholder_reply(turn.messages[at - 1])]
        try:
            text = self._renderer.text(
                [*before, *new], turn.tools, generation=generation, variables=turn.variables
            )
        except RequestError:
            # The caller renders the whole conversation, which reports the error.
            return None
        cut = text.rfind(CUT_MARKER)
        end = (
            self._renderer.tokenizer.find_next_special(text, cut + len(CUT_MARKER))
            if cut >= 0
            else -1
        )
        return text[end:] if end >= 0 else None

    def _make_turn(
        self, turn: _TurnInput, prefix: _KeptPrefix, texts: tuple[str, str]
    ) -> tuple[RenderedTurn, list[str]]:
        tokens = self._renderer.tokenizer
        pieces = tokens.split_text(texts[0])
        return RenderedTurn(np.concatenate([prefix.ids, tokens.join_ids(pieces)]), *texts), pieces

    def _extend_prefix(
        self, turn: _TurnInput, prefix: _KeptPrefix, written: RenderedTurn, pieces: list[str]
    ) -> None:
        """Keep as much of this prompt as the next prompts will start with."""
        self._prefix = prefix
        at = self._find_stable_end(turn.messages, prefix.messages)
        behind = self._render_after(turn, at, turn.messages[at:], generation=True) if at else None
        if behind is None or not written.prompt_text.endswith(behind):
            return
        cut = len(written.prompt_text) - len(behind)
        ends = list(accumulate(map(len, pieces)))
        # Texts and special tokens alternate: a cut must be before a special token.
        if cut not in ends[::2]:
            return
        upto = 2 * ends[::2].index(cut) + 1
        size = len(prefix.ids) + len(self._renderer.tokenizer.join_ids(pieces[:upto]))
        self._prefix_texts.append(written.prompt_text[:cut])
        self._prefix = _KeptPrefix(at, len(self._prefix_texts), written.prompt_ids[:size])

    def _find_stable_end(self, messages: Sequence[Message], after: int) -> int:
        """Return the index after the newest reply that later turns cannot change; 0 if none is after `after`."""
        final_roles = {"user"}
        if not self._renderer.bridge_unsupported_reason:
            final_roles |= {"tool", "function"}
        for at in range(len(messages) - 1, after, -1):
            is_final = messages[at].get("role") in final_roles
            if is_final and messages[at - 1].get("role") == "assistant":
                return at
        return 0

    def _verify_turn(self, turn: _TurnInput, prefix: _KeptPrefix, written: RenderedTurn) -> None:
        # An empty prefix marks it as verified.
        self._last_turn = (turn, _EMPTY_PREFIX, written)
        begun = "".join(self._prefix_texts[: prefix.texts])
        before, whole = self._render_whole(turn)
        ids = self._renderer.tokenizer.encode(before)
        if (before, whole) != (
            begun + written.prompt_text,
            begun + written.full_text,
        ) or ids.tobytes() != (written.prompt_ids.tobytes()):
            raise TemplateMismatch
