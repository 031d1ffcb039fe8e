"""State that all requests share (renderer, engine, versions, writer), and the start of an exchange."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from openclaw_rl.common import message_hash
from openclaw_rl.common.disk_space import DiskMonitor
from openclaw_rl.common.large_requests import call_in
from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.common.steady_clock import recorded_time
from openclaw_rl.errors import PromptTooLong, RequestError
from openclaw_rl.protocols import Engine, ImageEngine
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.render.renderer import RenderedPrompt, Renderer
from openclaw_rl.serve.auth import Caller
from openclaw_rl.serve.chat_request import (
    MIN_TEMPERATURE,
    ChatRequest,
    ReplyHeader,
    ResponseConstraint,
    choice_id,
    field_error,
)
from openclaw_rl.serve.episodes.open_episodes import OpenEpisodes, apply_episode
from openclaw_rl.serve.gate.canary import conversation_of
from openclaw_rl.serve.group_commit import GroupCommitWriter
from openclaw_rl.serve.images.image_admission import admit_images, text_only_reason
from openclaw_rl.serve.images.image_rendering import ImageRenderer
from openclaw_rl.serve.inflight_reply import InflightReply
from openclaw_rl.serve.lessons.lesson_examiner import LessonExaminer
from openclaw_rl.serve.lessons.lesson_picker import LessonPicker
from openclaw_rl.serve.lessons.probe_asker import ProbeAsker
from openclaw_rl.serve.previous_response import resolve_previous_response
from openclaw_rl.serve.prompt_builder import BUILD_IN_THREAD_BYTES, BuiltPrompt, PromptBuilder
from openclaw_rl.serve.prompt_recovery import PromptRecovery
from openclaw_rl.serve.structured_output import build_grammar, grammar_error
from openclaw_rl.serve.versions.version_manager import VersionManager
from openclaw_rl.settings.load import Config, SamplingOverride
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes.episodes import running_episodes
from openclaw_rl.store.lineage.policy_names import policy_name
from openclaw_rl.types import Capture, Kind, Request, Sampling

log = logging.getLogger(__name__)

# Ids need to be unique and cheap, not secret.
_id_generator = random.Random(random.SystemRandom().getrandbits(256))

# Tokens, if neither the settings nor the model define the context length.
DEFAULT_CONTEXT_TOKENS = 4096
CONTINUED = Reason(
    ReasonCode.CONTINUED,
    "the reply continues a message of the client; only whole replies are trained on",
)
CONTROL_TOKEN = Reason(
    ReasonCode.CONTROL_TOKEN,
    "a message, tool or template variable has the text of a control token, and the model reads it as that token",
)
WITH_IMAGES = Reason(ReasonCode.IMAGES, "its prompt has images, and the trainer reads text only")
# Questions in one call of the examiner of lessons.
EXAMINED_AT_ONCE = 4
# A longer prompt is refused also where its tokens are only counted.
MAX_COUNTED_CONTEXTS = 8
# Smaller bodies are always read, as the error is then more precise.
MIN_REFUSED_BODY_BYTES = 2**20
# A byte of text takes up to six in JSON: \u0001.
MAX_JSON_BYTES_PER_BYTE = 6


class Gateway:
    """Shared state of all requests."""

    def __init__(
        self, config: Config, *, store: Store, engine: Engine, renderer: Renderer, identity: str
    ) -> None:
        self.config = config
        self.store = store
        self.engine = engine
        self.renderer = renderer
        self.identity = identity
        self.metrics = GatewayMetrics()
        # Replies in flight.
        self.running_replies = 0
        # For replies, from their authentication to the last byte that is sent.
        self.open_requests = 0
        self.metrics.running.set_function(lambda: self.running_replies)
        self.disk = DiskMonitor(store.path.parent)
        self.writer = GroupCommitWriter(store, self.metrics, self.disk)
        self.versions = VersionManager(
            store, engine, cap=config.engine.max_loaded_versions, metrics=self.metrics
        )
        self.prompt_builder = PromptBuilder(
            renderer,
            secret=store.secret,
            is_ephemeral=message_hash.EphemeralMatcher(config.serve.ephemeral_patterns),
            recall=PromptRecovery(store, identity=identity, stop_token_ids=renderer.stop_token_ids),
            image_renderer=ImageRenderer(engine, renderer)
            if isinstance(engine, ImageEngine)
            else None,
        )
        self.examiner = self._make_examiner() if config.serve.examine_lessons else None
        self.lessons = LessonPicker(
            store,
            config.serve.lessons,
            config.policy.per,
            topics=load_topics(config.judge.wishes_path),
            is_ephemeral=self.prompt_builder.is_ephemeral,
            identity=identity,
            examine=None if self.examiner is None else self.examiner.submit,
        )
        # Whether the engine supports grammars; True until the engine has reported it.
        self.supports_grammar = True
        # Until the engine has reported whether its model does.
        self.reads_images = isinstance(engine, ImageEngine)
        self.context_length = (
            config.engine.max_context or renderer.context_length or DEFAULT_CONTEXT_TOKENS
        )
        self._sampling_override = sampling_fields(config.serve.sampling_override)
        with store.read() as conn:
            self.episodes = OpenEpisodes(running_episodes(conn))
        self.version_task: asyncio.Task[None] | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()

    def _make_examiner(self) -> LessonExaminer:
        asker = ProbeAsker(
            self.engine,
            self.versions,
            self.renderer,
            convention=self.config.engine.effective_convention,
            at_once=EXAMINED_AT_ONCE,
        )
        return LessonExaminer(
            self.store,
            asker,
            self.versions,
            identity=self.identity,
            is_idle=lambda: self.open_requests == 0 and self.versions.problem is None,
            measures_at_start=engine_spec(self.config).runs_here,
        )

    def check_running(self, caller: Caller) -> None:
        """Raise `RequestError` (410) if the caller's key is for an episode that has ended."""
        if caller.episode is not None:
            self.episodes.get_running(caller.episode)

    def apply_episode(self, ask: ChatRequest, caller: Caller) -> ChatRequest:
        """Return the request as one of the caller's episode, if the key is for one. Raises as `check_running` does."""
        if caller.episode is None:
            return ask
        ask = replace(ask, sampling=replace(ask.sampling, **self._sampling_override))
        return apply_episode(
            ask, self.episodes.get_running(caller.episode), self.config.engine.effective_convention
        )

    async def begin_replies(self, ask: ChatRequest, caller: Caller) -> list[InflightReply]:
        """Begin the request's `n` replies: one prompt and one version for all, and one exchange for each.

        For each reply, the caller iterates `stream_parts` or calls `cancel_unstarted`. Raises `RequestError`, and
        `DiskFull` if no reply could be recorded.
        """
        self.disk.check()
        scope = caller.scope
        ask = await self._complete_request(ask, scope)
        pinned, name = self._parse_model(ask.model)
        if ask.completion_prompt is None:
            has_lessons = caller.episode is None
            prompt = await self._build_prompt(
                ask, scope, self.context_length, name, has_lessons=has_lessons
            )
        else:
            ask, prompt = await self.prompt_builder.build_completion(ask, self.context_length)
        override = self._sampling_override if caller.episode is None else {}
        sampling = self._effective_sampling(ask, prompt.rendered, override)
        if pinned is None:
            session, agent = prompt.history.origin or (None, "")
            owner = policy_name(
                self.config.policy.per, agent=ask.agent or agent, user=ask.user, key=caller.owner
            )
            conversation = conversation_of(scope, ask.session or session, prompt.history)
            version = self.versions.acquire_current(owner, conversation)
        else:
            version = await self.versions.acquire_version(pinned)
        if caller.episode is not None:
            try:
                self.episodes.reserve_replies(caller.episode, ask.n)
            except RequestError:
                self.versions.release(version)
                raise
        request = self._make_request(ask, caller, prompt, sampling, version)
        prompt_tokens = len(request.prompt_ids)
        self.metrics.prompt_tokens.inc(prompt_tokens)
        self.metrics.reused_tokens.inc(prompt.reused)
        header = ReplyHeader(
            id=request.id,
            created=int(request.admitted_at),
            model=name,
            version=version,
            prompt_tokens=prompt_tokens,
            lessons=tuple(prompt.lessons),
            withdrawn=prompt.withdrawn,
            ignored=ask.ignored_fields,
        )
        if ask.return_token_ids:
            header = replace(header, prompt_ids=request.prompt_ids.tolist())
        out = [InflightReply(self, ask, request, prompt, header)]
        for number in range(1, ask.n):
            self.versions.acquire_again(version)
            other = _copy_for_choice(request, number)
            out.append(InflightReply(self, ask, other, prompt, replace(header, id=other.id)))
        log.debug(
            "%s: %s, %d replies of version %d, %d prompt tokens (%d reused), session %s",
            *(
                request.id,
                request.dialect,
                ask.n,
                version,
                prompt_tokens,
                prompt.reused,
                request.session,
            ),
        )
        return out

    async def _complete_request(self, ask: ChatRequest, scope: str) -> ChatRequest:
        """Return the request with its whole conversation, and with its images read. Raises `RequestError`."""
        ask = await resolve_previous_response(ask, scope, self.store)
        return await call_in(
            admit_images, ask, self.image_refusal, in_thread=ask.size > BUILD_IN_THREAD_BYTES
        )

    @property
    def image_refusal(self) -> str | None:
        """Why images cannot be sent to the model, for the client; None if they can."""
        return text_only_reason(
            self.config.model.name,
            folder_problem=self.renderer.files.image_problem,
            engine=self.config.engine.backend,
            reads_images=self.reads_images,
        )

    def _make_request(
        self,
        ask: ChatRequest,
        caller: Caller,
        prompt: BuiltPrompt,
        sampling: Sampling,
        version: int,
    ) -> Request:
        """Return the record of a request that this version answers. Its first message may state session and agent."""
        session, agent = prompt.history.origin or (None, "")
        session = ask.session or session
        capture = Capture(self.config.serve.capture)
        return Request(
            id=f"{ask.id_prefix}{_id_generator.getrandbits(112):028x}",
            scope=caller.scope,
            agent=ask.agent or agent,
            user=ask.user,
            session=message_hash.hash_session(session)
            if session and capture is Capture.REDACTED
            else session,
            kind=ask.kind,
            capture=capture,
            session_done=ask.session_done,
            episode=caller.episode,
            dialect=ask.dialect,
            messages=ask.messages,
            tools=ask.tools,
            template=ask.template_variables,
            previous=ask.previous_id,
            marks=prompt.history.marks,
            sampling=sampling,
            prompt_ids=prompt.rendered.prompt_ids,
            lessons=prompt.lessons,
            version=version,
            identity=self.identity,
            admitted_at=recorded_time(),
            untrainable=self._untrainable_reason(ask, prompt),
        )

    def _untrainable_reason(self, ask: ChatRequest, prompt: BuiltPrompt) -> Reason | None:
        if ask.prefix is not None:
            return CONTINUED
        if prompt.with_images is not None:
            return ask.untrainable or WITH_IMAGES
        acts = prompt.has_acting_token and self.config.serve.special_tokens != "model"
        return ask.untrainable or (CONTROL_TOKEN if acts else None)

    async def count_prompt_tokens(self, ask: ChatRequest, scope: str) -> int:
        """Return the number of tokens of the prompt that `begin_replies` would render. Raises `RequestError`.

        A prompt may exceed the context here, so that a client learns by how much, but not without limit.
        """
        limit = MAX_COUNTED_CONTEXTS * self.context_length
        ask = await self._complete_request(ask, scope)
        pinned, name = self._parse_model(ask.model)
        if pinned is not None:
            self.versions.release(await self.versions.acquire_version(pinned))
        return len((await self._build_prompt(ask, scope, limit, name)).rendered.prompt_ids)

    def check_body_size(self, size: int, *, contexts: int = 1) -> None:
        """Raise `PromptTooLong` if a body of `size` bytes is longer than any prompt of so many contexts can be.

        With images, the size says nothing: a large one may take few tokens.
        """
        bytes_per_token = self.renderer.tokenizer.longest_token_bytes
        if bytes_per_token is None or size < MIN_REFUSED_BODY_BYTES or self.image_refusal is None:
            return
        tokens = size // (bytes_per_token * MAX_JSON_BYTES_PER_BYTE)
        limit = self.context_length
        if tokens > contexts * limit:
            raise PromptTooLong(tokens, limit, is_minimum=True)

    async def _build_prompt(
        self, ask: ChatRequest, scope: str, limit: int, model: str, *, has_lessons: bool = True
    ) -> BuiltPrompt:
        """Build the prompt with the lessons for it. `model`: a request for one version gets none, nor do side calls.

        An evaluation may ask for them. A prompt that has no space for the lessons is built without them. `has_lessons`:
        False in episodes.
        """
        # In every template a message takes at least one token.
        if len(ask.messages) > limit:
            raise PromptTooLong(len(ask.messages), limit, is_minimum=True)
        try:
            is_alone = ask.kind is Kind.SIDE or model.startswith(f"{self.config.model.name}@")
            if (
                not has_lessons
                or self.config.serve.lessons == "off"
                or (is_alone and not ask.with_lessons)
            ):
                return await self.prompt_builder.build_prompt(ask, scope, limit)
            return await self._build_with_lessons(ask, scope, limit)
        except RecursionError:
            raise field_error("messages", "nested too deeply.") from None

    async def _build_with_lessons(self, ask: ChatRequest, scope: str, limit: int) -> BuiltPrompt:
        lookup = self.lessons.lookup(ask, scope)
        try:
            prompt = await self.prompt_builder.build_prompt(ask, scope, limit, lookup)
        except PromptTooLong:
            if not lookup.found.texts:
                raise
        else:
            if not prompt.lessons or len(prompt.rendered.prompt_ids) < limit:
                return replace(prompt, withdrawn=lookup.found.withdrawn)
        return await self.prompt_builder.build_prompt(ask, scope, limit)

    def _parse_model(self, model: str) -> tuple[int | None, str]:
        """Return (the version that the client pinned, the model name for the response). Raises `RequestError` (404)."""
        name = self.config.model.name
        if model in (name, ""):
            return None, name
        base, _, pin = model.partition("@")
        if base == name and pin.isascii() and pin.isdigit() and len(pin) < 10:
            return int(pin), model
        if self.config.serve.any_model:
            return None, model
        raise RequestError(
            f"the model {model[:80]!r} is not here. Use {name!r} (the newest version, {self.versions.head}) "
            f"or {name}@<version> for an older version; GET /v1/models lists them.",
            param="model",
            code="model_not_found",
            status=404,
        )

    def _effective_sampling(
        self, ask: ChatRequest, rendered: RenderedPrompt, override: Mapping[str, Any]
    ) -> Sampling:
        """Return the request's sampling with `max_tokens` limited to the context, and with the fields of `override`."""
        prompt = len(rendered.prompt_ids)
        remains = self.context_length - prompt
        if remains < 1:
            raise PromptTooLong(prompt, self.context_length)
        sampling = ask.sampling
        top = self.renderer.vocabulary_size
        if (unknown := next((i for i in sampling.logit_bias if i >= top), None)) is not None:
            raise field_error("logit_bias", f"token {unknown} is outside the vocabulary of {top}.")
        limit: dict[str, Any] = {"max_tokens": min(sampling.max_tokens or remains, remains)}
        limit["convention"] = self.config.engine.effective_convention
        if ask.constraint is not None:
            if sampling.min_tokens:
                raise field_error(
                    "min_tokens",
                    f"conflicts with {ask.constraint.param}, which decides where a reply ends.",
                )
            limit["grammar"] = self._build_grammar(ask, ask.constraint, rendered)
        return replace(sampling, **(limit | dict(override)))

    def _build_grammar(
        self, ask: ChatRequest, forced: ResponseConstraint, rendered: RenderedPrompt
    ) -> str:
        if not self.supports_grammar:
            raise grammar_error("this engine does not support grammars", forced)
        try:
            return build_grammar(forced, ask.tools, self.renderer, thinking=rendered.thinking)
        except RecursionError:
            raise grammar_error("nested too deeply", forced) from None

    def spawn_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start background work that may outlive its request."""
        task = asyncio.get_running_loop().create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for the background work, then close the writer. Nothing waits for space on a full disk any more."""
        self.writer.stop_waiting()
        while self._background_tasks:
            await asyncio.gather(*self._background_tasks, return_exceptions=True)
        await asyncio.to_thread(self.writer.close)


def _copy_for_choice(request: Request, number: int) -> Request:
    """Copy the request as an exchange of its own. A given seed is incremented, or all replies would be the same."""
    sampling = request.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + number + 2**63) % 2**64 - 2**63)
    return replace(request, id=choice_id(request.id, number), sampling=sampling)


def sampling_fields(override: SamplingOverride) -> dict[str, Any]:
    """Return the `Sampling` fields that the owner sets. A temperature below `MIN_TEMPERATURE` becomes 0."""
    values = override.model_dump(exclude_none=True)
    if values.get("temperature", MIN_TEMPERATURE) < MIN_TEMPERATURE:
        values["temperature"] = 0.0
    if values.get("top_k") == -1:
        values["top_k"] = 0
    return values
