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
from openclaw_rl.render.renderer import Rendered, Renderer
from openclaw_rl.serve.ask import Ask
from openclaw_rl.types import Ids, Mark, Message

THREAD_BYTES = 16 * 1024  # new text above this is tokenised in a thread, so that streams do not stall
WHOLE_BYTES = 512 * 1024  # a body above this is hashed and rendered in a thread, too

Recall = Callable[[str, bytes, Sequence[Mapping[str, Any]]], Past | None]
"""(scope, chain of marks up to and including a reply, tools) -> its exchange's ids, from the store. May block."""


@dataclass(frozen=True, slots=True)
class History:
    """A conversation's hashes. `keys`: of each reply in it, the index and the chain over all messages so far."""

    marks: tuple[Mark, ...]
    keys: tuple[tuple[int, bytes], ...]
    end: bytes  # the chain over all messages
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
        self._answered = _Recent()  # reply chains that this process knows all about

    async def prompt(self, ask: Ask, scope: str) -> Prompt:
        """Raises `RequestError` when the template refuses the conversation."""
        if ask.size > WHOLE_BYTES:
            return await asyncio.to_thread(self._whole, ask, scope)
        history = self.history(ask, scope)
        found = self._bridges.longest(history.keys) or await self._recalled(ask, scope, history)
        text = self._text_after(ask, found[0]) if found else None
        if found and text is not None and (bridged := await self._joined(found[1], text)) is not None:
            return Prompt(bridged, history, len(found[1]))
        return Prompt(await self._tokenised(self.renderer.text(ask.messages, ask.tools)), history, 0)

    def _whole(self, ask: Ask, scope: str) -> Prompt:
        """All of `prompt` for a huge body, in a thread; what is not in memory is not looked for."""
        history = self.history(ask, scope)
        found = self._bridges.longest(history.keys)
        text = self._text_after(ask, found[0]) if found else None
        if found and text is not None and (bridged := self._join(found[1], text)) is not None:
            return Prompt(bridged, history, len(found[1]))
        return Prompt(self.renderer.render(ask.messages, ask.tools), history, 0)

    def _text_after(self, ask: Ask, index: int) -> str | None:
        return self.renderer.text_after(ask.messages[index], ask.messages[index + 1 :], tools=bool(ask.tools))

    def _join(self, past: Past, text: str) -> Rendered | None:
        return self.renderer.bridge(past.prompt_ids, past.response_ids, text)

    async def _joined(self, past: Past, text: str) -> Rendered | None:
        if self.renderer.tokens.new_chars(text) > THREAD_BYTES:
            return await asyncio.to_thread(self._join, past, text)
        return self._join(past, text)

    async def _tokenised(self, text: str) -> Rendered:
        if self.renderer.tokens.new_chars(text) > THREAD_BYTES:
            return await asyncio.to_thread(self.renderer.tokenise, text)
        return self.renderer.tokenise(text)

    async def _recalled(self, ask: Ask, scope: str, history: History) -> tuple[int, Past] | None:
        """After a restart: the exchange of the last reply in this history, from the store."""
        if self._recall is None or self.renderer.unbridged or not history.plain or not history.keys:
            return None
        index, key = history.keys[-1]
        chain = next(m.chain for m in history.marks if m.index == index)
        if not self._answered.add(scope.encode() + chain):
            return None
        past = await asyncio.to_thread(self._recall, scope, chain, ask.tools)
        if past is None:
            return None
        self._bridges.put(key, past)
        return index, past

    def history(self, ask: Ask, scope: str) -> History:
        """Hash every message once."""
        secret, chain, full = self._secret, canon.ROOT, self._root(ask, scope)
        marks: list[Mark] = []
        keys: list[tuple[int, bytes]] = []
        plain = True
        for index, message in enumerate(ask.messages):
            if self._transient(message):
                plain = False
                own = canon.own_hash(message, secret)
            else:
                marks.append(canon.mark(message, index=index, chain=chain, key=secret))
                chain, own = marks[-1].chain, marks[-1].own
            full = canon.extend(full, own, secret)
            if message.get("role") == "assistant":
                keys.append((index, full))
        return History(tuple(marks), tuple(keys), full, plain)

    def _root(self, ask: Ask, scope: str) -> bytes:
        """Nothing is shared across keys, and other tools make another prompt."""
        tools = msgspec.json.encode(ask.tools) if ask.tools else b""
        return blake2b(scope.encode() + b"\x1f" + tools, digest_size=16, key=self._secret).digest()

    def mark_reply(self, history: History, message: Message, index: int) -> Mark:
        """The mark of our own reply, behind the request's last mark."""
        chain = history.marks[-1].chain if history.marks else canon.ROOT
        return canon.mark(message, index=index, chain=chain, key=self._secret)

    def remember(self, scope: str, history: History, mark: Mark, prompt_ids: Ids, response_ids: Ids) -> None:
        """A reply ended whole: its next turn goes on from these very tokens."""
        self._answered.add(scope.encode() + mark.chain)
        if not self.renderer.unbridged:
            self._bridges.put(canon.extend(history.end, mark.own, self._secret), Past(prompt_ids, response_ids))


class _Recent:
    """A bounded set; the oldest half goes when it is full."""

    def __init__(self, room: int = 65536) -> None:
        self._room = room
        self._items: dict[bytes, None] = {}

    def add(self, item: bytes) -> bool:
        """Whether it is new."""
        if item in self._items:
            return False
        if len(self._items) >= self._room:
            self._items = dict.fromkeys(list(self._items)[self._room // 2 :])
        self._items[item] = None
        return True
