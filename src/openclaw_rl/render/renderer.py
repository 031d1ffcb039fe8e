"""Conversations to prompt ids, equal to transformers' `apply_chat_template` on the same folder, and incrementally.

Two things make the next turn cheap. Text between special tokens is tokenised once (`tokens.py`). And where the history
is a stored exchange, the prompt is the stored prompt ids, the stored response ids, and the ids of what is new
(`bridge`): sampled tokens are never derived again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openclaw_rl.errors import ModelError, RequestError
from openclaw_rl.render.detok import Detokenizer
from openclaw_rl.render.model_files import ModelFiles
from openclaw_rl.render.parse import THINK, ReplyText
from openclaw_rl.render.template import ChatTemplate, for_template, ready_tools
from openclaw_rl.render.tokens import Tokens
from openclaw_rl.types import Ids, Message

log = logging.getLogger(__name__)

Tools = Sequence[Mapping[str, Any]]
_CUT = "Xq7openclaw0cut0here7qX"
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A prompt. `thinking`: it ends with an open <think>, so the reply begins as reasoning."""

    prompt_ids: Ids  # [P]
    thinking: bool


class Renderer:
    """One model's chat template and tokenizer. Safe to call from several threads.

    `unbridged` says why prompts cannot be bridged with this template; None when they can.
    """

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self.tokens = Tokens(files)
        self.template = ChatTemplate(files.templates, files.specials)
        self.stop_token_ids = self._stops()
        self.context_length = files.context_length
        self.detokenizer = Detokenizer(self.tokens.tokenizer, self.stop_token_ids)
        self.vocabulary = int(self.tokens.tokenizer.get_vocab_size(with_added_tokens=True))
        self.end_of_turn: str | None = None
        self.unbridged: str | None = None
        self.unbridged = self._probe()
        if self.unbridged:
            log.warning("prompts are rendered anew in every turn: %s", self.unbridged)

    def _stops(self) -> tuple[int, ...]:
        eos = self.files.specials.get("eos_token")
        named = self.tokens.tokenizer.token_to_id(eos) if eos else None
        stops = dict.fromkeys([*self.files.eos_ids, *([] if named is None else [named])])
        if not stops:
            raise ModelError(f"{self.files.folder}: no end-of-turn token (eos_token_id in generation_config.json)")
        return tuple(stops)

    # Whole prompts.

    def text(self, messages: Sequence[Message], tools: Tools = (), *, generation: bool = True) -> str:
        """The template's text. Raises `RequestError` when the template refuses the conversation."""
        return self.template.render([for_template(m) for m in messages], ready_tools(tools), generation=generation)

    def render(self, messages: Sequence[Message], tools: Tools = (), *, generation: bool = True) -> Rendered:
        """Raises `RequestError` when the template refuses the conversation."""
        return self.tokenise(self.text(messages, tools, generation=generation))

    def tokenise(self, text: str) -> Rendered:
        return Rendered(prompt_ids=self.tokens.encode(text), thinking=opens_thinking(text))

    # Bridged prompts.

    def text_after(self, reply: Message, new: Sequence[Message], *, tools: bool) -> str | None:
        """What the template puts between the end of `reply`'s turn (its token not included) and the next reply.

        Rendered behind a conversation that stands in for the real one, and cut at a marker. None: cannot be told.
        """
        if self.unbridged or self.end_of_turn is None:
            return None
        stand_in = _stand_in(reply)
        if self.end_of_turn in str(stand_in.get("tool_calls")):
            return None
        try:
            text = self.text([{"role": "user", "content": "x"}, stand_in, *new], [_TOOL] if tools else ())
        except RequestError:
            return None  # the whole conversation is rendered instead, and says what is wrong
        cut = text.find(_CUT)
        end = text.find(self.end_of_turn, cut) if cut >= 0 else -1
        return text[end + len(self.end_of_turn) :] if end >= 0 else None

    def bridge(self, prompt_ids: Ids, response_ids: Ids, new: Rendered) -> Rendered | None:
        """Stored ids, an end-of-turn token where the reply was cut short, and `new`: the ids of `text_after`.

        None when the reply ended with another stop token than the template's: then only the template knows how the
        history looks.
        """
        end = self.tokens.special_ids[self.end_of_turn or ""]
        last = int(response_ids[-1]) if len(response_ids) else -1
        if last != end and last in self.stop_token_ids:
            return None
        closing = np.array([] if last == end else [end], dtype=np.int32)
        ids = np.concatenate([prompt_ids, response_ids, closing, new.prompt_ids]).astype(np.int32, copy=False)
        return Rendered(prompt_ids=ids, thinking=new.thinking)

    def _probe(self) -> str | None:
        """Does what follows a reply depend on nothing but the reply and what follows? Tried on small conversations."""
        if not self.tokens.segmented:
            return "its tokenizer does not treat the text between special tokens independently"
        self.end_of_turn = self._find_end_of_turn()
        if self.end_of_turn is None:
            return "its template does not end a reply with one of the stop tokens"
        tried = 0
        for messages, tools in _samples():
            try:
                whole = self.text(messages, tools)
            except RequestError:
                continue  # no tools, or no system message, with this template
            for at, message in enumerate(messages):
                if message["role"] == "assistant":
                    tried += 1
                    if not self._composes(messages, tools, at, whole):
                        return "what its template puts after a reply depends on what came before"
        return None if tried else "its template refuses every sample conversation"

    def _find_end_of_turn(self) -> str | None:
        try:
            text = self.text(
                [{"role": "user", "content": "x"}, {"role": "assistant", "content": _CUT}], generation=False
            )
        except RequestError:
            return None
        after = text[text.find(_CUT) + len(_CUT) :].lstrip()
        return next(
            (t for t, i in self.tokens.special_ids.items() if i in self.stop_token_ids and after.startswith(t)), None
        )

    def _composes(self, messages: list[Message], tools: Tools, at: int, whole: str) -> bool:
        end = self.end_of_turn
        after = self.text_after(messages[at], messages[at + 1 :], tools=bool(tools))
        if after is None or end is None or not whole.endswith(end + after):
            return False
        upto_reply = whole[: len(whole) - len(after) - len(end)]
        return upto_reply.count(end) == self.text(messages[:at], tools).count(end)

    # Replies.

    def reply_text(self, *, thinking: bool, tools: bool, stops: Sequence[str] = ()) -> ReplyText:
        """A fresh reader for one reply's tokens."""
        return ReplyText(self.detokenizer.stream(), thinking=thinking, tools=tools, stops=stops)


def opens_thinking(text: str) -> bool:
    """Whether a prompt's text leaves <think> open."""
    return text[-64:].rstrip().endswith(THINK)


def _stand_in(reply: Message) -> dict[str, Any]:
    """A reply of the same shape (calls by the same names and ids) that holds the marker."""
    out: dict[str, Any] = {"role": "assistant", "content": _CUT}
    if calls := reply.get("tool_calls"):
        out["tool_calls"] = [
            {
                **{k: c[k] for k in ("id", "type") if k in c},
                "function": {"name": c["function"]["name"], "arguments": {"x": _CUT}},
            }
            for c in calls
        ]
    return out


def _samples() -> list[tuple[list[Message], Tools]]:
    system: Message = {"role": "system", "content": "s1"}
    ask: Message = {"role": "user", "content": "u1"}
    answer: Message = {"role": "assistant", "content": "a1"}
    more: Message = {"role": "user", "content": "u2\n"}
    call = {"id": "callabc12", "type": "function", "function": {"name": "f", "arguments": {"k": "v"}}}
    one: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    two: Message = {"role": "assistant", "content": "c", "tool_calls": [call, call | {"id": "callabc13"}]}
    result: Message = {"role": "tool", "content": "r1", "tool_call_id": "callabc12"}
    other: Message = {"role": "tool", "content": "r2", "tool_call_id": "callabc13"}
    tool = {
        "type": "function",
        "function": {"name": "g", "description": "e", "parameters": {"type": "object", "properties": {"k": {}}}},
    }
    return [
        ([ask, answer, more], ()),
        ([system, ask, answer, more, answer, more], ()),
        ([system, ask, answer, more], [tool]),
        ([system, ask, one, result], [tool, tool]),
        ([system, ask, one, result, answer, more], [tool]),
        ([ask, answer, more, two, result, other], [tool]),
    ]
