"""From a conversation to prompt ids: bridged over stored tokens where the history is unchanged, else rendered.

Every message is hashed once: its mark (for linking, without transient messages) and the chain over all messages (for
bridging: a prompt may only go on from stored tokens when it goes on from everything that was sent). In a prompt that
is rendered, our own earlier replies are known by their marks, and keep the tokens that were sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import msgspec
import numpy as np

from openclaw_rl.common import message_hash
from openclaw_rl.render.caches import ByTokens, Past, Recent
from openclaw_rl.render.chat_template import ReadyTool, ready_tools
from openclaw_rl.render.renderer import Rendered, Renderer
from openclaw_rl.render.splice import Piece, Said
from openclaw_rl.serve.chat_request import Ask
from openclaw_rl.types import Ids, Mark, Message, Reply, Request

THREAD_BYTES = 16 * 1024  # new text above this is tokenised in a thread, so that streams do not stall
CACHE_BYTES = 16 * 2**20  # of messages about which is remembered what was worked out
WHOLE_BYTES = 512 * 1024  # a body above this is hashed and rendered in a thread, too
SAID_TOKENS = 4 * 2**20  # of replies that keep their tokens in a prompt that is rendered anew
SOUGHT = 64  # the last replies of a history, for which the store is asked after a restart


class Recall(Protocol):
    """What the store knows, after a restart. Both may block."""

    def exchange(self, scope: str, chain: bytes, tools: Sequence[Mapping[str, Any]]) -> Past | None:
        """The ids of the exchange whose reply has this chain of marks, if its next prompt may go on from them."""

    def replies(self, scope: str, chains: Sequence[bytes]) -> Mapping[bytes, tuple[Ids, str]]:
        """Of each reply with one of these chains: its ids [R] and its reasoning."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is worked out of one message."""

    own: bytes
    role: str
    distinctive: bool
    transient: bool
    ready: dict[str, Any]  # for the template
    sent: bytes  # as `own`, with what the client wrote into it: other words make another prompt
    origin: tuple[str, str] | None  # (session, agent) that the client states in it


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
    origin: tuple[str, str] | None = None  # (session, agent) as the client states them in its first user message
    bridges: bool = False  # whether the next prompt may go on from this one's ids, as far as the template goes


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
        self._bridges: ByTokens[Past] = ByTokens()
        self._said: ByTokens[Said] = ByTokens(SAID_TOKENS)
        self._sought: Recent[bytes, bool] = Recent(65536)  # reply chains that the store need not be asked for
        self._answered: Recent[bytes, bool] = Recent(65536)  # reply chains that this process knows all about
        self._facts: Recent[bytes, Facts] = Recent(CACHE_BYTES, lambda raw, facts: len(raw) + 256)
        self._tools: Recent[bytes, Tools] = Recent(256)
        self._marks: Recent[tuple[int, bytes, bytes], Mark] = Recent(131072)

    async def prompt(self, ask: Ask, scope: str) -> Prompt:
        """Raises `RequestError` when the template refuses the conversation, or a variable of the client's."""
        if ask.size > WHOLE_BYTES:
            return await asyncio.to_thread(self._whole, ask, scope)
        facts, tools = self._facts_of(ask), self._tools_of(ask)
        history = self._history(facts, tools, scope, ask.template)
        found = self._bridges.longest(history.keys) or await self._recalled(ask, scope, history)
        text = self._text_after(ask, found[0]) if found else None
        if found and text is not None and (bridged := self._joined(found[1], await self._tokenised(text))) is not None:
            return Prompt(bridged, history, len(found[1]))
        await self._seek(scope, history)
        text, pieces = self._rendered(ask, scope, facts, tools, history)
        return Prompt(await self._tokenised(text, pieces), history, _reused(pieces))

    def _whole(self, ask: Ask, scope: str) -> Prompt:
        """All of `prompt` for a huge body, in a thread; what is not in memory is not looked for."""
        facts, tools = self._facts_of(ask), self._tools_of(ask)
        history = self._history(facts, tools, scope, ask.template)
        found = self._bridges.longest(history.keys)
        text = self._text_after(ask, found[0]) if found else None
        if found and text is not None and (bridged := self._joined(found[1], self.renderer.tokenise(text))) is not None:
            return Prompt(bridged, history, len(found[1]))
        text, pieces = self._rendered(ask, scope, facts, tools, history)
        split, _ = self._split(pieces)
        return Prompt(self._put_together(text, split), history, _reused(pieces))

    def _text_after(self, ask: Ask, index: int) -> str | None:
        return self.renderer.text_after(ask.messages[index], ask.messages[index + 1 :], tools=bool(ask.tools))

    def _joined(self, past: Past, new: Rendered) -> Rendered | None:
        return self.renderer.bridge(past.prompt_ids, past.response_ids, new)

    def _rendered(
        self, ask: Ask, scope: str, facts: Sequence[Facts], tools: Tools, history: History
    ) -> tuple[str, list[Piece]]:
        """The template's text, and the same with our own replies' ids where they stand in it word for word."""
        ready = [f.ready for f in facts]
        known: list[Said] = []
        for mark in history.marks:
            if mark.role == "assistant" and (said := self._said.get(scope.encode() + mark.chain)) is not None:
                known.append(said)
                if said.reasoning and "reasoning_content" not in ready[mark.index]:
                    ready[mark.index] = self.renderer.with_reasoning(ready[mark.index], said.reasoning)
        text = self.renderer.template.render(ready, tools.ready, generation=True, variables=ask.template)
        return text, self.renderer.splice(text, known)

    async def _tokenised(self, text: str, pieces: Sequence[Piece] = ()) -> Rendered:
        split, new_chars = self._split(pieces or [text])
        if new_chars > THREAD_BYTES:
            return await asyncio.to_thread(self._put_together, text, split)
        return self._put_together(text, split)

    def _split(self, pieces: Sequence[Piece]) -> tuple[list[list[str] | Ids], int]:
        """Each text cut for the tokenizer, and how many characters it does not know yet."""
        tokens = self.renderer.tokens
        split = [tokens.split(piece) if isinstance(piece, str) else piece for piece in pieces]
        return split, sum(tokens.new_chars(piece) for piece in split if isinstance(piece, list))

    def _put_together(self, text: str, split: Sequence[list[str] | Ids]) -> Rendered:
        join = self.renderer.tokens.join
        ids = [join(piece) if isinstance(piece, list) else piece for piece in split]
        whole = ids[0] if len(ids) == 1 else np.concatenate(ids)
        return Rendered(prompt_ids=whole, thinking=self.renderer.family.opens_thinking(text))

    async def _recalled(self, ask: Ask, scope: str, history: History) -> tuple[int, Past] | None:
        """After a restart: the exchange of the last reply in this history, from the store."""
        if self._recall is None or not history.bridges or not history.plain or not history.keys:
            return None
        index, key = history.keys[-1]
        chain = next(m.chain for m in history.marks if m.index == index)
        if self._answered.get(scope.encode() + chain):
            return None
        self._answered.put(scope.encode() + chain, True)
        past = await asyncio.to_thread(self._recall.exchange, scope, chain, ask.tools)
        if past is None:
            return None
        self._bridges.put(key, past)
        return index, past

    async def _seek(self, scope: str, history: History) -> None:
        """After a restart: the replies in this history, from the store, once."""
        if self._recall is None:
            return
        prefix = scope.encode()
        chains = [m.chain for m in history.marks if m.role == "assistant" and not self._sought.get(prefix + m.chain)]
        if not chains:
            return
        for chain in chains:
            self._sought.put(prefix + chain, True)
        found = await asyncio.to_thread(self._recall.replies, scope, chains[-SOUGHT:])
        for chain, (ids, reasoning) in found.items():
            self._keep(prefix + chain, ids, reasoning)

    def _keep(self, key: bytes, response_ids: Ids, reasoning: str) -> None:
        if (said := self.renderer.said(response_ids, reasoning)) is not None:
            self._said.put(key, said)

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
        mark = message_hash.mark(message, index=0, chain=message_hash.ROOT, key=self._secret)
        sent, text = mark.own, message_hash.text_of(message)
        if mark.role == "user" and message_hash.typed(text) != text:
            sent = blake2b(mark.own + text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._secret).digest()
        ready, origin = self.renderer.ready(message), message_hash.origin(message)
        return Facts(mark.own, mark.role, mark.distinctive, self._transient(message), ready, sent, origin)

    def _tools_of(self, ask: Ask) -> Tools:
        named = bool(ask.raw_tools) or not ask.tools  # else their bytes are not known, and nothing can be remembered
        if named and (known := self._tools.get(ask.raw_tools)) is not None:
            return known
        plain = msgspec.json.encode(ask.tools) if ask.tools else b""
        tools = Tools(ready_tools(ask.tools), blake2b(plain, digest_size=16, key=self._secret).digest())
        if named:
            self._tools.put(ask.raw_tools, tools)
        return tools

    def _history(self, facts: Sequence[Facts], tools: Tools, scope: str, variables: Mapping[str, Any]) -> History:
        """Nothing is shared across keys, and other tools or variables make another prompt."""
        secret, chain = self._secret, message_hash.ROOT
        full = blake2b(scope.encode() + tools.digest, digest_size=16, key=secret)
        if variables:
            full.update(msgspec.json.encode(variables, order="deterministic"))
        marks: list[Mark] = []
        keys: list[tuple[int, bytes]] = []
        for index, fact in enumerate(facts):
            full.update(fact.sent)
            if not fact.transient:
                mark = self._mark(fact, index, chain)
                marks.append(mark)
                chain = mark.chain
            if fact.role == "assistant":
                keys.append((index, full.copy().digest()))
        first = next((fact for fact in facts if fact.role == "user"), None)
        bridges = self.renderer.unbridged is None and not variables
        origin = first.origin if first else None
        return History(tuple(marks), tuple(keys), full, len(marks) == len(facts), origin, bridges)

    def _mark(self, fact: Facts, index: int, chain: bytes) -> Mark:
        key = (index, chain, fact.own)
        mark = self._marks.get(key)
        if mark is None:
            after = message_hash.extend(chain, fact.own, self._secret)
            mark = Mark(index=index, role=fact.role, own=fact.own, chain=after, distinctive=fact.distinctive)
            self._marks.put(key, mark)
        return mark

    def mark_reply(self, history: History, message: Message, index: int) -> Mark:
        """The mark of our own reply, behind the request's last mark."""
        chain = history.marks[-1].chain if history.marks else message_hash.ROOT
        return message_hash.mark(message, index=index, chain=chain, key=self._secret)

    def remember(self, history: History, mark: Mark, request: Request, reply: Reply) -> None:
        """A reply ended whole: its next turn goes on from these very tokens."""
        key = request.scope.encode() + mark.chain
        self._answered.put(key, True)
        self._sought.put(key, True)
        self._keep(key, reply.response_ids, str(reply.message.get("reasoning_content") or ""))
        if history.bridges:
            end = history.end.copy()
            end.update(mark.own)
            self._bridges.put(end.digest(), Past(request.prompt_ids, reply.response_ids))


def _reused(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) for piece in pieces if not isinstance(piece, str))
