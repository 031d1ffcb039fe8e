"""Model families: how each writes reasoning and tool calls. Detected from the template, not from the model's name."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

from openclaw_rl.render import harmony, tool_calls
from openclaw_rl.render.call_body import ToolList, tool_names
from openclaw_rl.render.derived_calls import DerivedCallReader
from openclaw_rl.render.derived_format import DerivedCallFormat
from openclaw_rl.render.reply_parser import ReplyParser
from openclaw_rl.render.tag_parser import TagParser, ThinkTags
from openclaw_rl.render.tool_calls import CallReader
from openclaw_rl.render.tool_calls_xml import XmlCallReader

THINK_TAGS: ThinkTags = ("<think>", "</think>")
BRACKET_TAGS: ThinkTags = ("[THINK]", "[/THINK]")
# End of the prompt that is searched for an opened reasoning tag.
_PROMPT_TAIL_CHARS = 64


class CallForm(NamedTuple):
    """Literal text around the JSON arguments of one call; special tokens appear in their written form."""

    before: str
    after: str


class ModelFamily(ABC):
    """Reply format of one model family. `name` is only shown to users, no code depends on it."""

    name: ClassVar[str]
    stop_tokens: ClassVar[
        tuple[str, ...]
    ] = ()  # tokens that end a reply, in addition to those of the model folder
    call_reader: ClassVar[type[CallReader]] = tool_calls.HermesCallReader

    def __init__(self, think: ThinkTags = THINK_TAGS) -> None:
        self.think_tags = think

    @staticmethod
    @abstractmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        """Whether a template and the tokenizer's special tokens belong to this family."""

    @abstractmethod
    def call_form(self, name: str) -> CallForm | None:
        """Return the format of a call of the function `name`; None if its arguments are not JSON."""

    def kept_tokens(self, *, tools: bool) -> frozenset[str]:
        """Return the special tokens that the parser must see as text."""
        return frozenset({*self.think_tags, *(self.call_reader.hidden_tokens if tools else ())})

    def new_parser(self, *, thinking: bool, tools: ToolList) -> ReplyParser:
        """Return a new parser for one reply. `thinking`: the prompt ends inside reasoning."""
        reader = self._new_call_reader(tools) if tools else None
        hidden = (self.think_tags if self.think_tags is BRACKET_TAGS else ()) + (
            reader.hidden_tokens if reader else ()
        )
        return TagParser(self.think_tags, thinking=thinking, reader=reader, hidden=hidden)

    def _new_call_reader(self, tools: ToolList) -> CallReader:
        return self.call_reader(tool_names(tools))

    def opens_thinking(self, text: str) -> bool:
        """Whether a prompt's text ends inside reasoning."""
        return text[-_PROMPT_TAIL_CHARS:].rstrip().endswith(self.think_tags[0])

    def adapt_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message in the form that this family's templates accept."""
        return message


def _json_string(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


class HermesFamily(ModelFamily):
    """Hermes, Qwen2.5, Qwen3 and unknown models: JSON between <tool_call> tags."""

    name = "hermes"

    @staticmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        return tool_calls.CALL in template

    def kept_tokens(self, *, tools: bool) -> frozenset[str]:
        return frozenset({*self.think_tags, tool_calls.CALL, tool_calls.END_CALL})

    def call_form(self, name: str) -> CallForm | None:
        before = f'{tool_calls.CALL}\n{{"name": {_json_string(name)}, "arguments": '
        return CallForm(before, f"}}\n{tool_calls.END_CALL}")


class QwenXmlFamily(HermesFamily):
    """Qwen3-Coder, Qwen3.5 and later: each argument in its own tag."""

    name = "qwen-xml"

    @staticmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        return "<function=" in template and tool_calls.CALL in template

    def _new_call_reader(self, tools: ToolList) -> CallReader:
        return XmlCallReader(tools)

    def call_form(self, name: str) -> CallForm | None:
        return None


class LlamaFamily(ModelFamily):
    """Llama 3.x: a call is one JSON object."""

    name = "llama"
    stop_tokens = ("<|eom_id|>",)
    call_reader = tool_calls.LlamaCallReader

    @staticmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        return "<|start_header_id|>" in template

    def call_form(self, name: str) -> CallForm | None:
        return CallForm(f'{{"name": {_json_string(name)}, "parameters": ', "}")


class MistralFamily(ModelFamily):
    """Mistral. `arrays`: the older format with one JSON array for all calls."""

    name = "mistral"
    call_reader = tool_calls.MistralCallReader

    def __init__(self, think: ThinkTags = THINK_TAGS, *, arrays: bool = False) -> None:
        super().__init__(think)
        self._uses_arrays = arrays

    @staticmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        return tool_calls.TOOL_CALLS in template or (
            tool_calls.TOOL_CALLS in tokens and "[INST]" in template
        )

    def call_form(self, name: str) -> CallForm | None:
        if self._uses_arrays:
            return CallForm(
                f'{tool_calls.TOOL_CALLS}[{{"name": {_json_string(name)}, "arguments": ', "}]"
            )
        return CallForm(f"{tool_calls.TOOL_CALLS}{name}{tool_calls.ARGS}", "")

    def adapt_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Replace call ids that are not nine letters and digits, because Mistral templates reject them."""
        out = dict(message)
        calls = out.get("tool_calls")
        if calls:
            out["tool_calls"] = [c | {"id": short_call_id(str(c.get("id", "")))} for c in calls]
        if "tool_call_id" in out:
            out["tool_call_id"] = short_call_id(str(out["tool_call_id"]))
        return out


def short_call_id(id: str) -> str:
    """Return an id of nine letters and digits: `id` itself if it is one, else a hash of it."""
    if len(id) == 9 and id.isascii() and id.isalnum():
        return id
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()[:9]


class DeepSeekFamily(ModelFamily):
    """DeepSeek V3 and R1: calls between special tokens, JSON arguments in a code fence."""

    name = "deepseek"
    call_reader = tool_calls.DeepSeekCallReader

    @staticmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        return tool_calls.DS_CALLS in template

    def call_form(self, name: str) -> CallForm | None:
        before = (
            f"{tool_calls.DS_CALLS}{tool_calls.DS_CALL}function{tool_calls.DS_SEP}{name}\n```json\n"
        )
        return CallForm(before, f"\n```{tool_calls.DS_END_CALL}{tool_calls.DS_END_CALLS}")

    def adapt_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Convert arguments to text and an empty content beside calls to None, as DeepSeek templates expect."""
        calls = message.get("tool_calls")
        if not calls:
            return message
        texts = [
            c
            | {
                "function": c["function"]
                | {"arguments": _arguments_text(c["function"]["arguments"])}
            }
            for c in calls
        ]
        return message | {"tool_calls": texts, "content": message.get("content") or None}


def _arguments_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


class HarmonyFamily(ModelFamily):
    """gpt-oss: messages in channels, see `harmony`."""

    name = "harmony"
    stop_tokens = (harmony.RETURN, harmony.CALL)

    @staticmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        return harmony.CHANNEL in template and harmony.MESSAGE in template

    def kept_tokens(self, *, tools: bool) -> frozenset[str]:
        return frozenset(harmony.HARMONY_TOKENS)

    def new_parser(self, *, thinking: bool, tools: ToolList) -> ReplyParser:
        return harmony.HarmonyParser(tool_names(tools) if tools else None)

    def opens_thinking(self, text: str) -> bool:
        return False

    def call_form(self, name: str) -> CallForm | None:
        before = f" to=functions.{name}{harmony.CHANNEL}commentary json{harmony.MESSAGE}"
        return CallForm(before, "")

    def adapt_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Move content beside a call into the reasoning: gpt-oss templates accept only one of the two."""
        if not (message.get("tool_calls") and message.get("content") and message.get("thinking")):
            return message
        joined = f"{message['thinking']}\n{message['content']}"
        return message | {"content": "", "thinking": joined, "reasoning_content": joined}


class DerivedFamily(ModelFamily):
    """A family that nobody wrote by hand: the format of its calls was derived from the template."""

    name = "derived"

    def __init__(
        self, think: ThinkTags, calls: DerivedCallFormat, special: Collection[str]
    ) -> None:
        """`special`: special tokens of the tokenizer."""
        super().__init__(think)
        self._calls = calls
        self._special = special

    @staticmethod
    def matches_template(template: str, tokens: Collection[str]) -> bool:
        """Chosen by what the template writes, not by its text."""
        return False

    def kept_tokens(self, *, tools: bool) -> frozenset[str]:
        literals = [*self.think_tags, *(self._calls.literals if tools else ())]
        return frozenset(
            {*self.think_tags}
            | {token for token in self._special if any(token in one for one in literals)}
        )

    def _new_call_reader(self, tools: ToolList) -> CallReader:
        return DerivedCallReader(self._calls, tools, self._special)

    def call_form(self, name: str) -> CallForm | None:
        """Return None: a call is not forced in a format that was derived."""
        return None


_FAMILIES = (HarmonyFamily, QwenXmlFamily, HermesFamily, DeepSeekFamily, MistralFamily, LlamaFamily)


def detect_family(templates: Mapping[str, str], tokens: Collection[str]) -> ModelFamily:
    """Return the family that matches the templates' text and the tokenizer's special tokens; Hermes if none does."""
    text = "\n".join(templates.values())
    brackets = BRACKET_TAGS[0] in text or (BRACKET_TAGS[0] in tokens and THINK_TAGS[0] not in text)
    think = BRACKET_TAGS if brackets else THINK_TAGS
    kind = next((k for k in _FAMILIES if k.matches_template(text, tokens)), HermesFamily)
    if kind is MistralFamily:
        return MistralFamily(think, arrays=tool_calls.ARGS not in text)
    return kind(think)
