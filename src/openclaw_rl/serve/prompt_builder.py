"""Build prompt ids from a conversation: continue stored tokens if the history is unchanged ("bridge"), else render.

Every message is hashed once, for its mark (linking; without ephemeral messages) and for a chain over all messages
(bridging: a prompt may continue stored tokens only if it continues everything that was sent). In a rendered prompt,
our earlier replies are recognised by their marks and keep their sampled tokens.
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

THREAD_BYTES = 16 * 1024  # characters of new text above which a thread tokenizes, so that streams do not stall
CACHE_BYTES = 16 * 2**20  # size of the per-message cache, in bytes of messages
WHOLE_BYTES = 512 * 1024  # body size above which a thread also hashes and renders
SAID_TOKENS = 4 * 2**20  # size of the cache of sampled replies for rendered prompts, in tokens
SOUGHT = 64  # number of a history's last replies that are read from the store after a restart


class Recall(Protocol):
    """Source of stored tokens after a restart. Both methods may block."""

    def exchange(self, scope: str, chain: bytes, tools: Sequence[Mapping[str, Any]]) -> Past | None:
        """Return the ids of the exchange whose reply has this chain hash, if its next prompt may continue them."""

    def replies(self, scope: str, chains: Sequence[bytes]) -> Mapping[bytes, tuple[Ids, str]]:
        """Return chain hash -> (ids [R], reasoning) for the replies with one of these chain hashes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Values that are computed from one message."""

    own: bytes
    role: str
    distinctive: bool
    transient: bool
    ready: dict[str, Any]  # the message as the template takes it
    sent: bytes  # like `own_hash`, but includes text that the client inserts, because it changes the prompt
    origin: tuple[str, str] | None  # (session, agent) that the message states


@dataclass(frozen=True, slots=True)
class Tools:
    """Values that are computed from a request's tools."""

    ready: list[ReadyTool]
    digest: bytes


@dataclass(frozen=True, slots=True)
class History:
    """Hashes of a conversation. `reply_keys`: index of each reply, and the hash of all messages up to it."""

    marks: tuple[Mark, ...]
    keys: tuple[tuple[int, bytes], ...]
    end: blake2b  # state of the hash over all messages, to be continued with the reply
    plain: bool  # whether it has no ephemeral message
    origin: tuple[str, str] | None = None  # (session, agent) that the first user message states
    bridges: bool = False  # whether template and variables allow the next prompt to continue this one's ids


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a request. `reused`: number of ids that come from stored exchanges."""

    rendered: Rendered
    history: History
    reused: int


class Prompts:
    """Builds prompts, and caches the tokens of finished exchanges."""

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
        self._sought: Recent[bytes, bool] = Recent(65536)  # chain hashes of replies that were looked up already
        self._answered: Recent[bytes, bool] = Recent(65536)  # chain hashes of exchanges that were looked up already
        self._facts: Recent[bytes, Facts] = Recent(CACHE_BYTES, lambda raw, facts: len(raw) + 256)
        self._tools: Recent[bytes, Tools] = Recent(256)
        self._marks: Recent[tuple[int, bytes, bytes], Mark] = Recent(131072)

    async def prompt(self, ask: Ask, scope: str) -> Prompt:
        """Build the prompt. Raises `RequestError` if the template rejects the conversation or a client's variable."""
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
        """Build the prompt of a very large body, in a thread. Stored tokens are used only if they are cached."""
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
        """Return the template's text, and the text as pieces in which our verbatim replies are sampled ids."""
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
        """Return the pieces with each text split for the tokenizer, and the number of characters not in its cache."""
        tokens = self.renderer.tokens
        split = [tokens.split(piece) if isinstance(piece, str) else piece for piece in pieces]
        return split, sum(tokens.new_chars(piece) for piece in split if isinstance(piece, list))

    def _put_together(self, text: str, split: Sequence[list[str] | Ids]) -> Rendered:
        join = self.renderer.tokens.join
        ids = [join(piece) if isinstance(piece, list) else piece for piece in split]
        whole = ids[0] if len(ids) == 1 else np.concatenate(ids)
        return Rendered(prompt_ids=whole, thinking=self.renderer.family.opens_thinking(text))

    async def _recalled(self, ask: Ask, scope: str, history: History) -> tuple[int, Past] | None:
        """After a restart, return (message index, tokens) of the history's last reply from the store, or None."""
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
        """After a restart, load the sampled replies of this history from the store, once."""
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
        """Return the features of each message; messages with the same bytes are computed once."""
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
        named = bool(ask.raw_tools) or not ask.tools  # else their bytes are unknown, and there is no cache key
        if named and (known := self._tools.get(ask.raw_tools)) is not None:
            return known
        plain = msgspec.json.encode(ask.tools) if ask.tools else b""
        tools = Tools(ready_tools(ask.tools), blake2b(plain, digest_size=16, key=self._secret).digest())
        if named:
            self._tools.put(ask.raw_tools, tools)
        return tools

    def _history(self, facts: Sequence[Facts], tools: Tools, scope: str, variables: Mapping[str, Any]) -> History:
        """Hash the conversation. Scope, tools and variables are part of the hash: keys share nothing."""
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
        """Return the mark of our reply, which follows the request's last mark."""
        chain = history.marks[-1].chain if history.marks else message_hash.ROOT
        return message_hash.mark(message, index=index, chain=chain, key=self._secret)

    def remember(self, history: History, mark: Mark, request: Request, reply: Reply) -> None:
        """Cache the tokens of a complete reply, so that the next turn continues them."""
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
