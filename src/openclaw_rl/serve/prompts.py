"""From a conversation to prompt ids: bridged over stored tokens where the history is unchanged, else rendered.

Every message is hashed once: its mark (for linking, without transient messages) and the chain over all messages (for
bridging: a prompt may only go on from stored tokens when it goes on from everything that was sent).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from openclaw_rl import canon
from openclaw_rl.render.bridge import Bridges, Past
from openclaw_rl.render.recent import Recent
from openclaw_rl.render.renderer import Rendered, Renderer, opens_thinking
from openclaw_rl.render.template import ReadyTool, for_template, ready_tools
from openclaw_rl.serve.ask import Ask
from openclaw_rl.types import Ids, Mark, Message

THREAD_BYTES = 16 * 1024  # new text above this is tokenised in a thread, so that streams do not stall
CACHE_BYTES = 16 * 2**20  # of messages about which is remembered what was worked out
WHOLE_BYTES = 512 * 1024  # a body above this is hashed and rendered in a thread, too

Recall = Callable[[str, bytes, Sequence[Mapping[str, Any]]], Past | None]
"""(scope, chain of marks up to and including a reply, tools) -> its exchange's ids, from the store. May block."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is worked out of one message."""

    own: bytes
    role: str
    distinctive: bool
    transient: bool
    ready: dict[str, Any]  # for the template


@dataclass(frozen=True, slots=True)
class Tools:
    """What is worked out of a request's tools."""

    ready: list[ReadyTool]
    digest: bytes


@dataclass(frozen=True, slots=True)
class History:
    """A conversation's hashes. `keys`: of each reply in it, the index and the chain over all messages so far."""

    marks: tuple[Mark, ...]
    keys: tuple[tuple[int, bytes], ...]
    end: blake2b  # the chain over all messages, to be gone on from
    plain: bool  # no transient message in it


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered ask. `reused`: how many ids were taken over from a stored exchange."""

    rendered: Rendered
    history: History
    reused: int


class Prompts:
    """Renders asks; remembers what was answered."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        secret: bytes,
        transient: Callable[[Message], bool],
        recall: Recall | None = None,
    ) -> None:
        self.renderer = renderer
        self._secret = secret
        self._transient = transient
        self._recall = recall
        self._bridges = Bridges()
        self._answered: Recent[bytes, bool] = Recent(65536)  # reply chains that this process knows all about
        self._facts: Recent[bytes, Facts] = Recent(CACHE_BYTES, lambda raw, facts: len(raw) + 256)
        self._tools: Recent[bytes, Tools] = Recent(256)
        self._marks: Recent[tuple[int, bytes, bytes], Mark] = Recent(131072)

    async def prompt(self, ask: Ask, scope: str) -> Prompt:
        """Raises `RequestError` when the template refuses the conversation."""
        if ask.size > WHOLE_BYTES:
            return await asyncio.to_thread(self._whole, ask, scope)
        facts, tools = self._facts_of(ask), self._tools_of(ask)
        history = self._history(facts, tools, scope)
        found = self._bridges.longest(history.keys) or await self._recalled(ask, scope, history)
        text = self._text_after(ask, found[0]) if found else None
        if found and text is not None and (bridged := self._joined(found[1], await self._tokenised(text))) is not None:
            return Prompt(bridged, history, len(found[1]))
        text = self.renderer.template.render([f.ready for f in facts], tools.ready, generation=True)
        return Prompt(await self._tokenised(text), history, 0)

    def _whole(self, ask: Ask, scope: str) -> Prompt:
        """All of `prompt` for a huge body, in a thread; what is not in memory is not looked for."""
        facts, tools = self._facts_of(ask), self._tools_of(ask)
        history = self._history(facts, tools, scope)
        found = self._bridges.longest(history.keys)
        text = self._text_after(ask, found[0]) if found else None
        if found and text is not None and (bridged := self._joined(found[1], self.renderer.tokenise(text))) is not None:
            return Prompt(bridged, history, len(found[1]))
        text = self.renderer.template.render([f.ready for f in facts], tools.ready, generation=True)
        return Prompt(self.renderer.tokenise(text), history, 0)

    def _text_after(self, ask: Ask, index: int) -> str | None:
        return self.renderer.text_after(ask.messages[index], ask.messages[index + 1 :], tools=bool(ask.tools))

    def _joined(self, past: Past, new: Rendered) -> Rendered | None:
        return self.renderer.bridge(past.prompt_ids, past.response_ids, new)

    async def _tokenised(self, text: str) -> Rendered:
        tokens = self.renderer.tokens
        pieces = tokens.split(text)
        if tokens.new_chars(pieces) > THREAD_BYTES:
            ids = await asyncio.to_thread(tokens.join, pieces)
        else:
            ids = tokens.join(pieces)
        return Rendered(prompt_ids=ids, thinking=opens_thinking(text))

    async def _recalled(self, ask: Ask, scope: str, history: History) -> tuple[int, Past] | None:
        """After a restart: the exchange of the last reply in this history, from the store."""
        if self._recall is None or self.renderer.unbridged or not history.plain or not history.keys:
            return None
        index, key = history.keys[-1]
        chain = next(m.chain for m in history.marks if m.index == index)
        if self._answered.get(scope.encode() + chain):
            return None
        self._answered.put(scope.encode() + chain, True)
        past = await asyncio.to_thread(self._recall, scope, chain, ask.tools)
        if past is None:
            return None
        self._bridges.put(key, past)
        return index, past

    def _facts_of(self, ask: Ask) -> list[Facts]:
        """One for each message; worked out once for the same bytes."""
        if not ask.raw:
            return [self._work_out(m) for m in ask.messages]
        known = self._facts.get
        return [known(raw) or self._learn(raw, m) for raw, m in zip(ask.raw, ask.messages, strict=True)]

    def _learn(self, raw: bytes, message: Message) -> Facts:
        facts = self._work_out(message)
        self._facts.put(raw, facts)
        return facts

    def _work_out(self, message: Message) -> Facts:
        mark = canon.mark(message, index=0, chain=canon.ROOT, key=self._secret)
        return Facts(mark.own, mark.role, mark.distinctive, self._transient(message), for_template(message))

    def _tools_of(self, ask: Ask) -> Tools:
        if (known := self._tools.get(ask.raw_tools)) is not None and (ask.raw_tools or not ask.tools):
            return known
        plain = msgspec.json.encode(ask.tools) if ask.tools else b""
        tools = Tools(ready_tools(ask.tools), blake2b(plain, digest_size=16, key=self._secret).digest())
        self._tools.put(ask.raw_tools, tools)
        return tools

    def _history(self, facts: Sequence[Facts], tools: Tools, scope: str) -> History:
        """Nothing is shared across keys, and other tools make another prompt."""
        secret, chain = self._secret, canon.ROOT
        full = blake2b(scope.encode() + tools.digest, digest_size=16, key=secret)
        marks: list[Mark] = []
        keys: list[tuple[int, bytes]] = []
        for index, fact in enumerate(facts):
            full.update(fact.own)
            if not fact.transient:
                mark = self._mark(fact, index, chain)
                marks.append(mark)
                chain = mark.chain
            if fact.role == "assistant":
                keys.append((index, full.copy().digest()))
        return History(tuple(marks), tuple(keys), full, len(marks) == len(facts))

    def _mark(self, fact: Facts, index: int, chain: bytes) -> Mark:
        key = (index, chain, fact.own)
        mark = self._marks.get(key)
        if mark is None:
            after = canon.extend(chain, fact.own, self._secret)
            mark = Mark(index=index, role=fact.role, own=fact.own, chain=after, distinctive=fact.distinctive)
            self._marks.put(key, mark)
        return mark

    def mark_reply(self, history: History, message: Message, index: int) -> Mark:
        """The mark of our own reply, behind the request's last mark."""
        chain = history.marks[-1].chain if history.marks else canon.ROOT
        return canon.mark(message, index=index, chain=chain, key=self._secret)

    def remember(self, scope: str, history: History, mark: Mark, prompt_ids: Ids, response_ids: Ids) -> None:
        """A reply ended whole: its next turn goes on from these very tokens."""
        self._answered.put(scope.encode() + mark.chain, True)
        if not self.renderer.unbridged:
            key = history.end.copy()
            key.update(mark.own)
            self._bridges.put(key.digest(), Past(prompt_ids, response_ids))
