"""What the benchmark's clients say: short prompts, and agent requests as OpenClaw sends them.

An agent request holds a system prompt of 26 KB, twelve tools (9 KB), the conversation so far with the replies that the
client really received, and last a passing context message that is gone from the next request. Each client holds its
own conversation. It is measured from its tenth turn; after the twentieth it goes on from the ninth with other words
(a branch), so that the size stays near 36 KB.
"""

from __future__ import annotations

import json
import random

SYSTEM_BYTES = 26_000
TOOL_BYTES = 9_000
FIRST_MEASURED = 10
LAST_MEASURED = 20
_TEXT = (
    "when the user asks about a file read it first and answer from what it says never guess a path run commands with "
    "care prefer small edits over rewriting report what changed and why keep secrets out of logs memory notes live in "
    "workspace session tool result error retry schedule heartbeat channel message reply thread agent skill browser "
    "search project build test deploy review branch commit issue model token config network process output"
)
_WORDS = _TEXT.split()
_TOOLS = "apply_patch edit exec ls process read sessions_yield tool_call tool_describe tool_search write openclaw"


def _prose(rng: random.Random, size: int) -> str:
    lines: list[str] = []
    length = 0
    while length < size:
        words = rng.choices(_WORDS, k=rng.randint(8, 18))
        line = ("## " if len(lines) % 12 == 0 else "- ") + " ".join(words).capitalize() + "."
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:size]


def _tool(rng: random.Random, name: str, size: int) -> dict[str, object]:
    properties = {
        word: {"type": "string", "description": _prose(rng, size // 8)}
        for word in rng.sample(sorted(set(_WORDS)), 4)
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:2]}
    return {
        "type": "function",
        "function": {"name": name, "description": _prose(rng, size // 4), "parameters": parameters},
    }


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Traffic:
    """The parts that all clients of one cell share, encoded once."""

    def __init__(
        self,
        *,
        agent: bool,
        stream: bool,
        model: str = "openclaw",
        max_tokens: int = 64,
        system_bytes: int = SYSTEM_BYTES,
        tool_bytes: int = TOOL_BYTES,
    ) -> None:
        rng = random.Random(7)
        head: dict[str, object] = {
            "model": model,
            "stream": stream,
            "max_completion_tokens": max_tokens,
        }
        if stream:
            head["stream_options"] = {"include_usage": False}
        self.agent = agent
        self.system = b""
        if agent:
            body = _prose(rng, system_bytes)
            text = f"<!-- openclaw:attempt:STABLE -->\n{body}\n<!-- /openclaw:attempt:DYNAMIC -->"
            self.system = _encode({"role": "system", "content": text}) + b","
            names = _TOOLS.split()
            head |= {
                "tools": [_tool(rng, n, tool_bytes // len(names)) for n in names],
                "tool_choice": "auto",
            }
        self.head = _encode(head)[:-1] + b',"messages":['


class Conversation:
    """One client's side. `body()` is the next request; `heard(text)` takes the reply in."""

    def __init__(self, traffic: Traffic, name: str) -> None:
        self._traffic = traffic
        self._name = name
        self._said = 0
        # Per finished turn: the user's and the assistant's message.
        self._turns: list[bytes] = []
        self._kept: list[bytes] = []
        self._pending = b""

    @property
    def turn(self) -> int:
        """The number of the turn that comes next, from 1."""
        return len(self._turns) + 1

    def body(self) -> bytes:
        """The next request, encoded."""
        self._said += 1
        if not self._traffic.agent:
            words = f"Client {self._name} asks for the {self._said}th time: what is new?"
            return self._traffic.head + _encode({"role": "user", "content": words}) + b"]}"
        if self.turn > LAST_MEASURED:
            self._turns = self._turns[: FIRST_MEASURED - 1]
        words = (
            f"[Fri 2026-11-20 18:24 UTC] Please look at item {self._said} of {self._name} and "
            "tell me what you find."
        )
        if self.turn == 1:
            words += (
                f"\n\nRuntime: agent=main | session=agent:main:{self._name} | model=myrl/openclaw"
            )
        self._pending = _encode({"role": "user", "content": words}) + b","
        context = (
            "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n"
            f"now: turn {self._said}; workspace clean; no pending tasks; memory up to date\n"
            "<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
        )
        last = _encode({"role": "user", "content": [{"type": "text", "text": context}]})
        parts = (self._traffic.head, self._traffic.system, *self._turns, self._pending, last, b"]}")
        return b"".join(parts)

    def heard(self, text: str) -> None:
        """The reply becomes part of the history, as the client received it."""
        if self._traffic.agent:
            answer = _encode({"role": "assistant", "content": text}) + b","
            self._turns.append(self._pending + answer)
