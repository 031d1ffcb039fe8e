"""Requests that nobody should send: valid bodies of every route, bent at random, and bytes that are no body at all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": "it"}'},
}
PICTURE = "data:image/png;base64,iVBORw0KGgo="

CHAT: dict[str, Any] = {
    "model": "openclaw",
    "messages": [
        {"role": "system", "content": "Keep answers short."},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "Paris"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "stream": False,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 3,
    "temperature": 1.0,
    "top_p": 0.9,
    "top_k": 5,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"5": 1},
    "logprobs": True,
    "top_logprobs": 2,
    "seed": 1,
    "stop": ["END"],
    "n": 1,
    "response_format": {"type": "text"},
    "chat_template_kwargs": {"enable_thinking": False},
    "user": "ann",
}
RESPONSES: dict[str, Any] = {
    "model": "openclaw",
    "instructions": "Keep answers short.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Paris"},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    ],
    "tool_choice": "auto",
    "max_output_tokens": 3,
    "stream": False,
    "store": True,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "previous_response_id": None,
    "metadata": {"a": "b"},
    "temperature": 1.0,
}
MESSAGES: dict[str, Any] = {
    "model": "openclaw",
    "max_tokens": 3,
    "system": [
        {"type": "text", "text": "Keep answers short.", "cache_control": {"type": "ephemeral"}}
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Paris"}],
        },
    ],
    "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["END"],
    "stream": False,
    "thinking": {"type": "disabled"},
    "metadata": {"user_id": "u"},
    "temperature": 1.0,
}
FEEDBACK: dict[str, Any] = {
    "id": "chatcmpl-0",
    "score": 1,
    "thumbs": "up",
    "comment": "good",
    "correction": "better",
}
POSTS: Sequence[tuple[str, dict[str, Any]]] = (
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", RESPONSES),
    ("/v1/messages", MESSAGES),
    ("/v1/messages/count_tokens", MESSAGES),
    ("/v1/feedback", FEEDBACK),
)
GETS = (
    "/v1/models",
    "/v1/models/openclaw",
    "/v1/models/%FF%00",
    "/v1/responses/resp_0",
    "/healthz",
    "/metrics",
    "/nope",
)

VALUES: Sequence[Callable[[random.Random], Any]] = (
    lambda r: None,
    lambda r: r.choice([True, False]),
    lambda r: r.choice([0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**30, 17]),
    lambda r: r.choice([0.0, -0.5, 1e-300, 1e308, 0.3]),
    lambda r: r.choice(
        ["", "x", "main", "\x00", "\ud800", "🙂" * 7, "a" * 3000, "<|im_end|>", "<think>", PICTURE]
    ),
    lambda r: [],
    lambda r: {},
    lambda r: [None, 1, "x", {}, []],
    lambda r: {
        "type": r.choice(
            ["text", "image_url", "input_image", "tool_use", "image", "json_schema", "x"]
        )
    },
    lambda r: {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": r.choice(["object", 5])}},
    },
    lambda r: json.loads("[" * 60 + "]" * 60),
    lambda r: {"role": r.choice(["user", "assistant", "tool", "system", "nobody"]), "content": "x"},
)
HEADERS: Sequence[Mapping[str, str]] = (
    {},
    {},
    {"X-Session-Id": "s" * 600},
    {"X-Session-Id": "séance", "X-Agent-Id": "a"},
    {"X-Turn-Type": "sideways"},
    {"X-Turn-Type": "side", "X-Session-Done": "1"},
    {"Content-Encoding": "gzip"},
    {"Content-Encoding": "nonsense"},
    {"Content-Type": "text/plain"},
    {"Authorization": "Bearer nobody"},
    {"Authorization": "Basic \xff"},
    {"anthropic-version": "x", "anthropic-beta": "y"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One request. `kept`: at least its length is what the body has."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def shot(rng: random.Random) -> Shot:
    """One in ten is no POST; of the bodies one in ten is no JSON, one in ten is left whole."""
    if rng.random() < 0.1:
        return Shot(
            method=rng.choice(["GET", "PUT", "DELETE", "OPTIONS", "HEAD"]), path=rng.choice(GETS)
        )
    path, valid = rng.choice(POSTS)
    body = json.loads(json.dumps(valid))
    if rng.random() < 0.4:
        body = {
            k: v
            for k, v in body.items()
            if k in ("model", "messages", "input", "max_tokens", "id") or rng.random() < 0.3
        }
    for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        bend(body, rng)
    if isinstance(body, dict) and rng.random() < 0.3:
        body["stream"] = True
    raw = json.dumps(body).encode()
    if rng.random() < 0.1:
        raw = harm(raw, rng)
    return Shot(method="POST", path=path, body=raw, headers=rng.choice(HEADERS))


def bend(tree: Any, rng: random.Random) -> None:
    """Change one random place of a JSON tree: another value, a missing key, an unknown one, an item twice."""
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        break
    what = rng.random()
    if what < 0.65:
        node[key] = rng.choice(VALUES)(rng)
    elif what < 0.8:
        del node[key]
    elif isinstance(node, dict):
        node[rng.choice(["x", "type", "content", "name", "id"])] = rng.choice(VALUES)(rng)
    else:
        node.append(node[key])


def harm(raw: bytes, rng: random.Random) -> bytes:
    """Bytes that are no JSON, or no UTF-8, or only half of it."""
    at = rng.randrange(len(raw) or 1)
    return rng.choice(
        [
            raw[:at],
            raw[:at] + b"\xff" + raw[at:],
            raw + b"}",
            b"",
            b"\x00" * 10,
            b"[" * 5000,
            b'"text"',
            b"NaN",
            raw * 2,
        ]
    )
