"""The whole system in one process, one room after the other: what takes a person a day takes seconds, and never races.

Gateway, collector, judge, trainer, store and embedded engine are the real ones. Only the loops around them are not:
here each room does all that there is to do before the person goes on, so that what is learned when does not depend on
how fast or how busy the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import numpy as np
from benchmarks.demo.user_driver import MAX_TOKENS, StreamedReply, TasteEvaluation
from sqlalchemy import Connection

from openclaw_rl.collect.worker import Collector
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.embedded.model import EmbeddedModel
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import (
    EngineSequence,
    NewToken,
    SequenceFailed,
    SequenceScored,
)
from openclaw_rl.errors import EngineError
from openclaw_rl.evals.styles import Taste, has_style
from openclaw_rl.evals.toy_world import Question, is_correct
from openclaw_rl.gates.reply_source import GateReply, ReplyOrder
from openclaw_rl.judge import worker as judging
from openclaw_rl.judge.head.auto import AutoJudge
from openclaw_rl.judge.heard import heard_item, judge_heard
from openclaw_rl.judge.lessons.lesson_maker import LessonMaker
from openclaw_rl.judge.user_feedback import explicit_verdict
from openclaw_rl.render.hint import with_hint
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.auth import Caller
from openclaw_rl.serve.chat_request import ChatRequest
from openclaw_rl.serve.gateway import Gateway
from openclaw_rl.settings.load import Config
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.file_digests import digest_files
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import read_heads
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.train.worker import open_train_loop
from openclaw_rl.types import Chunk, Feedback, Generation, Ids, Logprobs, PolicyRef, Sampling

SCOPE = "person"


class InProcess:
    """`protocols.Engine` over the embedded engine's core, which is stepped by whoever asks."""

    def __init__(self, core: EmbeddedEngine) -> None:
        self._core = core
        # Of the last `load`.
        self._named: list[PolicyRef] = []
        # By the id of the sequence.
        self._streams: dict[int, deque[NewToken]] = {}

    async def generate(self, generation: Generation) -> AsyncIterator[Chunk]:
        """See `protocols.Engine.generate`. Whoever waits for a token steps the core for all."""
        g = generation
        job = self._core.generate(
            None, g.version, g.prompt_ids, g.sampling, g.stop_token_ids, g.top_logprobs
        )
        tokens = self._streams.setdefault(id(job), deque())
        is_finished = False
        try:
            while not is_finished:
                while not tokens:
                    for token in self._step():
                        if (stream := self._streams.get(id(token.seq))) is not None:
                            stream.append(token)
                    await asyncio.sleep(0)
                token = tokens.popleft()
                is_finished = token.finish is not None
                yield Chunk(
                    token_ids=(token.token,), logprobs=(token.logprob,), finish=token.finish
                )
        finally:
            del self._streams[id(job)]
            if not is_finished:
                self._core.cancel(job)

    async def score(
        self, *, version: int, prompt_ids: Ids, response_ids: Ids, temperature: float
    ) -> Logprobs:
        """See `protocols.Engine.score`."""
        self._core.score(None, version, prompt_ids, response_ids, temperature)
        while True:
            for item in self._core.step():
                if isinstance(item, SequenceScored):
                    return item.logprobs

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        """See `protocols.Engine.load`."""
        self._named = list(policies)
        self._load_exactly(policies)

    def _load_exactly(self, policies: Sequence[PolicyRef]) -> None:
        files = {
            (ref.version, ref.digest): adapter_file.read_adapter(ref)
            for ref in self._core.unread_policies(policies)
        }
        for _ in self._core.load_versions(policies, files):
            pass
        for _ in self._core.unload_unused():
            pass

    def all(
        self,
        version: int,
        prompts: Sequence[Ids],
        stop: Sequence[int],
        *,
        temperature: float = 1.0,
        max_tokens: int = MAX_TOKENS,
    ) -> list[list[int]]:
        """The reply to each prompt, sampled with its place as the seed; stop tokens left out."""
        jobs: list[EngineSequence] = []
        for place, prompt in enumerate(prompts):
            sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=place)
            jobs.append(self._core.generate(None, version, prompt, sampling, stop))
        while self._core.has_work:
            self._step()
        return [
            job.sampled_ids[:-1] if job.sampled_ids[-1] in stop else job.sampled_ids for job in jobs
        ]

    def load_beside(self, policies: Sequence[PolicyRef]) -> None:
        """Load versions beside those of the last `load`, until the next one."""
        named = {policy.version for policy in self._named}
        self._load_exactly(
            [*self._named, *(policy for policy in policies if policy.version not in named)]
        )

    def answer(self, orders: Sequence[ReplyOrder], stop: Sequence[int]) -> list[GateReply]:
        """The replies that the gate or practice asks for, all at once."""
        jobs = [
            self._core.generate(
                None, o.version, np.array(o.prompt_ids, np.int32), _sampling(o), stop
            )
            for o in orders
        ]
        scores: dict[int, list[float]] = {id(job): [] for job in jobs}
        ends: dict[int, str] = {}
        while self._core.has_work:
            for token in self._step():
                scores[id(token.seq)].append(token.logprob)
                ends[id(token.seq)] = token.finish or "length"
        return [
            GateReply(
                token_ids=np.array(job.sampled_ids, np.int32),
                logprobs=np.array(scores[id(job)], np.float32),
                finish=ends[id(job)],
            )
            for job in jobs
        ]

    def _step(self) -> list[NewToken]:
        out = self._core.step()
        if stuck := [item for item in out if isinstance(item, SequenceFailed)]:
            raise EngineError(stuck[0].reason)
        return [item for item in out if isinstance(item, NewToken)]


def _sampling(order: ReplyOrder) -> Sampling:
    return Sampling(temperature=order.temperature, max_tokens=order.max_tokens, seed=order.seed)


class Rooms:
    """Opened on entry, closed on exit."""

    def __init__(
        self, config: Config, *, gate_replies: bool = False, max_tokens: int = MAX_TOKENS
    ) -> None:
        """`gate_replies`: whether the gate compares replies, too, which takes most of its time.

        `max_tokens`: limit of a reply.
        """
        self._max_tokens = max_tokens
        if not gate_replies:
            config = config.model_copy(
                update={"gate": config.gate.model_copy(update={"budget": 0})}
            )
        prepare_home(config)
        files = ModelFiles.from_path(config.model.path)
        self.config = config
        self.renderer = Renderer(files)
        # Each room notices what the others commit.
        self._stores = [Store.open(config.store_path) for _ in range(3)]
        serving, self._store, training = self._stores
        model = EmbeddedModel.load(config.model, max_context=config.engine.max_context)
        # The gate's, which the gateway does not count here.
        places = config.engine.max_loaded_versions + 2
        core = EmbeddedEngine(
            model, config.engine.model_copy(update={"max_loaded_versions": places})
        )
        self._engine = InProcess(core)
        self._train = open_train_loop(config, training, self)
        identity = compute_identity(files, digest_files(serving, files.weights))
        self._gateway = Gateway(
            config, store=serving, engine=self._engine, renderer=self.renderer, identity=identity
        )
        self._collector = Collector(self._store, config.collect)
        judge = judging.make_judge(config)
        # The engine has no socket here from which a head could read states.
        self._judge = judge.rules if isinstance(judge, AutoJudge) else judge
        self._lessons = LessonMaker(config, self._store, self._judge)

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._gateway.versions.run())
        await self.settle()
        # The teacher of practice stays loaded.
        await self._gateway.versions.acquire_version(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeper
        await self._gateway.close()
        self._train.close()
        for store in self._stores:
            store.close()

    async def say(
        self,
        history: Sequence[Mapping[str, Any]],
        *,
        seed: int,
        temperature: float = 1.0,
        agent: str = "",
    ) -> StreamedReply:
        """One reply, recorded as any other."""
        sampling = Sampling(temperature=temperature, max_tokens=self._max_tokens, seed=seed)
        ask = ChatRequest(
            model=self.config.model.name,
            messages=list(history),
            tools=(),
            sampling=sampling,
            agent=agent,
        )
        (serving,) = await self._gateway.begin_replies(ask, Caller(scope=SCOPE, owner=SCOPE))
        finished = [part.end is not None async for part in serving.stream_parts()][-1]
        return StreamedReply(
            id=serving.header.id,
            version=serving.header.version,
            text=str(serving.current_message.get("content") or ""),
            silence=0.0,
            finished=finished,
        )

    def give_feedback(self, reply: str, *, score: int, correction: str | None = None) -> None:
        """What `POST /v1/feedback` does."""
        id_ = f"fb-{secrets.token_hex(12)}"
        given = Feedback(
            id=id_,
            scope=SCOPE,
            target=reply,
            score=score,
            correction=correction,
            given_at=time.time(),
        )
        with self._store.write() as conn:
            records.add_feedback(conn, [given])

    async def settle(self) -> int:
        """Link, judge and train until there is nothing left to do. Returns the version that answers now.

        That is the head of the default policy; the heads of all policies are loaded then.
        """
        while self._collector.step():
            pass
        with self._store.read() as conn:
            closed = turns.closed_turns(conn, 64)
        verdicts = []
        for item in map(heard_item, closed):
            verdict = explicit_verdict(item)
            if verdict is None:
                verdict = await judge_heard(self._judge, item, self._lessons.topics)
            verdicts.append(verdict)
        with self._store.write() as conn:
            for verdict in verdicts:
                turns.add_verdict(conn, verdict)
                self._lessons.update(conn, verdict)
        await self._examine_lessons()
        while self._train.run_once() or await self._examine_lessons():
            await self._load_head()
        return await self._load_head()

    async def _examine_lessons(self) -> bool:
        """Examine the lessons of prompts, and those that practice asks for. Returns whether there were any."""
        await self._load_head()
        return self._gateway.examiner is not None and await self._gateway.examiner.examine_all()

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        """See `gates.reply_source.ReplySource.generate`; for gate and practice. Candidates are loaded for it."""
        with self._store.read() as conn:
            self._engine.load_beside(
                [p.ref for p in policies.get_many(conn, {order.version for order in orders})]
            )
        return self._engine.answer(orders, self.renderer.stop_token_ids)

    async def _load_head(self) -> int:
        """Wait until the head answers. Returns its version."""
        versions = self._gateway.versions
        with self._store.read() as conn:
            head = policies.head(conn).version
            heads = set(read_heads(conn).values())
        while versions.serving != head or not all(map(versions.is_loaded, heads)):
            if self._keeper.done():
                self._keeper.result()
            await asyncio.sleep(0.005)
        return head

    def first_replies(
        self, version: int, questions: Sequence[Question], system: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, ...]:
        """Ask each question by itself behind the messages of `system`, unrecorded. Returns the replies."""
        return self._reply_to_all(
            version, [[*system, {"role": "user", "content": q.text}] for q in questions]
        )

    def _reply_to_all(
        self, version: int, asked: Sequence[Sequence[Mapping[str, Any]]]
    ) -> tuple[str, ...]:
        return self.replies_to(version, asked)

    def replies_to(
        self,
        version: int,
        conversations: Sequence[Sequence[Mapping[str, Any]]],
        *,
        temperature: float = 1.0,
    ) -> tuple[str, ...]:
        """Reply to each conversation, unrecorded; the seed of each is its place."""
        prompts = [self.renderer.render(messages).prompt_ids for messages in conversations]
        replies = self._engine.all(
            version,
            prompts,
            self.renderer.stop_token_ids,
            temperature=temperature,
            max_tokens=self._max_tokens,
        )
        return tuple(self.renderer.detokenizer.new_stream().push(ids).strip() for ids in replies)

    async def mean_logprob(
        self, version: int, prompts: Sequence[str], replies: Sequence[str]
    ) -> float:
        """Return the mean log-probability per token of given replies to one message each, in nats."""
        total = 0.0
        count = 0
        for prompt, reply in zip(prompts, replies, strict=True):
            messages = [{"role": "user", "content": prompt}]
            prompt_ids = self.renderer.render(messages).prompt_ids
            response_ids = np.array(self.renderer.tokenizer.encode(reply), np.int32)
            if len(response_ids):
                logprobs = await self._engine.score(
                    version=version,
                    prompt_ids=prompt_ids,
                    response_ids=response_ids,
                    temperature=1.0,
                )
                total += float(logprobs.sum())
                count += len(logprobs)
        return total / max(1, count)

    def hinted_replies(
        self, version: int, questions: Sequence[Question], hint: str
    ) -> tuple[str, ...]:
        """Ask each question with a hint, as lessons stand in prompts, unrecorded. Returns the replies."""
        asked = [[{"role": "user", "content": q.text}] for q in questions]
        hint_format = self.renderer.hint_format
        hinted = [
            with_hint(messages, hint, lambda message: False, hint_format) for messages in asked
        ]
        return self._reply_to_all(version, hinted)

    def read_store(self) -> AbstractContextManager[Connection]:
        """Open a snapshot of the store."""
        return self._store.read()

    def has_lesson(self) -> bool:
        """Whether there is any lesson."""
        with self._store.read() as conn:
            return bool(lessons.list_lessons(conn))

    def entropy_of(self, version: int) -> float | None:
        """The entropy per token of the batch from which a version was made, in nats; None for the base."""
        with self._store.read() as conn:
            found = policies.get(conn, version)
        return None if found is None else found.metrics.get("entropy")

    def measure(self, version: int, taste: Taste, questions: Sequence[Question]) -> TasteEvaluation:
        """Ask each question by itself, unrecorded."""
        texts = self.first_replies(version, questions)
        right = tuple(is_correct(q, t) for q, t in zip(questions, texts, strict=True))
        liked = tuple(r and has_style(taste, t) for r, t in zip(right, texts, strict=True))
        return TasteEvaluation(satisfied=liked, correct=right, replies=texts)
