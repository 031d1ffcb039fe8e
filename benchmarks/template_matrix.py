"""Which chat templates are rendered as transformers renders them, and whose replies are read back and spliced.

    python -m benchmarks.template_matrix [--folder FOLDER ...] [--page docs/guides/models.md]

The templates are those of TRL, and of further folders. Each gets a tokenizer of bytes and of its own special tokens.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openclaw_rl.errors import RequestError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.types import Message

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "models.md"
BEGIN = "<!-- templates: written by benchmarks/template_matrix.py -->\n"
END = "<!-- end of templates -->\n"
_SPECIAL = re.compile(
    r"<[|｜][^|｜<>\s]*[|｜]>|\[/?[A-Z_]+\]|<\|\w+>|<\w+\|>|</?(?:start|end)_of_\w+>"
)
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_CONTENT = "I have looked at it."
_THOUGHT = "They want to know about the weather."
_TEXT_TYPE = {"type": "string"}
_PROPERTIES = {"city": _TEXT_TYPE, "days": {"type": "integer"}, "deep": {"type": "boolean"}}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Looks {name}.",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": ["city"]},
        },
    }
    for name in ("get_weather", "get_time")
]


class Outcome(StrEnum):
    """What becomes of a reply: the best of these that holds."""

    SPLICED = "spliced"
    """It is read back exactly, and its sampled tokens stand in the next prompt."""
    READ = "read"
    """It is read back exactly. The template writes it otherwise when messages follow."""
    UNREAD = "**not read**"
    NOT_WRITTEN = "not written"
    """The template refuses it, or leaves its calls out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found for one template. `equal` of `rendered` conversations; the others are refused by both."""

    name: str
    family: str
    equal: int
    rendered: int
    replies: Mapping[str, Outcome]

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        return [self.name, self.family, f"{self.equal} of {self.rendered}", *self.replies.values()]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _reply(content: str, calls: Sequence[dict[str, Any]] = (), thought: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content}
    if thought:
        message |= {"reasoning_content": thought}
    if calls:
        message |= {"tool_calls": list(calls)}
    return message


def _call(number: int, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"callabc1{number}", "type": "function", "function": function}


def _result(number: int, name: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": f"callabc1{number}", "name": name, "content": text}


_WEATHER = _call(0, "get_weather", {"city": 'Ré "X"\nB', "days": 3, "deep": True})
_TIME = _call(1, "get_time", {"city": "Rome"})
_RESULTS = [_result(0, "get_weather", '{"rain": true}'), _result(1, "get_time", "12:00")]
REPLIES: dict[str, Message] = {
    "one call": _reply("", [_WEATHER]),
    "two calls": _reply("", [_WEATHER, _TIME]),
    "text and a call": _reply(_CONTENT, [_WEATHER]),
    "reasoning and a call": _reply("", [_WEATHER], _THOUGHT),
}


def conversations() -> Iterator[tuple[list[Message], list[dict[str, Any]]]]:
    """Yield 25 conversations with their tools."""
    system: Message = {"role": "system", "content": "Be brief.\nAnswer in English."}
    texts = ["hi", "  spaces around \n", "Zürich 東京 🙂", "a\n\n\nb <b>c</b> {x}", ""]
    for text in texts:
        yield [_user(text)], []
        yield [system, _user(text), _reply("Yes."), _user("Go on.")], []
    yield [_user("a"), _reply("b"), _user("c"), _reply("d"), _user("e")], []
    yield [_user("a"), _reply("b", thought=_THOUGHT), _user("c")], []
    yield [_user("a"), _reply("  b\n"), _user("c")], []
    yield [system, _user("a")], _TOOLS
    yield [_user("a")], _TOOLS[:1]
    yield [_user("a"), _reply("b"), _user("c")], _TOOLS
    for reply in REPLIES.values():
        results = _RESULTS[: len(reply["tool_calls"])]
        yield [_user("a"), reply, *results], _TOOLS
        yield [system, _user("a"), reply, *results, _reply("It rains."), _user("b")], _TOOLS
    loop = [REPLIES["one call"], _RESULTS[0]]
    yield [_user("a"), *loop, *loop, _reply("It rains."), _user("b")], _TOOLS


class Bench:
    """One template, with the program's renderer and with transformers' tokenizer."""

    def __init__(self, name: str, template: str, folder: Path) -> None:
        self.name = name
        self._template = template
        _write_folder(folder, template, self._end_of_turn(template, folder))
        self.reference = PreTrainedTokenizerFast.from_pretrained(str(folder))
        files = ModelFiles.from_path(str(folder))
        self.renderer = Renderer(files)
        self._acting = Renderer(files, literal_text=False)

    @staticmethod
    def _end_of_turn(template: str, folder: Path) -> str:
        """Return the tag behind a reply, or `</s>`, which every folder names as its end."""
        _write_folder(folder, template, "</s>")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
        try:
            messages = [_user("u"), _reply(_CONTENT)]
            text = str(tokenizer.apply_chat_template(messages, tokenize=False))
        except Exception:  # noqa: BLE001 - a template raises anything
            return "</s>"
        tag = _TAG.match(text.partition(_CONTENT)[2].lstrip())
        return tag[0] if tag else "</s>"

    def row(self) -> Row:
        """Return what is found."""
        pairs = [self._texts(*one) for one in conversations()]
        shown = [(text, references) for text, references in pairs if references]
        return Row(
            name=self.name,
            family=self.renderer.family.name,
            equal=sum(text in references for text, references in shown),
            rendered=len(shown),
            replies={kind: self._outcome(reply) for kind, reply in REPLIES.items()},
        )

    def _texts(
        self, messages: Sequence[Message], tools: list[dict[str, Any]]
    ) -> tuple[str | None, list[str]]:
        """Return the program's prompt and those of transformers, for each form of calls that the template may want.

        Texts of transformers in which calls are missing do not count: the template wants another form of them.
        """
        shown = self._shown(messages, tools, self._acting)
        texts = [
            self._reference_text(messages, tools, as_text, empty)
            for as_text in (False, True)
            for empty in ("", None)
        ]
        names = [
            call["function"]["name"]
            for message in messages
            for call in message.get("tool_calls", ())
        ]
        return shown, [
            text
            for text in texts
            if text is not None
            and all(text.count(name) >= (shown or "").count(name) for name in names)
        ]

    def _reference_text(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]],
        as_text: bool,
        empty: str | None,
    ) -> str | None:
        ready = [_for_transformers(one, as_text=as_text, empty=empty) for one in messages]
        try:
            return str(
                self.reference.apply_chat_template(
                    ready, tools=tools or None, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception:  # noqa: BLE001 - a template raises anything
            return None

    @staticmethod
    def _shown(
        messages: Sequence[Message],
        tools: list[dict[str, Any]],
        renderer: Renderer,
        *,
        generation: bool = True,
    ) -> str | None:
        try:
            return renderer.text(messages, tools, generation=generation)
        except RequestError:
            return None

    # Replies.

    def _outcome(self, reply: Message) -> Outcome:
        sample = self._sample(reply)
        if sample is None:
            return Outcome.NOT_WRITTEN
        text, is_thinking = sample
        ids = self.renderer.tokenizer.encode(text).tolist()
        if not ids or ids[-1] not in self.renderer.stop_token_ids:
            ids.append(self.renderer.stop_token_ids[0])
        decoder = self.renderer.new_reply_decoder(thinking=is_thinking, tools=_TOOLS)
        for token in ids[:-1]:
            decoder.push((token,))
        decoder.finish()
        message = decoder.parser.to_message()
        if _meaning(message) not in _meanings_of_text(reply, text):
            return Outcome.UNREAD
        return Outcome.SPLICED if self._is_spliced(ids, message) else Outcome.READ

    def _sample(self, reply: Message) -> tuple[str, bool] | None:
        """Return the text that a model samples for a reply, and whether its prompt opened reasoning."""
        messages = [_user("u"), reply]
        whole = self._shown(messages, _TOOLS, self.renderer, generation=False)
        if whole is None:
            results = _RESULTS[: len(reply["tool_calls"])]
            whole = self._shown([*messages, *results], _TOOLS, self.renderer, generation=False)
        opening = self._shown(messages[:1], _TOOLS, self.renderer)
        names = [call["function"]["name"] for call in reply["tool_calls"]]
        if whole is None or opening is None:
            return None
        text = whole.removeprefix(self._start_of(whole, opening))
        if any(name not in text for name in names):
            return None
        is_thinking = self.renderer.family.opens_thinking(opening) and (
            whole.startswith(opening) or self._closes_reasoning(text)
        )
        at = text.find(self._end, text.rfind(names[-1])) if self._end else -1
        return (text if at < 0 else text[:at]), is_thinking

    def _closes_reasoning(self, text: str) -> bool:
        """Whether a reply closes reasoning that its prompt opened."""
        opening_tag, closing_tag = self.renderer.family.think_tags
        before, tag, _ = text.partition(closing_tag)
        return bool(tag) and opening_tag not in before

    def _start_of(self, whole: str, opening: str) -> str:
        """Return the prompt before a reply; that of a history may leave out the reasoning that a prompt opens."""
        if whole.startswith(opening):
            return opening
        shorter = opening.rpartition(self.renderer.family.think_tags[0])[0]
        if shorter and whole.startswith(shorter):
            return shorter
        closed = self._shown([_user("u")], _TOOLS, self.renderer, generation=False) or ""
        return closed if whole.startswith(closed) else ""

    @cached_property
    def _end(self) -> str:
        """The text behind a reply."""
        messages = [_user("u"), _reply(_CONTENT)]
        text = self._shown(messages, [], self.renderer, generation=False) or ""
        return text.partition(_CONTENT)[2].strip()

    def _is_spliced(self, ids: Sequence[int], message: Message) -> bool:
        reasoning = str(message.get("reasoning_content", ""))
        sampled = self.renderer.make_sampled_reply(np.array(ids, dtype=np.int32), reasoning)
        if sampled is None:
            return False
        results = [
            {"role": "tool", "tool_call_id": call["id"], "name": name, "content": "r"}
            for call in message["tool_calls"]
            if (name := call["function"]["name"])
        ]
        text = self._shown([_user("u"), message, *results], _TOOLS, self.renderer)
        return text is not None and len(self.renderer.splice_replies(text, [sampled])) > 1


def _meaning(message: Message) -> tuple[list[Any], str, str]:
    """Return calls, text and reasoning."""
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    reasoning = str(message.get("reasoning_content", ""))
    return calls, str(message.get("content") or "").strip(), reasoning.strip()


def _meanings_of_text(reply: Message, text: str) -> list[tuple[list[Any], str, str]]:
    """Return what the text of a reply may mean: templates leave parts out, or write text beside calls as reasoning."""
    calls, content, reasoning = _meaning(reply)
    content = content if content in text else ""
    reasoning = reasoning if reasoning in text else ""
    as_reasoning = [(calls, "", content)] if content and not reasoning else []
    return [(calls, content, reasoning), *as_reasoning]


def _for_transformers(message: Message, *, as_text: bool, empty: str | None) -> dict[str, Any]:
    ready = dict(message)
    if "reasoning_content" in ready:
        ready["thinking"] = ready["reasoning_content"]
    if "tool_calls" in ready:
        ready["content"] = ready["content"] or empty
        if not as_text:
            ready["tool_calls"] = [_with_object(call) for call in ready["tool_calls"]]
    return ready


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    function["arguments"] = json.loads(function["arguments"])
    return {**call, "function": function}


def _write_folder(folder: Path, template: str, end: str) -> None:
    """Write a model folder without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={mark: n for n, mark in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = sorted({"<s>", "</s>", end, *_SPECIAL.findall(template)})
    tokenizer.add_special_tokens(
        [AddedToken(one, special=True, normalized=False) for one in special]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": "<s>", "eos_token": end, "pad_token": "</s>"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind | tokens), encoding="utf-8")
    config = {"model_type": "qwen3", "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def trl_templates() -> list[Path]:
    """Return the templates that TRL ships, without those for its trainers."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return sorted(path for path in folder.glob("*.jinja") if not path.stem.endswith("_training"))


def rows_of(paths: Sequence[Path], scratch: Path) -> list[Row]:
    """Return the rows of the templates in these files."""
    return [
        Bench(path.stem, path.read_text(encoding="utf-8"), scratch / path.stem).row()
        for path in paths
    ]


def table(rows: Sequence[Row]) -> str:
    """Return the table of the page, between its marks."""
    head = ["template", "format", "prompts equal", *REPLIES]
    lines = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{BEGIN}\n{body}\n{END}"


def table_in(page: str) -> str:
    """Return the table of a page with its marks. Raises `ValueError` without them."""
    start, end = page.index(BEGIN), page.index(END)
    return page[start : end + len(END)]


def main() -> None:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, nargs="*", default=[], help="of further templates")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    paths = trl_templates() + [
        path for each in given.folder for path in sorted(each.glob("*.jinja"))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        made = table(rows_of(paths, Path(scratch)))
    text = given.page.read_text(encoding="utf-8")
    given.page.write_text(text.replace(table_in(text), made), encoding="utf-8")


if __name__ == "__main__":
    main()
