"""Convert conversations to prompt ids, equal to transformers' `apply_chat_template` on the same folder.

Two mechanisms make the next turn cheap. Text between special tokens is tokenized once (`tokenizer.py`). Sampled tokens
are reused: if the template allows it, the prompt is the stored prompt ids, the stored response ids and the ids of the
new messages (`bridge_prompt`). Otherwise, and if the history changed, the prompt is rendered again, and replies whose
text is unchanged in it keep their sampled ids (`splice_replies`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openclaw_rl.errors import ModelError, RequestError
from openclaw_rl.render import template_probe
from openclaw_rl.render.call_body import ToolList
from openclaw_rl.render.chat_template import (
    NO_VARIABLES,
    ChatTemplate,
    SerializedTool,
    content_text,
    move_reasoning,
    serialize_tools,
    to_template_message,
)
from openclaw_rl.render.control_tokens import ControlTokenText
from openclaw_rl.render.degradation import Shown, render_degraded
from openclaw_rl.render.derived_format import derive_format, derive_think_tags
from openclaw_rl.render.detokenizer import Detokenizer
from openclaw_rl.render.families import CallForm, DerivedFamily, ModelFamily, detect_family
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.reply_parser import PlainTextParser, ReplyDecoder
from openclaw_rl.render.splice import PromptPiece, ReplySplicer, SampledReply
from openclaw_rl.render.template_probe import CUT_MARKER
from openclaw_rl.render.tokenizer import CachedTokenizer
from openclaw_rl.types import Ids, Message

# Tokens at the end of a prompt that are searched for an opened reasoning tag.
_PROMPT_TAIL_TOKENS = 64
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """Prompt ids. `thinking`: the prompt ends inside reasoning, so the reply starts with reasoning."""

    prompt_ids: Ids  # [P]
    thinking: bool


class Renderer:
    """Chat template and tokenizer of one model. Thread-safe.

    `literal_text`: control tokens in messages, tools and variables are encoded as plain text. If False, they act, as
    with transformers' `apply_chat_template`. `acting_tokens`: those that act, with `literal_text` because the tokenizer
    cannot encode them as text. Rendered text contains marks (`control_tokens`), which have no ids.
    `family`: format of reasoning and tool calls. `bridge_unsupported_reason`: why stored ids cannot be extended turn
    by turn with this template, or None. `history_description`: text on what the template does to earlier turns.
    `reads_calls`: the calls that the template writes, if it writes any, are read.
    """

    def __init__(self, files: ModelFiles, *, literal_text: bool = True) -> None:
        self.files = files
        self.tokenizer = CachedTokenizer(files)
        self.template = ChatTemplate(files.templates, files.specials)
        tokens = self.tokenizer.control_ids
        literal = frozenset(filter(self.tokenizer.can_be_text, tokens) if literal_text else ())
        self._literal = ControlTokenText(literal, self.template.texts)
        self.acting_tokens = tokens.keys() - literal
        self._acting = ControlTokenText(self.acting_tokens, self.template.texts)
        self.family = detect_family(files.templates, self.tokenizer.special_ids)
        self.family = self._derive_family(self.family)
        self.stop_token_ids = self._find_stop_ids()
        self.context_length = files.context_length
        self.hint_format = files.hint_format
        self.detokenizer = self._make_detokenizer(tools=True)
        self._detokenizer_without_tools = self._make_detokenizer(tools=False)
        self.vocabulary_size = int(self.tokenizer.backend.get_vocab_size(with_added_tokens=True))
        self.end_of_turn: str | None = None
        self.bridge_unsupported_reason: str | None = None
        past = template_probe.probe_behaviour(self._try_render, self.family)
        self.bridge_unsupported_reason = self._find_bridge_problem(past)
        self.history_description = _describe_history(past, self.bridge_unsupported_reason)
        self.reads_calls = template_probe.reads_calls(self._try_render, self.family)
        self._splicer = ReplySplicer(
            self.tokenizer,
            self.detokenizer,
            template_probe.reply_anchors(self._try_render, self.tokenizer.split_text),
        )

    def _derive_family(self, detected: ModelFamily) -> ModelFamily:
        """Return a family derived from the template, if that reads its calls and the detected one does not."""
        if template_probe.reads_calls(self._try_render, detected):
            return detected
        calls = derive_format(self._try_render)
        if calls is None:
            return detected
        think = detected.think_tags
        if not any(think[1] in text for text in self.files.templates.values()):
            think = derive_think_tags(self._try_render, calls) or think
        derived = DerivedFamily(think, calls, self.tokenizer.special_ids)
        return derived if template_probe.reads_calls(self._try_render, derived) else detected

    def _find_stop_ids(self) -> tuple[int, ...]:
        names = [self.files.specials.get("eos_token"), *self.family.stop_tokens]
        stops = list(self.files.eos_ids)
        for name in filter(None, names):
            token_id = self.tokenizer.backend.token_to_id(name)
            if token_id is not None:
                stops.append(token_id)
        if not stops:
            raise ModelError(
                f"{self.files.folder}: no end-of-turn token (eos_token_id in generation_config.json)"
            )
        return tuple(dict.fromkeys(stops))

    def _make_detokenizer(self, *, tools: bool) -> Detokenizer:
        return Detokenizer(
            self.tokenizer.backend, self.stop_token_ids, self.family.kept_tokens(tools=tools)
        )

    # Whole prompts.

    def prepare_message(self, message: Message) -> dict[str, Any]:
        """Return a client's message in the form that this model's template accepts."""
        ready = to_template_message(message)
        if self.family.think_tags[1] in self._literal.tokens:
            ready = move_reasoning(ready, self.family.think_tags)
        return self._mark_message(self.family.adapt_message(ready))

    def with_reasoning(self, ready: Mapping[str, Any], reasoning: str) -> dict[str, Any]:
        """Return a prepared reply with the reasoning that its client left out, in case the template renders it."""
        whole = {**ready, "thinking": reasoning, "reasoning_content": reasoning}
        return self._mark_message(self.family.adapt_message(whole))

    def _mark_message(self, ready: dict[str, Any]) -> dict[str, Any]:
        return {**self._literal.mark(_without_role(ready)), "role": ready["role"]}

    def prepare_tools(self, tools: ToolList) -> list[SerializedTool]:
        """Return a client's tools in the form that `render_text` takes."""
        return serialize_tools(self._literal.mark(tools))

    def has_acting_token(self, value: Any) -> bool:
        """Whether prepared tools, or the value of a variable, have the text of a control token that acts as such."""
        return self._acting.occurs_in(value)

    def message_has_acting_token(self, ready: Mapping[str, Any]) -> bool:
        """Whether a prepared message has the text of a control token that acts as such."""
        return self._acting.occurs_in(_without_role(ready))

    def has_literal_token(self, value: Any) -> bool:
        """Whether prepared messages or tools, or variables, have the text of a whole control token that is no token."""
        return self._literal.occurs_whole(value)

    def text(
        self,
        messages: Sequence[Message],
        tools: ToolList = (),
        *,
        generation: bool = True,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """Render the conversation as text, as it was sent. Raises `RequestError` if the template rejects it."""
        ready = [self.prepare_message(m) for m in messages]
        return self.render_text(
            ready, self.prepare_tools(tools), generation=generation, variables=variables
        )

    def render_text(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[SerializedTool],
        *,
        generation: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Render prepared messages and tools as text. Raises as `text` does."""
        marked = {name: self._literal.mark(value) for name, value in variables.items()}
        return self.template.render(messages, tools, generation=generation, variables=marked)

    def render_shown(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[SerializedTool],
        *,
        generation: bool,
        variables: Mapping[str, Any],
    ) -> Shown:
        """Render prepared messages and tools as text, changed where the template refuses them as they were sent.

        Raises `RequestError` if the template rejects them after every change, too, or a variable is reserved.
        """

        def render(some: Sequence[dict[str, Any]]) -> str:
            return self.render_text(some, tools, generation=generation, variables=variables)

        return render_degraded(render, messages)

    def render(
        self,
        messages: Sequence[Message],
        tools: ToolList = (),
        *,
        generation: bool = True,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> RenderedPrompt:
        """Render the conversation as prompt ids. `variables`: template variables such as `enable_thinking`.

        Raises as `render_shown` does.
        """
        shown = self.render_shown(
            [self.prepare_message(m) for m in messages],
            self.prepare_tools(tools),
            generation=generation,
            variables=variables,
        )
        return self.tokenize(shown.text)

    def tokenize(self, text: str) -> RenderedPrompt:
        return RenderedPrompt(
            prompt_ids=self.tokenizer.encode(text), thinking=self.family.opens_thinking(text)
        )

    def opens_thinking(self, prompt_ids: Ids) -> bool:
        """Return `RenderedPrompt.thinking` for existing prompt ids."""
        last = prompt_ids[-_PROMPT_TAIL_TOKENS:].tolist()
        return self.family.opens_thinking(
            self.tokenizer.backend.decode(last, skip_special_tokens=False)
        )

    def prepare_cut_message(self, message: Message) -> dict[str, Any]:
        """Return a prepared assistant message after whose text `cut_text` cuts the rendered prompt."""
        return self.prepare_message(
            {**message, "content": content_text(message.get("content")) + CUT_MARKER}
        )

    def cut_text(self, text: str) -> str:
        """Return the rendered prompt up to the cut. Raises `RequestError` if the template leaves the message out."""
        end = text.rfind(CUT_MARKER)
        if end < 0:
            raise RequestError(
                "the model's chat template leaves out the message to continue", param="messages"
            )
        return text[:end]

    # Bridged prompts.

    def text_after(self, reply: Message, new: Sequence[Message], *, tools: bool) -> str | None:
        """Return the rendered text from after the end-of-turn token of `reply` to the start of the next reply.

        Rendered after a short placeholder conversation and cut at a marker. None if it cannot be determined.
        """
        if self.bridge_unsupported_reason or self.end_of_turn is None:
            return None
        placeholder = placeholder_reply(reply)
        if self.end_of_turn in str(placeholder.get("tool_calls")):
            return None
        conversation = [{"role": "user", "content": "x"}, placeholder, *new]
        try:
            text = self.text(conversation, [_PROBE_TOOL] if tools else ())
        except RequestError:
            # The caller renders the whole conversation, which reports the error.
            return None
        _, _, rest = text.partition(CUT_MARKER)
        _, end, after = rest.partition(self.end_of_turn)
        return after if end else None

    def bridge_prompt(
        self, prompt_ids: Ids, response_ids: Ids, new: RenderedPrompt
    ) -> RenderedPrompt | None:
        """Concatenate stored ids, an end-of-turn token if the reply was cut short, and `new` (ids of `text_after`).

        None if the reply ended with another stop token than the template's: the template then writes another history.
        """
        end = self.tokenizer.special_ids[self.end_of_turn or ""]
        last = int(response_ids[-1]) if len(response_ids) else -1
        if last != end and last in self.stop_token_ids:
            return None
        closing = np.array([] if last == end else [end], dtype=np.int32)
        ids = np.concatenate([prompt_ids, response_ids, closing, new.prompt_ids]).astype(
            np.int32, copy=False
        )
        return RenderedPrompt(prompt_ids=ids, thinking=new.thinking)

    def make_sampled_reply(self, response_ids: Ids, reasoning: str) -> SampledReply | None:
        """Return a reply for `splice_replies`; None if the model does not support splicing or the reply is empty."""
        return self._splicer.make_sampled_reply(response_ids, reasoning, self.stop_token_ids)

    def splice_replies(self, text: str, replies: Sequence[SampledReply]) -> list[PromptPiece]:
        """Replace each reply that occurs verbatim in the prompt's text by its sampled ids.

        `replies` are in conversation order. Decoding the pieces gives `text` again.
        """
        return self._splicer.splice(text, replies)

    def _try_render(
        self, messages: Sequence[Message], tools: ToolList, generation: bool
    ) -> str | None:
        try:
            return self.text(messages, tools, generation=generation)
        except RequestError:
            return None

    def _find_bridge_problem(self, past: template_probe.TemplateBehaviour) -> str | None:
        """Return why bridging is unsupported, or None. Tests on small conversations that earlier text has no effect."""
        if not self.tokenizer.is_segmented:
            return "its tokenizer does not treat the text between special tokens independently"
        self.end_of_turn = self._find_end_of_turn()
        if self.end_of_turn is None:
            return "its template does not end a reply with one of the stop tokens"
        if past.reasoning:
            return f"its template {past.reasoning}"
        tests = [
            self._can_compose(messages, tools)
            for messages, tools in template_probe.sample_conversations()
        ]
        if False in tests:
            return "its template depends on what came before a reply"
        return None if True in tests else "its template refuses every sample conversation"

    def _can_compose(self, messages: list[Message], tools: ToolList) -> bool | None:
        """Return whether each reply of a conversation can be bridged; None if the template refuses the conversation.

        A template may support no tools or no system message.
        """
        whole = self._try_render(messages, tools, True)
        if whole is None:
            return None
        replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        return all(self._is_composable(messages, tools, at, whole) for at in replies)

    def _find_end_of_turn(self) -> str | None:
        text = self._try_render(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": CUT_MARKER}],
            (),
            False,
        )
        if text is None:
            return None
        after = text[text.find(CUT_MARKER) + len(CUT_MARKER) :].lstrip()
        return next(
            (
                t
                for t, i in self.tokenizer.special_ids.items()
                if i in self.stop_token_ids and after.startswith(t)
            ),
            None,
        )

    def _is_composable(self, messages: list[Message], tools: ToolList, at: int, whole: str) -> bool:
        end = self.end_of_turn
        after = self.text_after(messages[at], messages[at + 1 :], tools=bool(tools))
        if after is None or end is None or not whole.endswith(end + after):
            return False
        upto_reply = whole[: len(whole) - len(after) - len(end)]
        return upto_reply.count(end) == self.text(messages[:at], tools).count(end)

    # Replies.

    def new_reply_decoder(
        self, *, thinking: bool, tools: ToolList, stops: Sequence[str] = (), min_tokens: int = 0
    ) -> ReplyDecoder:
        """Return a new decoder for the tokens of one reply."""
        stream = (self.detokenizer if tools else self._detokenizer_without_tools).new_stream()
        return ReplyDecoder(
            stream, self.family.new_parser(thinking=thinking, tools=tools), stops, min_tokens
        )

    def new_text_decoder(self, stops: Sequence[str]) -> ReplyDecoder:
        """Return a new decoder for a text completion, in which tags have no meaning."""
        return ReplyDecoder(self.detokenizer.new_stream(), PlainTextParser(), stops)

    def encode_completion_prompt(self, text: str) -> Ids:
        """Return the ids of a text that the model continues, with the tokens that its tokenizer puts before a text."""
        ids = self.tokenizer.backend.encode_batch([text], add_special_tokens=True)[0].ids
        return np.array(ids, dtype=np.int32)

    def call_form(self, name: str) -> CallForm | None:
        """Return the literal text around a call's JSON arguments; None if this model's arguments are not JSON."""
        return self.family.call_form(name)


def _describe_history(past: template_probe.TemplateBehaviour, unbridged: str | None) -> str:
    if unbridged is None:
        return f"{past.calls or 'keeps everything'}; a prompt continues from the tokens of the previous turn"
    reason = past.description or unbridged.removeprefix("its template ")
    return f"{reason}; prompts are rendered again, and replies keep their tokens where the text is unchanged"


def _without_role(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of a message that are data. Templates compare the role, and write it into their own tags."""
    return {key: value for key, value in message.items() if key != "role"}


def placeholder_reply(reply: Message) -> dict[str, Any]:
    """Return a reply of the same structure (same call names and ids) whose content is the marker."""
    out: dict[str, Any] = {"role": "assistant", "content": CUT_MARKER}
    calls = reply.get("tool_calls")
    if calls:
        out["tool_calls"] = [_placeholder_call(call) for call in calls]
    return out


def _placeholder_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["function"]["name"], "arguments": {"x": CUT_MARKER}}
    return {key: call[key] for key in ("id", "type") if key in call} | {"function": function}
