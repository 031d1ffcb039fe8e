"""Model families: how each writes reasoning and tool calls. Detected from the template, not from the model's name."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

from openclaw_rl.render import harmony, tool_calls
from openclaw_rl.render.reply_parser import Parser
from openclaw_rl.render.tag_parser import MarkedParser, Think
from openclaw_rl.render.tool_calls import CallReader
from openclaw_rl.render.tool_calls_xml import XmlCalls

Tools = Sequence[Mapping[str, Any]]
THINK: Think = ("<think>", "</think>")
BRACKETS: Think = ("[THINK]", "[/THINK]")
_OPEN_CHARS = 64  # end of the prompt that is searched for an opened reasoning tag


class CallForm(NamedTuple):
    """Literal text around the JSON arguments of one call; special tokens appear in their written form."""

    before: str
    after: str


class Family(ABC):
    """Reply format of one model family. `name` is only shown to users, no code depends on it."""

    name: ClassVar[str]
    stops: ClassVar[tuple[str, ...]] = ()  # tokens that end a reply, in addition to those of the model folder
    reader: ClassVar[type[CallReader]] = tool_calls.HermesCalls

    def __init__(self, think: Think = THINK) -> None:
        self.think = think

    @staticmethod
    @abstractmethod
    def fits(template: str, tokens: Collection[str]) -> bool:
        """Whether a template and the tokenizer's special tokens belong to this family."""

    @abstractmethod
    def call_form(self, name: str) -> CallForm | None:
        """Return the format of a call of the function `name`; None if its arguments are not JSON."""

    def kept(self, *, tools: bool) -> frozenset[str]:
        """Return the special tokens that the parser must see as text."""
        return frozenset({*self.think, *(self.reader.hidden if tools else ())})

    def parser(self, *, thinking: bool, tools: Tools) -> Parser:
        """Return a new parser for one reply. `thinking`: the prompt ends inside reasoning."""
        hidden = self.think if self.think is BRACKETS else ()
        reader = self._reader(tools) if tools else None
        return MarkedParser(
            self.think, thinking=thinking, reader=reader, hidden=hidden + (reader.hidden if reader else ())
        )

    def _reader(self, tools: Tools) -> CallReader:
        return self.reader()

    def opens_thinking(self, text: str) -> bool:
        """Whether a prompt's text ends inside reasoning."""
        return text[-_OPEN_CHARS:].rstrip().endswith(self.think[0])

    def fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message in the form that this family's templates accept."""
        return message


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


class Hermes(Family):
    """Hermes, Qwen2.5, Qwen3 and unknown models: JSON between <tool_call> tags."""

    name = "hermes"

    @staticmethod
    def fits(template: str, tokens: Collection[str]) -> bool:
        return tool_calls.CALL in template

    def kept(self, *, tools: bool) -> frozenset[str]:
        return frozenset({*self.think, tool_calls.CALL, tool_calls.END_CALL})

    def call_form(self, name: str) -> CallForm | None:
        return CallForm(f'{tool_calls.CALL}\n{{"name": {_quoted(name)}, "arguments": ', f"}}\n{tool_calls.END_CALL}")


class Xml(Hermes):
    """Qwen3-Coder, Qwen3.5 and later: each argument in its own tag."""

    name = "qwen-xml"

    @staticmethod
    def fits(template: str, tokens: Collection[str]) -> bool:
        return "<function=" in template and tool_calls.CALL in template

    def _reader(self, tools: Tools) -> CallReader:
        return XmlCalls(tools)

    def call_form(self, name: str) -> CallForm | None:
        return None


class Llama(Family):
    """Llama 3.x: a call is one JSON object."""

    name = "llama"
    stops = ("<|eom_id|>",)
    reader = tool_calls.LlamaCalls

    @staticmethod
    def fits(template: str, tokens: Collection[str]) -> bool:
        return "<|start_header_id|>" in template

    def call_form(self, name: str) -> CallForm | None:
        return CallForm(f'{{"name": {_quoted(name)}, "parameters": ', "}")


class Mistral(Family):
    """Mistral. `arrays`: the older format with one JSON array for all calls."""

    name = "mistral"
    reader = tool_calls.MistralCalls

    def __init__(self, think: Think = THINK, *, arrays: bool = False) -> None:
        super().__init__(think)
        self._arrays = arrays

    @staticmethod
    def fits(template: str, tokens: Collection[str]) -> bool:
        return tool_calls.TOOL_CALLS in template or (tool_calls.TOOL_CALLS in tokens and "[INST]" in template)

    def call_form(self, name: str) -> CallForm | None:
        if self._arrays:
            return CallForm(f'{tool_calls.TOOL_CALLS}[{{"name": {_quoted(name)}, "arguments": ', "}]")
        return CallForm(f"{tool_calls.TOOL_CALLS}{name}{tool_calls.ARGS}", "")

    def fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """Replace call ids that are not nine letters and digits, because Mistral templates reject them."""
        out = dict(message)
        if made := out.get("tool_calls"):
            out["tool_calls"] = [c | {"id": short_id(str(c.get("id", "")))} for c in made]
        if "tool_call_id" in out:
            out["tool_call_id"] = short_id(str(out["tool_call_id"]))
        return out


def short_id(id: str) -> str:
    """Return an id of nine letters and digits: `id` itself if it is one, else a hash of it."""
    if len(id) == 9 and id.isascii() and id.isalnum():
        return id
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()[:9]


class DeepSeek(Family):
    """DeepSeek V3 and R1: calls between special tokens, JSON arguments in a code fence."""

    name = "deepseek"
    reader = tool_calls.DeepSeekCalls

    @staticmethod
    def fits(template: str, tokens: Collection[str]) -> bool:
        return tool_calls.DS_CALLS in template

    def call_form(self, name: str) -> CallForm | None:
        before = f"{tool_calls.DS_CALLS}{tool_calls.DS_CALL}function{tool_calls.DS_SEP}{name}\n```json\n"
        return CallForm(before, f"\n```{tool_calls.DS_END_CALL}{tool_calls.DS_END_CALLS}")

    def fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """Convert arguments to text and an empty content beside calls to None, as DeepSeek templates expect."""
        if not (made := message.get("tool_calls")):
            return message
        texts = [c | {"function": c["function"] | {"arguments": _as_text(c["function"]["arguments"])}} for c in made]
        return message | {"tool_calls": texts, "content": message.get("content") or None}


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


class Harmony(Family):
    """gpt-oss: messages in channels, see `harmony`."""

    name = "harmony"
    stops = (harmony.RETURN, harmony.CALL)

    @staticmethod
    def fits(template: str, tokens: Collection[str]) -> bool:
        return harmony.CHANNEL in template and harmony.MESSAGE in template

    def kept(self, *, tools: bool) -> frozenset[str]:
        return frozenset(harmony.TOKENS)

    def parser(self, *, thinking: bool, tools: Tools) -> Parser:
        return harmony.HarmonyParser(tools=bool(tools))

    def opens_thinking(self, text: str) -> bool:
        return False

    def call_form(self, name: str) -> CallForm | None:
        before = f" to=functions.{name}{harmony.CHANNEL}commentary json{harmony.MESSAGE}"
        return CallForm(before, "")

    def fit(self, message: dict[str, Any]) -> dict[str, Any]:
        """Move content beside a call into the reasoning: gpt-oss templates accept only one of the two."""
        if not (message.get("tool_calls") and message.get("content") and message.get("thinking")):
            return message
        joined = f"{message['thinking']}\n{message['content']}"
        return message | {"content": "", "thinking": joined, "reasoning_content": joined}


_KNOWN: tuple[type[Family], ...] = (Harmony, Xml, Hermes, DeepSeek, Mistral, Llama)


def family_of(templates: Mapping[str, str], tokens: Collection[str]) -> Family:
    """Return the family that matches the templates' text and the tokenizer's special tokens; Hermes if none does."""
    text = "\n".join(templates.values())
    think = BRACKETS if BRACKETS[0] in text or (BRACKETS[0] in tokens and THINK[0] not in text) else THINK
    kind = next((k for k in _KNOWN if k.fits(text, tokens)), Hermes)
    if kind is Mistral:
        return Mistral(think, arrays=tool_calls.ARGS not in text)
    return kind(think)
