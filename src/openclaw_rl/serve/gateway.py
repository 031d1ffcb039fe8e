"""State that all requests share (renderer, engine, versions, writer), and the start of an exchange."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from openclaw_rl.common import message_hash
from openclaw_rl.common.disk_space import DiskMonitor
from openclaw_rl.common.large_requests import call_in
from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.common.steady_clock import recorded_time
from openclaw_rl.errors import PromptTooLong, RequestError
from openclaw_rl.protocols import Engine, ImageEngine
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.auth import Caller
from openclaw_rl.serve.background_tasks import BackgroundTasks, RequestLoad
from openclaw_rl.serve.chat_request import (
    ChatRequest,
    ReplyHeader,
    choice_id,
    field_error,
)
from openclaw_rl.serve.episodes.open_episodes import OpenEpisodes, apply_episode
from openclaw_rl.serve.episodes.ticket_load import TicketLoad
from openclaw_rl.serve.gate.canary import conversation_of
from openclaw_rl.serve.group_commit import GroupCommitWriter
from openclaw_rl.serve.images.image_admission import admit_images, find_images, text_only_reason
from openclaw_rl.serve.images.image_rendering import ImageRenderer
from openclaw_rl.serve.inflight_reply import InflightReply
from openclaw_rl.serve.lessons.lesson_examiner import LessonExaminer
from openclaw_rl.serve.lessons.lesson_picker import LessonPicker
from openclaw_rl.serve.lessons.probe_asker import ProbeAsker
from openclaw_rl.serve.model_names import RequestedModel, parse_model
from openclaw_rl.serve.previous_response import resolve_previous_response
from openclaw_rl.serve.prompt_builder import BUILD_IN_THREAD_BYTES, BuiltPrompt, PromptBuilder
from openclaw_rl.serve.prompt_recovery import PromptRecovery
from openclaw_rl.serve.sampling_limits import SamplingLimits
from openclaw_rl.serve.versions.version_access import VersionAccess
from openclaw_rl.serve.versions.version_manager import VersionManager
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes.episodes import running_episodes
from openclaw_rl.store.lineage.policy_names import policy_name
from openclaw_rl.types import Capture, Kind, Request, Sampling

log = logging.getLogger(__name__)

# Ids need to be unique and cheap, not secret.
_id_generator = random.Random(random.SystemRandom().getrandbits(256))

CONTINUED = Reason(
    ReasonCode.CONTINUED,
    "the reply continues a message of the client; only whole replies are trained on",
)
CONTROL_TOKEN = Reason(
    ReasonCode.CONTROL_TOKEN,
    "a message, tool or template variable has the text of a control token, and the model reads it as that token",
)
UNREAD_CALLS = Reason(
    ReasonCode.UNREAD_CALLS,
    "calls of this chat template are not parsed, so a call in the reply stayed text and was not run",
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
        self.identity = identity
        self.metrics = GatewayMetrics()
        self.load = RequestLoad()
        self.metrics.running.set_function(lambda: self.load.running_replies)
        self.writer = GroupCommitWriter(store, self.metrics, DiskMonitor(store.path.parent))
        self.versions = VersionManager(
            store,
            engine,
            cap=config.engine.max_loaded_versions,
            metrics=self.metrics,
            # The gateway's own exchanges move no head, and under load they are written all the time.
            has_changed=self.writer.others_have_changed,
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
            load_topics=partial(load_topics, config.judge.wishes_path),
            is_ephemeral=self.prompt_builder.is_ephemeral,
            identity=identity,
            examine=None if self.examiner is None else self.examiner.submit,
        )
        self.version_access = VersionAccess(store)
        self.ticket_load = TicketLoad(max(config.serve.max_connections // 2, 1))
        self.sampling = SamplingLimits(config, renderer)
        # Until the engine has reported whether its model does.
        self.reads_images = isinstance(engine, ImageEngine)
        with store.read() as conn:
            self.episodes = OpenEpisodes(running_episodes(conn))
        self.background = BackgroundTasks()
        self.version_task: asyncio.Task[None] | None = None

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
            is_idle=lambda: self.load.open_requests == 0 and self.versions.problem is None,
            measures_at_start=engine_spec(self.config).runs_here,
        )

    def check_running(self, caller: Caller) -> None:
        """Raise `RequestError` (410) if the caller's key is for an episode that has ended."""
        if caller.episode is not None:
            self.episodes.get_running(caller.episode)

    def apply_episode(self, request: ChatRequest, caller: Caller) -> ChatRequest:
        """Return the request as one of the caller's episode, if the key is for one. Raises as `check_running` does."""
        if caller.episode is None:
            return request
        request = replace(request, sampling=replace(request.sampling, **self.sampling.override))
        return apply_episode(
            request,
            self.episodes.get_running(caller.episode),
            self.config.engine.effective_convention,
        )

    async def begin_replies(self, request: ChatRequest, caller: Caller) -> list[InflightReply]:
        """Begin the request's `n` replies: one prompt and one version for all, and one exchange for each.

        For each reply, the caller iterates `stream_parts` or calls `cancel_unstarted`. Raises `RequestError`, and
        `DiskFull` if no reply could be recorded.
        """
        self.disk.check()
        request = await self._complete_request(request, caller.scope)
        model = self._requested_model(request)
        request, prompt = await self._build_prompt(request, caller, model, self.context_length)
        sampling = self.sampling.effective_sampling(
            request, prompt.rendered, overrides=caller.episode is None
        )
        version = await self._acquire_version(request, caller, model, prompt)
        record = self._make_record(request, caller, prompt, sampling, version)
        self._count_prompt(request, record, prompt)
        header = ReplyHeader(
            id=record.id,
            created=int(record.admitted_at),
            model=model.name,
            version=version,
            prompt_tokens=len(record.prompt_ids),
            prompt_ids=record.prompt_ids.tolist() if request.return_token_ids else None,
            lessons=tuple(prompt.lessons),
            withdrawn=prompt.withdrawn,
            ignored=request.ignored_fields,
            degraded=tuple(dict.fromkeys([*request.degraded, *prompt.degraded])),
        )
        replies = []
        for number in range(request.n):
            if number:
                self.versions.acquire_again(version)
                header = replace(header, id=choice_id(record.id, number))
            choice = _copy_for_choice(record, number)
            replies.append(
                InflightReply(
                    self,
                    request,
                    choice,
                    prompt,
                    header,
                    is_pinned=model.is_pinned,
                )
            )
        return replies

    async def _acquire_version(
        self, request: ChatRequest, caller: Caller, model: RequestedModel, prompt: BuiltPrompt
    ) -> int:
        """Acquire the version that answers, and the places of the replies in the caller's episode."""
        session, agent = _stated_origin(request, prompt)
        owner = self.policy_of(caller, agent=agent, user=request.user)
        if model.version is not None:
            await self._check_access(model.version, caller, owner)
            version = await self.versions.acquire_version(model.version)
        else:
            conversation = partial(conversation_of, caller.scope, session, prompt.history)
            version = self.versions.acquire_current(owner, conversation)
        if caller.episode is not None:
            try:
                self.episodes.reserve_replies(caller.episode, request.n)
            except RequestError:
                self.versions.release(version)
                raise
        return version

    def policy_of(self, caller: Caller, *, agent: str, user: str) -> str:
        """Return the name of the policy that answers a caller."""
        return policy_name(self.config.policy.per, agent=agent, user=user, key=caller.owner)

    def granted_versions(self, caller: Caller) -> Collection[int]:
        """Return the versions that the owner of a ticket allowed it to name. Raises as `check_running` does."""
        if caller.episode is None:
            return ()
        return self.episodes.get_running(caller.episode).versions

    async def _check_access(self, version: int, caller: Caller, own_policy: str) -> None:
        """Raise `RequestError` (404) if the caller may not name this version."""
        await self.version_access.check(
            version,
            caller,
            own_policy=own_policy,
            newest=self.versions.head,
            granted=self.granted_versions(caller),
        )

    def _count_prompt(self, request: ChatRequest, record: Request, prompt: BuiltPrompt) -> None:
        prompt_tokens = len(record.prompt_ids)
        self.metrics.prompt_tokens.inc(prompt_tokens)
        self.metrics.reused_tokens.inc(prompt.reused)
        log.debug(
            "%s: %s, %d replies of version %d, %d prompt tokens (%d reused), session %s",
            record.id,
            record.dialect,
            request.n,
            record.version,
            prompt_tokens,
            prompt.reused,
            record.session,
        )

    async def _complete_request(self, request: ChatRequest, scope: str) -> ChatRequest:
        """Return the request with its whole conversation, and with its images read. Raises `RequestError`."""
        request = await resolve_previous_response(request, scope, self.store)
        is_large = request.size > BUILD_IN_THREAD_BYTES
        if not is_large and not find_images(request.messages):
            return request
        return await call_in(admit_images, request, self.image_refusal, in_thread=is_large)

    @property
    def image_refusal(self) -> str | None:
        """Why images cannot be sent to the model, for the client; None if they can."""
        return text_only_reason(
            self.config.model.name,
            folder_problem=self.renderer.files.image_problem,
            engine=self.config.engine.backend,
            reads_images=self.reads_images,
        )

    def _make_record(
        self,
        request: ChatRequest,
        caller: Caller,
        prompt: BuiltPrompt,
        sampling: Sampling,
        version: int,
    ) -> Request:
        """Return the record of a request that this version answers."""
        session, agent = _stated_origin(request, prompt)
        capture = Capture(self.config.serve.capture)
        message_id = request.client_message_id
        if capture is Capture.REDACTED:
            session = session and message_hash.hash_session(session)
            message_id = message_id and message_hash.hash_session(message_id)
        return Request(
            id=f"{request.id_prefix}{_id_generator.getrandbits(112):028x}",
            scope=caller.scope,
            agent=agent,
            user=request.user,
            session=session,
            kind=request.kind,
            capture=capture,
            session_done=request.session_done,
            episode=caller.episode,
            dialect=request.dialect,
            messages=request.messages,
            tools=request.tools,
            template=request.template_variables,
            previous=request.previous_id,
            client_message_id=message_id,
            marks=prompt.history.marks,
            sampling=sampling,
            prompt_ids=prompt.rendered.prompt_ids,
            lessons=prompt.lessons,
            version=version,
            identity=self.identity,
            admitted_at=recorded_time(),
            untrainable=self._untrainable_reason(request, prompt),
        )

    def _untrainable_reason(self, request: ChatRequest, prompt: BuiltPrompt) -> Reason | None:
        if request.prefix is not None:
            return CONTINUED
        if prompt.with_images is not None:
            return request.untrainable or WITH_IMAGES
        if request.untrainable is not None:
            return request.untrainable
        if prompt.has_acting_token and self.config.serve.special_tokens != "model":
            return CONTROL_TOKEN
        return UNREAD_CALLS if request.tools and not self.renderer.reads_calls else None

    async def count_prompt_tokens(self, request: ChatRequest, caller: Caller) -> int:
        """Return the number of tokens of the prompt that `begin_replies` would render. Raises `RequestError`.

        A prompt may exceed the context here, so that a client learns by how much, but not without limit.
        """
        request = await self._complete_request(request, caller.scope)
        model = self._requested_model(request)
        limit = MAX_COUNTED_CONTEXTS * self.context_length
        _, prompt = await self._build_prompt(request, caller, model, limit)
        if model.version is not None:
            _, agent = _stated_origin(request, prompt)
            owner = self.policy_of(caller, agent=agent, user=request.user)
            await self._check_access(model.version, caller, owner)
            self.versions.release(await self.versions.acquire_version(model.version))
        return len(prompt.rendered.prompt_ids)

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

    @property
    def renderer(self) -> Renderer:
        return self.prompt_builder.renderer

    @property
    def disk(self) -> DiskMonitor:
        return self.writer.disk

    @property
    def context_length(self) -> int:
        """Tokens of prompt and reply together."""
        return self.sampling.context_length

    def _requested_model(self, request: ChatRequest) -> RequestedModel:
        return parse_model(
            request.model,
            served=self.config.model.name,
            newest=self.versions.head,
            any_model=self.config.serve.any_model,
        )

    async def _build_prompt(
        self, request: ChatRequest, caller: Caller, model: RequestedModel, limit: int
    ) -> tuple[ChatRequest, BuiltPrompt]:
        """Return the prompt with the lessons for it, and the request with its messages.

        A request for one version, a side call and one of an episode get no lessons. An evaluation may ask for them.
        """
        if request.completion_prompt is not None:
            return await self.prompt_builder.build_completion(request, limit)
        # In every template a message takes at least one token.
        if len(request.messages) > limit:
            raise PromptTooLong(len(request.messages), limit, is_minimum=True)
        is_alone = request.kind is Kind.SIDE or model.is_pinned
        is_off = caller.episode is not None or self.config.serve.lessons == "off"
        try:
            if is_off or (is_alone and not request.with_lessons):
                prompt = await self.prompt_builder.build_prompt(request, caller.scope, limit)
            else:
                prompt = await self._build_with_lessons(request, caller.scope, limit)
        except RecursionError:
            raise field_error("messages", "nested too deeply.") from None
        return request, prompt

    async def _build_with_lessons(
        self, request: ChatRequest, scope: str, limit: int
    ) -> BuiltPrompt:
        """Build the prompt with the lessons; without them, if it has no space for them."""
        lookup = self.lessons.lookup(request, scope)
        try:
            prompt = await self.prompt_builder.build_prompt(request, scope, limit, lookup)
        except PromptTooLong:
            if not lookup.found.texts:
                raise
        else:
            if not prompt.lessons or len(prompt.rendered.prompt_ids) < limit:
                withdrawn = lookup.found.withdrawn
                return replace(prompt, withdrawn=withdrawn) if withdrawn else prompt
        return await self.prompt_builder.build_prompt(request, scope, limit)

    async def close(self) -> None:
        """Wait for the background work, then close the writer. Nothing waits for space on a full disk any more."""
        self.writer.stop_waiting()
        await self.background.finish()
        await asyncio.to_thread(self.writer.close)


def _stated_origin(request: ChatRequest, prompt: BuiltPrompt) -> tuple[str | None, str]:
    """Return session and agent of a request. Without headers, its first message may state them."""
    session, agent = prompt.history.origin or (None, "")
    return request.session or session, request.agent or agent


def _copy_for_choice(record: Request, number: int) -> Request:
    """Copy the record as an exchange of its own. A given seed is incremented, or all replies would be the same."""
    if number == 0:
        return record
    sampling = record.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + number + 2**63) % 2**64 - 2**63)
    return replace(record, id=choice_id(record.id, number), sampling=sampling)
