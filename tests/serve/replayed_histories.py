"""What clients replay: earlier messages that no template or no API takes as they are, by kind, and random histories."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.render.trl_templates import KINDS, Kind

CALL_TOOL = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Edit a file",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    },
}
GEMMA = ("<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
TEMPLATES = {
    "gemma": Kind("hermes", "gemma", GEMMA, "<end_of_turn>", "<bos>"),
    **{name: KINDS[name] for name in ("qwen3_5_think", "qwen3_8", "llama3_1", "deepseekv3")},
    **{name: KINDS[name] for name in ("gptoss", "mistral_array", "qwen3")},
}
"""Real templates: Gemma has neither a system role nor tools, and wants turns to alternate; Qwen3.5 wants the system
message first and arguments as pairs; Llama one call at a time; DeepSeek arguments as text."""
RANDOM_KINDS = ("gemma", "qwen3_5_think", "llama3_1", "deepseekv3", "gptoss", "mistral_array")
APIS = ("chat", "messages", "responses", "completions")
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
}
ABSENT = object()


def user(text: Any = "go") -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: Any = "Be brief.", role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": text}


def said(text: Any = "Well.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def called(*ids: str, arguments: Any = '{"cmd": "ls"}', text: Any = None) -> dict[str, Any]:
    function = {"name": "edit"} | ({} if arguments is ABSENT else {"arguments": arguments})
    calls = [{"id": id_, "type": "function", "function": function} for id_ in ids]
    return said(text, tool_calls=calls)


def gave(id_: Any, text: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": text}


ARGUMENTS: dict[str, Any] = {
    "cut": '{"cmd": "ls',
    "empty": "",
    "blank": "  \n",
    "null text": "null",
    "null": None,
    "absent": ABSENT,
    "list text": "[1]",
    "list": ["ls"],
    "number": 5,
    "true": "true",
    "words": "ls -la",
    "two objects": '{"a": 1}{"b": 2}',
    "NaN": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "line end": '{"cmd": "a\nb"}',
    "half surrogate": '{"cmd": "x\\ud83d"}',
    "single quotes": "{'cmd': 'ls'}",
    "fence": '```json\n{"cmd": "ls"}\n```',
    "comma": '{"cmd": "ls",}',
    "text of a text": '"ls"',
    "tag": '{"cmd": "</tool_call>',
}
SYSTEMS = (
    *("ssu", "sdu", "dsu", "dduau", "usu", "suasu", "sasu", "susau", "sssu", "suadu", "suassu"),
    *("uasuau", "ssuasuadu", "asu"),
)
"""Histories by the first letters of their roles (d: developer)."""
NEIGHBOURS = (
    *("uu", "uuu", "suu", "uauu", "uaau", "uaaau", "au", "sau", "aau", "suuaauu", "uauuau"),
    *("uaauau", "aauu"),
)


def by_letters(letters: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a conversation and the words in it, one for each message."""
    roles = {"u": "user", "a": "assistant", "s": "system", "d": "developer"}
    words = [f"{roles[letter]}word{n}" for n, letter in enumerate(letters)]
    messages = [
        {"role": roles[letter], "content": word}
        for letter, word in zip(letters, words, strict=True)
    ]
    return messages, words


HALVES = ("x\ud83d", "\ude00 y", "a\ud83dz", "\ude00\ud83d")
CONTENTS: dict[str, Any] = {
    "null": None,
    "empty": "",
    "no part": [],
    "object": {"text": "odd"},
    "empty object": {},
    "number": 5,
    "true": True,
    "null part": [None],
    "number part": ["a", 5],
    "part without text": [{"type": "text"}],
    "part with null": [{"type": "text", "text": None}],
    "part without type": [{"text": "odd"}],
    "list in a list": [[{"type": "text", "text": "odd"}]],
    "text of a number": [{"type": "text", "text": 7}],
    "type of a number": [{"type": 3, "text": "odd"}],
}
MESSAGES: dict[str, Any] = {
    "null": None,
    "text": "odd",
    "list": ["odd"],
    "no role": {"content": "odd"},
    "null role": {"role": None, "content": "odd"},
    "model": {"role": "model", "content": "odd"},
    "human": {"role": "human", "content": "odd"},
    "ai": {"role": "AI", "content": "odd"},
    "number as a name": user("odd") | {"name": 5},
    "reasoning as a list": said("odd", reasoning=["a"]),
    "object as reasoning": said("odd", reasoning_content={"text": "a"}),
    "calls as an object": said("odd", tool_calls={"name": "edit"}),
    "null as a call": said("odd", tool_calls=[None]),
    "call without a function": said("odd", tool_calls=[{"id": "c1"}]),
    "flat call": said("odd", tool_calls=[{"id": "c1", "name": "edit", "arguments": {"cmd": "x"}}]),
    "call without a name": said("odd", tool_calls=[{"id": 7, "function": {"name": None}}]),
    "result with a number as id": gave(5, "odd"),
}
FOREIGN_PARTS: dict[str, dict[str, Any]] = {
    "server_tool_use": {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "odd"},
    },
    "web_search_tool_result": {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {
                "type": "web_search_result",
                "url": "https://a.b",
                "title": "odd",
                "encrypted_content": "Q",
            }
        ],
    },
    "web_search_tool_result_error": {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {"type": "web_search_tool_result_error", "error_code": "odd"},
    },
    "code_execution_tool_result": {
        "type": "code_execution_tool_result",
        "content": {"type": "code_execution_result", "stdout": "odd", "return_code": 0},
    },
    "compaction": {"type": "compaction", "content": "odd"},
    "compaction without a text": {"type": "compaction", "encrypted_content": "Q"},
    "mcp_tool_use": {
        "type": "mcp_tool_use",
        "id": "m1",
        "name": "odd",
        "server_name": "s",
        "input": {},
    },
    "mcp_tool_result": {
        "type": "mcp_tool_result",
        "tool_use_id": "m1",
        "content": [{"type": "text", "text": "odd"}],
    },
    "thinking": {"type": "thinking", "thinking": "odd", "signature": "Q"},
    "thinking in parts": {"type": "thinking", "thinking": [{"type": "text", "text": "odd"}]},
    "redacted_thinking": {"type": "redacted_thinking", "data": "Q"},
    "reasoning": {"type": "reasoning", "text": "odd"},
    "reference": {"type": "reference", "reference_ids": [1]},
    "executable_code": {"type": "executable_code", "language": "PYTHON", "code": "odd"},
    "video_url": {"type": "video_url", "video_url": {"url": "https://a.b/odd.mp4"}},
    "input_audio": {"type": "input_audio", "input_audio": {"data": "UQ==", "format": "wav"}},
    "file": {"type": "file", "file": {"file_id": "file-1"}},
    "container_upload": {"type": "container_upload", "file_id": "file_1"},
    "unknown": {"type": "x_new", "payload": {"deep": ["odd"]}},
}
FOREIGN_BLOCKS: dict[str, Any] = {
    **FOREIGN_PARTS,
    "null": None,
    "text": "odd",
    "call without a name": {"type": "tool_use", "id": "t1", "input": {}},
    "call with null": {"type": "tool_use", "id": "t1", "name": "edit", "input": None},
    "call with a text": {"type": "tool_use", "id": "t1", "name": "edit", "input": "odd"},
    "call without an id": {"type": "tool_use", "name": "edit", "input": {"cmd": "odd"}},
}
FOREIGN_ITEMS: dict[str, Any] = {
    "null": None,
    "text": "odd",
    "null output": {"type": "function_call_output", "call_id": "c1", "output": None},
    "object as output": {"type": "function_call_output", "call_id": "c1", "output": {"a": "odd"}},
    "output without a call": {"type": "function_call_output", "output": "odd"},
    "unknown part in an output": {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "x_new", "payload": "odd"}],
    },
    "null arguments": {"type": "function_call", "call_id": "c1", "name": "edit", "arguments": None},
    "call without a name": {"type": "function_call", "call_id": "c1", "arguments": "{}"},
    "null input": {"type": "custom_tool_call", "call_id": "c1", "name": "edit", "input": None},
    "null action": {"type": "local_shell_call", "call_id": "c1", "action": None},
    "compaction": {"type": "compaction", "encrypted_content": "Q"},
    "apply_patch_call": {
        "type": "apply_patch_call",
        "call_id": "c1",
        "operation": {"type": "create_file", "path": "odd"},
    },
    "apply_patch_call_output": {"type": "apply_patch_call_output", "call_id": "c1", "output": None},
    "shell_call": {"type": "shell_call", "call_id": "c1", "action": {"commands": ["odd"]}},
    "shell_call_output": {
        "type": "shell_call_output",
        "call_id": "c1",
        "output": [{"stdout": "odd", "stderr": ""}],
    },
    "reference of another server": {"type": "item_reference", "id": "rs_other"},
    "null content": {"type": "message", "role": "assistant", "content": None},
    "unknown part": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "x_new", "payload": "odd"}],
    },
    "unknown role": {"type": "message", "role": "critic", "content": "odd"},
    "odd reasoning": {"type": "reasoning", "summary": "odd", "content": [{"type": "x"}]},
    "unknown item": {"type": "x_new", "payload": {"deep": ["odd"]}},
}
LOOSE: dict[str, list[dict[str, Any]]] = {
    "result alone": [user(), gave("c1", "odd")],
    "result first": [gave("c1", "odd"), user()],
    "result after the system": [system(), gave("c1", "odd"), user()],
    "result after a text": [user(), said("x"), gave("c1", "odd")],
    "result of another call": [user(), called("c1"), gave("c2", "odd")],
    "result twice": [user(), called("c1"), gave("c1"), gave("c1", "odd")],
    "result after the user": [user(), called("c1"), user("wait"), gave("c1", "odd")],
    "two results of one": [user(), called("c1"), gave("c1"), gave("c2", "odd"), said("x")],
    "result without an id": [user(), called("c1"), {"role": "tool", "content": "odd"}],
    "call without a result": [user(), called("c1", text="odd"), user("stop")],
    "one result of two": [user(), called("c1", "c2"), gave("c1", "odd"), said("x")],
    "call at the start": [called("c1", text="odd"), gave("c1")],
    "call after a call": [user(), called("c1"), called("c2"), gave("c2", "odd")],
    "old function": [user(), {"role": "function", "name": "edit", "content": "odd"}],
}
CALLS: dict[str, list[dict[str, Any]]] = {
    "one": [user(), called("c1"), gave("c1", "odd"), said()],
    "with text": [user(), called("c1", text="odd"), gave("c1"), said()],
    "two at once": [user(), called("c1", "c2"), gave("c1"), gave("c2", "odd"), said()],
    "two after each other": [user(), called("c1"), gave("c1"), called("c2"), gave("c2", "odd")],
    "no reply after": [user(), called("c1"), gave("c1", "odd")],
    "after the system": [system(), user(), called("c1"), gave("c1", "odd"), said()],
    "three": [user(), called("c1", "c2", "c3"), gave("c3", "odd"), gave("c1"), gave("c2"), said()],
    "empty result": [user(), called("c1", text="odd"), gave("c1", ""), said()],
    "parts": [user(), called("c1"), gave("c1", [{"type": "text", "text": "odd"}]), said()],
    "an object as arguments": [user(), called("c1", arguments={"cmd": "odd"}), gave("c1"), said()],
    "broken arguments": [user(), called("c1", arguments="odd"), gave("c1"), said()],
    "reasoning": [user(), called("c1") | {"reasoning_content": "r"}, gave("c1", "odd"), said()],
    "a late system": [user(), called("c1"), gave("c1"), system("odd"), said()],
}


# Random histories.


def body_of(api: str, history: list[Any], newest: str, *, tools: bool) -> dict[str, Any]:
    """Return a request of an API: a history in its own format, and a newest message."""
    body: dict[str, Any] = {"model": "openclaw"}
    if api == "completions":
        return body | {"prompt": f"{history[0]}{newest}", "max_tokens": 8}
    if api == "responses":
        body |= {"input": [*history, {"role": "user", "content": newest}]}
        return body | ({"tools": [{"type": "function", **CALL_TOOL["function"]}]} if tools else {})
    body |= {"messages": [*history, user(newest)], "max_tokens": 8}
    if not tools:
        return body
    function: Any = CALL_TOOL["function"]
    schema = {"name": function["name"], "input_schema": function["parameters"]}
    return body | {"tools": [schema if api == "messages" else CALL_TOOL]}


def random_histories(count: int, seed: int) -> Iterator[tuple[str, str, list[Any], bool]]:
    """Yield (API, kind of template, history, whether there are tools), each combination alike."""
    rng = random.Random(seed)
    pairs = itertools.cycle(itertools.product(RANDOM_KINDS, APIS))
    for kind, api in itertools.islice(pairs, count):
        yield api, kind, _HISTORIES[api](rng), rng.random() < 0.5


def _text(rng: random.Random) -> str:
    pieces = ["odd", "words", "\n", "<|im_end|>", "ü", "😀", *HALVES]
    return " ".join(rng.choices(pieces, k=rng.randint(1, 4)))


def _chat_message(rng: random.Random) -> Any:
    id_ = rng.choice(["c1", "c2", "callabc12"])
    texts = {"content": _text(rng)}
    role = rng.choice(["user", "user", "assistant", "assistant", "system", "developer", "tool"])
    pool = [
        lambda: {"role": role, "tool_call_id": id_, **texts},
        lambda: called(id_, arguments=rng.choice(list(ARGUMENTS.values()))),
        lambda: called("c1", "c2"),
        lambda: gave(id_, _text(rng)),
        lambda: {"role": role, "content": rng.choice(list(CONTENTS.values()))},
        lambda: rng.choice(list(MESSAGES.values())),
        lambda: {"role": role, "content": [rng.choice(list(FOREIGN_PARTS.values()))]},
    ]
    return rng.choice(pool)()


def _messages_message(rng: random.Random) -> Any:
    role = rng.choice(["user", "user", "assistant", "assistant", "system", "model"])
    blocks = [
        *FOREIGN_BLOCKS.values(),
        {"type": "text", "text": _text(rng)},
        {"type": "tool_use", "id": "t1", "name": "edit", "input": {"cmd": _text(rng)}},
        {"type": "tool_result", "tool_use_id": "t1", "content": _text(rng)},
        {"type": "tool_result", "content": rng.choice(list(CONTENTS.values()))},
    ]
    content = rng.choices(blocks, k=rng.randint(0, 3))
    odd = rng.choice([*CONTENTS.values(), content, content, content, _text(rng)])
    return rng.choice([{"role": role, "content": odd}] * 8 + list(MESSAGES.values()))


def _item(rng: random.Random) -> Any:
    role = rng.choice(["user", "assistant", "system", "developer"])
    content = rng.choice(
        [*CONTENTS.values(), _text(rng), [rng.choice(list(FOREIGN_PARTS.values()))]]
    )
    pool = [
        rng.choice(list(FOREIGN_ITEMS.values())),
        {"role": role, "content": content},
        {"type": "function_call", "call_id": "c1", "name": "edit", "arguments": _text(rng)},
        {"type": "function_call_output", "call_id": "c1", "output": _text(rng)},
    ]
    return rng.choice(pool)


_HISTORIES = {
    "chat": lambda rng: [_chat_message(rng) for _ in range(rng.randint(1, 7))],
    "messages": lambda rng: [_messages_message(rng) for _ in range(rng.randint(1, 7))],
    "responses": lambda rng: [_item(rng) for _ in range(rng.randint(1, 7))],
    "completions": lambda rng: [_text(rng)],
}


def replied(api: str, body: dict[str, Any], answer: Any) -> list[Any]:
    """Return the history of a next request: that of `body`, its newest message, and the reply to it."""
    if api == "chat":
        return [*body["messages"], answer["choices"][0]["message"]]
    if api == "messages":
        return [*body["messages"], {"role": "assistant", "content": answer["content"]}]
    return [*body["input"], *answer["output"]]


def encoded(body: Any) -> bytes:
    """JSON as JavaScript and Python write it: halves as escapes, NaN as it is."""
    return json.dumps(body).encode()
