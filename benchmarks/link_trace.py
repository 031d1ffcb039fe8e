"""Count what a reader visits who follows one request through `link_request`.

    python benchmarks/link_trace.py [--list]

The request is the last one of a conversation that a client has edited: its system prompt has a clock, tool calls come
back rewritten, and a heartbeat is left in the history. Its replies are recognised by each of the ways, and its last
message is a reaction. The interpreter reports each call (`sys.setprofile`), so the figures depend on no clock.

- Functions visited: different functions and methods in which the request is followed. Expressions inside a function
  (comprehensions, lambdas) are read with it. Functions of the store, which only look up rows, do not count.
- Climbs back up: the reader reads each function where it is first called. He climbs when the next function that is new
  to him stands above the last one in the same file, or in another file that he has already left.

Both are counted in `collect/`, which decides, and in the whole package, with the helpers that hash and search texts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import numpy as np

from openclaw_rl.collect.link import RequestLink, link_request
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.collect.worker import Collector
from openclaw_rl.common import message_hash
from openclaw_rl.settings.load import CollectConfig, ServeConfig
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.store.exchange_index import ExchangeIndex
from openclaw_rl.types import ExchangeStatus, FinishReason, Message, Reply, Request, Sampling

PACKAGE = Path(__file__).parents[1] / "src" / "openclaw_rl"
MAX_FUNCTIONS = 25
MAX_CLIMBS = 8
"""Bounds for `collect/`."""
NOT_FOLLOWED = ("store/",)
SYSTEM = "You are a helpful agent. It is {}."
CALL = '{"city": "Rome", "day": 5}'
REWRITTEN_CALL = '{"day":5,"city":"Rome"}'


@dataclass(frozen=True, slots=True)
class VisitedFunction:
    """A function where it was first called."""

    file: str  # below the package
    line: int  # of its definition
    name: str


def trace_calls(action: Callable[[], Any]) -> list[VisitedFunction]:
    """Return the functions of the package that an action calls, in the order of their first calls."""
    visited: dict[VisitedFunction, None] = {}

    def record(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or code.co_name.startswith("<") or not path.is_relative_to(PACKAGE):
            return
        file = path.relative_to(PACKAGE).as_posix()
        if not file.startswith(NOT_FOLLOWED):
            visited[VisitedFunction(file, code.co_firstlineno, code.co_qualname)] = None

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        action()
    finally:
        sys.setprofile(before)
    return list(visited)


def count_climbs(visited: Sequence[VisitedFunction]) -> int:
    """Return how often the next function stands above the last one, or in a file that was left before."""
    climbs = 0
    files = {visited[0].file} if visited else set()
    for last, following in pairwise(visited):
        is_above = following.file == last.file and following.line < last.line
        is_left = following.file != last.file and following.file in files
        climbs += is_above or is_left
        files.add(following.file)
    return climbs


class Conversation:
    """A conversation in a store of its own, collected request by request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._collector = Collector(store, CollectConfig())
        self._is_ephemeral = message_hash.EphemeralMatcher(ServeConfig().ephemeral_patterns)
        self._time = 1.0

    def add(self, name: str, messages: Sequence[Message], reply: Message) -> None:
        """Record a request with its reply."""
        request = self.admit(name, messages)
        self._time += 1
        ids = np.arange(1, 8, dtype=np.int32)
        mark = message_hash.mark_message(
            reply,
            index=len(messages),
            chain=request.marks[-1].chain,
            key=self._store.secret,
        )
        finished = Reply(
            id=name,
            status=ExchangeStatus.DONE,
            message=reply,
            response_ids=ids,
            logprobs=np.zeros(len(ids), np.float32),
            mask=np.ones(len(ids), np.bool_),
            spans=(),
            finish_reason=FinishReason.TOOL_CALLS if reply.get("tool_calls") else FinishReason.STOP,
            mark=mark,
            finished_at=self._time,
        )
        with self._store.write() as conn:
            exchanges.finish(conn, [finished])
        while self._collector.step():
            pass

    def admit(self, name: str, messages: Sequence[Message]) -> Request:
        """Record a request that is not collected yet."""
        self._time += 1
        request = Request(
            id=name,
            scope="key",
            messages=messages,
            marks=message_hash.mark_messages(messages, self._store.secret, self._is_ephemeral),
            sampling=Sampling(),
            prompt_ids=np.arange(1, 9, dtype=np.int32),
            version=0,
            identity="i",
            admitted_at=self._time,
        )
        with self._store.write() as conn:
            exchanges.admit(conn, [request])
        return request


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _call(arguments: str) -> Message:
    function = {"name": "weather", "arguments": arguments}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def trace_link() -> tuple[RequestLink, list[VisitedFunction]]:
    """Return the link of the request, and the functions in which it was followed."""
    result = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    heartbeat = _message("user", "[OpenClaw heartbeat poll]")
    asked = [_message("user", "Where shall we eat on Friday?")]
    history = [*asked, _call(REWRITTEN_CALL), result]
    short = _message("assistant", "Outside.")
    thanks = _message("user", "Thanks, book a table.")
    distinctive = _message("assistant", "There is a good Italian place by the river.")
    again = _message("user", "Look again, please.")
    equal = _message("assistant", "How about the new noodle bar on Mill Street?")
    last = _message("user", "That one is far too expensive.")

    with TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        conversation = Conversation(store)
        clock = [_message("system", SYSTEM.format(hour)) for hour in range(4)]
        conversation.add("1", [clock[0], *asked], _call(CALL))
        conversation.add("2", [clock[1], *history], short)
        history += [short, thanks]
        conversation.add("3", [clock[2], *history], distinctive)
        history += [distinctive, heartbeat, _message("assistant", "HEARTBEAT_OK"), again]
        conversation.add("4", [clock[3], *history], equal)
        request = conversation.admit("5", [clock[3], *history, equal, last])
        sides = TrafficClassifier(
            CollectConfig().side_patterns, CollectConfig().client_prompt_patterns
        )
        links: list[RequestLink] = []
        with store.read() as conn:
            index = ExchangeIndex(conn, store.secret)
            visited = trace_calls(lambda: links.append(link_request(request, 5, index, sides)))
    return links[0], visited


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count what a reader of `link_request` visits.")
    parser.add_argument("--list", action="store_true", help="print the functions in their order")
    arguments = parser.parse_args()
    _, visited = trace_link()
    local = [function for function in visited if function.file.startswith("collect/")]
    print("| count | `collect/` | bound | the whole package |\n|---|---|---|---|")
    print(f"| functions visited | {len(local)} | {MAX_FUNCTIONS} | {len(visited)} |")
    climbs = count_climbs(local)
    print(f"| climbs back up | {climbs} | {MAX_CLIMBS} | {count_climbs(visited)} |")
    for function in visited if arguments.list else ():
        print(f"{function.file}:{function.line} {function.name}")


if __name__ == "__main__":
    main()
