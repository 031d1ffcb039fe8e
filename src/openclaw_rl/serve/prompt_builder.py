"""Build prompt ids from a conversation: continue stored tokens if the history is unchanged ("bridge"), else render.

Every message is hashed once, for its mark (linking; without ephemeral messages) and for a chain over all messages
(bridging: a prompt may continue stored tokens only if it continues everything that was sent). In a rendered prompt,
our earlier replies are recognised by their marks and keep their sampled tokens.

Lessons are text in the last user message of the prompt that the client has not sent. The marks do not see it. The chain
for bridging does: the next prompt, whose history has the message as the client sent it, does not continue these tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from openclaw_rl.common import message_hash
from openclaw_rl.common.images.image_prompt import ImagePrompt
from openclaw_rl.common.large_requests import call_in, run_large, stop_if_cancelled
from openclaw_rl.errors import PromptTooLong
from openclaw_rl.render.caches import SampledTokens, TokenBudgetLRU, TwoGenerationLRU
from openclaw_rl.render.degradation import Degradation, Shown
from openclaw_rl.render.hint import hinted_index, lessons_hint, with_hint
from openclaw_rl.render.renderer import RenderedPrompt, Renderer
from openclaw_rl.render.splice import PromptPiece, SampledReply
from openclaw_rl.serve.chat_request import ChatRequest, field_error
from openclaw_rl.serve.images.image_rendering import ImageRenderer
from openclaw_rl.serve.lessons.lesson_picker import LessonLookup
from openclaw_rl.serve.message_features import MessageFeatures, ToolFeatures
from openclaw_rl.serve.prompt_recovery import PromptRecovery
from openclaw_rl.types import Ids, Mark, Message, Reply, Request

# New characters above which a thread tokenizes, so that streams do not stall.
TOKENIZE_IN_THREAD_CHARS = 16 * 1024
# Size of the per-message cache, in bytes of messages.
FEATURE_CACHE_BYTES = 16 * 2**20
# More characters per token of the limit are checked in slices before they are tokenized whole.
CHARS_PER_TOKEN = 4
# Body size above which a thread also hashes and renders.
BUILD_IN_THREAD_BYTES = 512 * 1024
# Number of messages above which it does.
BUILD_IN_THREAD_MESSAGES = 1000
# Size of the cache of sampled replies for rendered prompts, in tokens.
REPLY_CACHE_TOKENS = 4 * 2**20
# Number of a history's last replies that are read from the store after a restart.
MAX_RECOVERED_REPLIES = 64

# Number of a history's last messages by which lessons for the conversation are found.
MAX_CHAINS = 2048


@dataclass(frozen=True, slots=True)
class HashedHistory:
    """Hashes of a conversation. `reply_keys`: index of each reply, and the hash of all messages up to it."""

    marks: tuple[Mark, ...]
    reply_keys: tuple[tuple[int, bytes], ...]
    hash_state: blake2b  # state of the hash over all messages, to be continued with the reply
    has_no_ephemeral: bool  # whether it has no ephemeral message
    origin: tuple[str, str] | None = None  # (session, agent) that the first user message states
    # Whether template and variables allow the next prompt to continue this one's ids.
    can_bridge: bool = False


@dataclass(frozen=True, slots=True)
class BuiltPrompt:
    """The prompt of a request.

    `reused`: number of ids that come from stored exchanges. `has_acting_token`: the text of a message, a tool or a
    variable has a control token that acts as such.
    """

    rendered: RenderedPrompt
    history: HashedHistory
    reused: int
    has_acting_token: bool = False
    lessons: Mapping[str, str] = field(default_factory=dict)  # id -> text of those in the prompt
    withdrawn: tuple[str, ...] = ()  # ids of the lessons that cost correctness
    # The conversation, if it has images: the engine has rendered it.
    with_images: ImagePrompt | None = None
    # What was changed in the rendering of a history that the template refuses as it was sent.
    degraded: tuple[Degradation, ...] = ()


class PromptBuilder:
    """Builds prompts, and caches the tokens of finished exchanges."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        secret: bytes,
        is_ephemeral: Callable[[Message], bool],
        recall: PromptRecovery | None = None,
        image_renderer: ImageRenderer | None = None,
    ) -> None:
        self.renderer = renderer
        self._image_renderer = image_renderer
        self._secret = secret
        self.is_ephemeral = is_ephemeral
        self._token_source = recall
        self._exchange_tokens: TokenBudgetLRU[SampledTokens] = TokenBudgetLRU()
        self._sampled_replies: TokenBudgetLRU[SampledReply] = TokenBudgetLRU(REPLY_CACHE_TOKENS)
        # Chain hashes of the replies and exchanges that were looked up already.
        self._replies_looked_up: TwoGenerationLRU[bytes, bool] = TwoGenerationLRU(65536)
        self._exchanges_looked_up: TwoGenerationLRU[bytes, bool] = TwoGenerationLRU(65536)
        self._feature_cache: TwoGenerationLRU[bytes, MessageFeatures] = TwoGenerationLRU(
            FEATURE_CACHE_BYTES, lambda raw, features: len(raw) + 256
        )
        self._tool_cache: TwoGenerationLRU[bytes, ToolFeatures] = TwoGenerationLRU(256)
        self._mark_cache: TwoGenerationLRU[tuple[int, bytes, bytes], Mark] = TwoGenerationLRU(
            131072
        )

    async def build_prompt(
        self, request: ChatRequest, scope: str, limit: int, lookup: LessonLookup | None = None
    ) -> BuiltPrompt:
        """Build the prompt. Raises `RequestError` if the template rejects the conversation or a client's variable.

        Raises `PromptTooLong` before it renders or tokenizes text that exceeds `limit` tokens by far.
        """
        large = (
            request.size > BUILD_IN_THREAD_BYTES or len(request.messages) > BUILD_IN_THREAD_MESSAGES
        )
        if request.size > CHARS_PER_TOKEN * limit:
            await run_large(lambda: self._check_length(_kept_texts(request.messages), limit))
        features, tools = await call_in(self._read_request, request, in_thread=large)
        lessons: Mapping[str, str] = {}
        if lookup is not None:
            lessons = await lookup.find_lessons(
                _stated_origin(features), lambda: self._message_chains(features)
            )
        if lessons and (at := hinted_index(request.messages, self.is_ephemeral)) is not None:
            request, features = self._add_hint(
                request, features, lessons_hint(lessons.values()), at
            )
        else:
            lessons = {}
        history = await call_in(
            self._hash_history, features, tools, scope, request.template_variables, in_thread=large
        )
        acts = tools.has_acting_token or any(f.has_acting_token for f in features)
        acts = acts or any(map(self.renderer.has_acting_token, request.template_variables.values()))
        if request.images:
            assert self._image_renderer is not None, (
                "images are admitted only if the engine reads them"
            )
            rendered, conversation = await self._image_renderer.render_prompt(
                request, features, tools
            )
            return BuiltPrompt(
                rendered,
                replace(history, can_bridge=False),
                0,
                acts,
                lessons,
                with_images=conversation,
            )
        bridge = None
        if request.prefix is None:
            keys = history.reply_keys
            bridge = self._exchange_tokens.find_last(keys) or await self._recover_exchange(
                request, scope, history
            )
        if (
            bridge
            and (text := await call_in(self._text_after, request, bridge[0], in_thread=large))
            is not None
        ):
            new = await self._tokenize_pieces(text, [text], limit, in_thread=large)
            bridged = self.renderer.bridge_prompt(bridge[1].prompt_ids, bridge[1].response_ids, new)
            if bridged is not None:
                return BuiltPrompt(bridged, history, len(bridge[1]), acts, lessons)
        await self._recover_replies(scope, history)
        whole, pieces = await call_in(
            self._render_pieces, request, scope, features, tools, history, in_thread=large
        )
        reused = sum(len(piece) for piece in pieces if not isinstance(piece, str))
        rendered = await self._tokenize_pieces(whole.text, pieces, limit, in_thread=large)
        if whole.steps:
            # The next prompt is rendered whole again, so that its response names the steps, too.
            history = replace(history, can_bridge=False)
        return BuiltPrompt(rendered, history, reused, acts, lessons, degraded=whole.steps)

    async def build_completion(
        self, request: ChatRequest, limit: int
    ) -> tuple[ChatRequest, BuiltPrompt]:
        """Build the prompt of a text completion. Returns the request with the prompt as its only message, too.

        The message has no mark, so that no conversation is linked to the prompt or continues its tokens.
        """
        run = run_large if request.size > BUILD_IN_THREAD_BYTES else asyncio.to_thread
        text, ids = await run(self._read_completion, request.completion_prompt, limit)
        history = HashedHistory(
            (), (), blake2b(digest_size=16, key=self._secret), has_no_ephemeral=False
        )
        prompt = BuiltPrompt(RenderedPrompt(prompt_ids=ids, thinking=False), history, 0)
        return replace(request, messages=[{"role": "user", "content": text}]), prompt

    def _read_completion(self, prompt: str | Sequence[int] | None, limit: int) -> tuple[str, Ids]:
        if isinstance(prompt, str):
            self._check_length([prompt], limit)
            return prompt, self.renderer.encode_completion_prompt(prompt)
        token_ids = list(prompt or ())
        if len(token_ids) >= limit:
            raise PromptTooLong(len(token_ids), limit)
        size = self.renderer.vocabulary_size
        if (unknown := max(token_ids, default=0)) >= size:
            raise field_error("prompt", f"token {unknown} is outside the vocabulary of {size}.")
        text = self.renderer.tokenizer.backend.decode(token_ids, skip_special_tokens=False)
        return text, np.array(token_ids, dtype=np.int32)

    def _read_request(self, request: ChatRequest) -> tuple[list[MessageFeatures], ToolFeatures]:
        return self._message_features(request), self._tool_features(request)

    def _add_hint(
        self, request: ChatRequest, features: Sequence[MessageFeatures], hint: str, at: int
    ) -> tuple[ChatRequest, list[MessageFeatures]]:
        """Return the request and its features with a hint at the message `at`. Its mark stays that of the message."""
        messages = with_hint(request.messages, hint, self.is_ephemeral, self.renderer.hint_format)
        features = list(features)
        ready = self.renderer.prepare_message(messages[at])
        sent = blake2b(
            features[at].sent_hash + hint.encode("utf-8", "surrogatepass"),
            digest_size=16,
            key=self._secret,
        )
        features[at] = replace(
            features[at],
            template_message=ready,
            sent_hash=sent.digest(),
            has_acting_token=self.renderer.message_has_acting_token(ready),
        )
        return replace(request, messages=messages), features

    def _text_after(self, request: ChatRequest, index: int) -> str | None:
        return self.renderer.text_after(
            request.messages[index], request.messages[index + 1 :], tools=bool(request.tools)
        )

    def _render_pieces(
        self,
        request: ChatRequest,
        scope: str,
        features: Sequence[MessageFeatures],
        tools: ToolFeatures,
        history: HashedHistory,
    ) -> tuple[Shown, list[PromptPiece]]:
        """Return the rendered text, and the text as pieces in which our verbatim replies are sampled ids."""
        ready = [f.template_message for f in features]
        known: list[SampledReply] = []
        for mark in history.marks:
            sampled = (
                self._sampled_replies.get(scope.encode() + mark.chain)
                if mark.role == "assistant"
                else None
            )
            if sampled is not None:
                known.append(sampled)
                if sampled.reasoning and "reasoning_content" not in ready[mark.index]:
                    ready[mark.index] = self.renderer.with_reasoning(
                        ready[mark.index], sampled.reasoning
                    )
        if request.prefix is not None:
            ready.append(self.renderer.prepare_cut_message(request.prefix))
        shown = self.renderer.render_shown(
            ready,
            tools.template_tools,
            generation=request.prefix is None,
            variables=request.template_variables,
        )
        if request.prefix is not None:
            shown = shown._replace(text=self.renderer.cut_text(shown.text))
        return shown, self.renderer.splice_replies(shown.text, known)

    def _check_length(self, texts: Sequence[str], limit: int) -> None:
        """Raise `PromptTooLong` if `texts` alone exceed `limit` tokens. Texts that hardly can are not tokenized."""
        tokenizer = self.renderer.tokenizer
        chars = sum(map(len, texts))
        if chars <= CHARS_PER_TOKEN * limit:
            return
        longest = tokenizer.longest_token_bytes
        if longest is not None and chars // longest > limit:
            raise PromptTooLong(chars // longest, limit, is_minimum=True)
        if (tokens := tokenizer.count_beyond(texts, limit)) is not None:
            raise PromptTooLong(tokens, limit, is_minimum=True)

    async def _tokenize_pieces(
        self, text: str, pieces: Sequence[PromptPiece], limit: int, *, in_thread: bool
    ) -> RenderedPrompt:
        if len(text) > CHARS_PER_TOKEN * limit:
            await run_large(self._check_length, [p for p in pieces if isinstance(p, str)], limit)
        split, new_chars = await call_in(self._split_pieces, pieces, in_thread=in_thread)
        if new_chars > TOKENIZE_IN_THREAD_CHARS and not in_thread:
            return await asyncio.to_thread(self._join_pieces, text, split)
        return await call_in(self._join_pieces, text, split, in_thread=in_thread)

    def _split_pieces(self, pieces: Sequence[PromptPiece]) -> tuple[list[list[str] | Ids], int]:
        """Return the pieces with each text split for the tokenizer, and the number of characters not in its cache."""
        tokens = self.renderer.tokenizer
        split = [tokens.split_text(piece) if isinstance(piece, str) else piece for piece in pieces]
        return split, sum(
            tokens.count_uncached_chars(piece) for piece in split if isinstance(piece, list)
        )

    def _join_pieces(self, text: str, split: Sequence[list[str] | Ids]) -> RenderedPrompt:
        join = self.renderer.tokenizer.join_ids
        ids = [join(piece) if isinstance(piece, list) else piece for piece in split]
        whole = ids[0] if len(ids) == 1 else np.concatenate(ids)
        return RenderedPrompt(prompt_ids=whole, thinking=self.renderer.family.opens_thinking(text))

    async def _recover_exchange(
        self, request: ChatRequest, scope: str, history: HashedHistory
    ) -> tuple[int, SampledTokens] | None:
        """After a restart, return (message index, tokens) of the history's last reply from the store, or None."""
        if self._token_source is None or not (
            history.can_bridge and history.has_no_ephemeral and history.reply_keys
        ):
            return None
        index, key = history.reply_keys[-1]
        chain = next(m.chain for m in history.marks if m.index == index)
        if self._exchanges_looked_up.get(scope.encode() + chain):
            return None
        self._exchanges_looked_up.put(scope.encode() + chain, True)
        past = await asyncio.to_thread(
            self._token_source.find_exchange, scope, chain, request.tools
        )
        if past is None:
            return None
        self._exchange_tokens.put(key, past)
        return index, past

    async def _recover_replies(self, scope: str, history: HashedHistory) -> None:
        """After a restart, load the sampled replies of this history from the store, once."""
        if self._token_source is None:
            return
        prefix = scope.encode()
        chains = [m.chain for m in history.marks if m.role == "assistant"]
        chains = [chain for chain in chains if not self._replies_looked_up.get(prefix + chain)]
        if not chains:
            return
        for chain in chains:
            self._replies_looked_up.put(prefix + chain, True)
        recovered = await asyncio.to_thread(
            self._token_source.find_replies, scope, chains[-MAX_RECOVERED_REPLIES:]
        )
        for chain, (ids, reasoning) in recovered.items():
            self._cache_reply(prefix + chain, ids, reasoning)

    def _cache_reply(self, key: bytes, response_ids: Ids, reasoning: str) -> None:
        if (sampled := self.renderer.make_sampled_reply(response_ids, reasoning)) is not None:
            self._sampled_replies.put(key, sampled)

    def _message_features(self, request: ChatRequest) -> list[MessageFeatures]:
        """Return the features of each message; messages with the same bytes are computed once."""
        if not request.raw:
            return [self._compute_features(m) for m in request.messages]
        known = self._feature_cache.get
        return [
            known(raw) or self._compute_and_cache(raw, m)
            for raw, m in zip(request.raw, request.messages, strict=True)
        ]

    def _compute_and_cache(self, raw: bytes, message: Message) -> MessageFeatures:
        features = self._compute_features(message)
        self._feature_cache.put(raw, features)
        return features

    def _compute_features(self, message: Message) -> MessageFeatures:
        stop_if_cancelled()
        mark = message_hash.mark_message(
            message, index=0, chain=message_hash.CHAIN_ROOT, key=self._secret
        )
        sent = mark.own
        text = message_hash.message_text(message)
        if mark.role == "user" and message_hash.hashed_text(message) != message_hash.normalise_text(
            text
        ):
            sent = blake2b(
                mark.own + text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._secret
            ).digest()
        ready = self.renderer.prepare_message(message)
        return MessageFeatures(
            mark.own,
            mark.role,
            mark.distinctive,
            self.is_ephemeral(message),
            ready,
            sent,
            message_hash.openclaw_session(message),
            self.renderer.message_has_acting_token(ready),
        )

    def _tool_features(self, request: ChatRequest) -> ToolFeatures:
        # Else their bytes are unknown, and there is no cache key.
        named = bool(request.raw_tools) or not request.tools
        if named and (known := self._tool_cache.get(request.raw_tools)) is not None:
            return known
        plain = msgspec.json.encode(request.tools) if request.tools else b""
        digest = blake2b(plain, digest_size=16, key=self._secret).digest()
        ready = self.renderer.prepare_tools(request.tools)
        tools = ToolFeatures(ready, digest, self.renderer.has_acting_token(ready))
        if named:
            self._tool_cache.put(request.raw_tools, tools)
        return tools

    def _hash_history(
        self,
        features: Sequence[MessageFeatures],
        tools: ToolFeatures,
        scope: str,
        variables: Mapping[str, Any],
    ) -> HashedHistory:
        """Hash the conversation. Scope, tools and variables are part of the hash: keys share nothing."""
        secret = self._secret
        chain = message_hash.CHAIN_ROOT
        full = blake2b(scope.encode() + tools.digest, digest_size=16, key=secret)
        if variables:
            full.update(msgspec.json.encode(variables, order="deterministic"))
        marks: list[Mark] = []
        keys: list[tuple[int, bytes]] = []
        for index, feature in enumerate(features):
            full.update(feature.sent_hash)
            if not feature.is_ephemeral:
                mark = self._message_mark(feature, index, chain)
                marks.append(mark)
                chain = mark.chain
            if feature.role == "assistant":
                keys.append((index, full.copy().digest()))
        bridges = self.renderer.bridge_unsupported_reason is None and not variables
        origin = _stated_origin(features)
        return HashedHistory(
            tuple(marks), tuple(keys), full, len(marks) == len(features), origin, bridges
        )

    def _message_chains(self, features: Sequence[MessageFeatures]) -> list[bytes]:
        """Return the chained hashes of the last messages, oldest first."""
        chains = [message_hash.CHAIN_ROOT]
        for index, feature in enumerate(features):
            if not feature.is_ephemeral:
                chains.append(self._message_mark(feature, index, chains[-1]).chain)
        return chains[1:][-MAX_CHAINS:]

    def _message_mark(self, feature: MessageFeatures, index: int, chain: bytes) -> Mark:
        key = (index, chain, feature.own_hash)
        mark = self._mark_cache.get(key)
        if mark is None:
            after = message_hash.extend_chain(chain, feature.own_hash, self._secret)
            mark = Mark(
                index=index,
                role=feature.role,
                own=feature.own_hash,
                chain=after,
                distinctive=feature.distinctive,
            )
            self._mark_cache.put(key, mark)
        return mark

    def mark_reply(self, history: HashedHistory, message: Message, index: int) -> Mark:
        """Return the mark of our reply, which follows the request's last mark."""
        chain = history.marks[-1].chain if history.marks else message_hash.CHAIN_ROOT
        return message_hash.mark_message(message, index=index, chain=chain, key=self._secret)

    def cache_finished_reply(
        self, history: HashedHistory, mark: Mark, record: Request, reply: Reply
    ) -> None:
        """Cache the tokens of a complete reply, so that the next turn continues them."""
        key = record.scope.encode() + mark.chain
        self._exchanges_looked_up.put(key, True)
        self._replies_looked_up.put(key, True)
        self._cache_reply(
            key, reply.response_ids, str(reply.message.get("reasoning_content") or "")
        )
        if history.can_bridge:
            end = history.hash_state.copy()
            end.update(mark.own)
            self._exchange_tokens.put(
                end.digest(), SampledTokens(record.prompt_ids, reply.response_ids)
            )


def _stated_origin(features: Sequence[MessageFeatures]) -> tuple[str, str] | None:
    """Return the (session, agent) that the first user message states."""
    first = next((feature for feature in features if feature.role == "user"), None)
    return first.origin if first else None


def _kept_texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts that every template keeps. (Some drop the reasoning of replies.)"""
    return [message_hash.message_text(m) for m in messages if m.get("role") != "assistant"]
