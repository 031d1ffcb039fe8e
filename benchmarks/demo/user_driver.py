"""Driver of the simulated user: talks to a running system through the official `openai` client and evaluates it.

The user sends text only. The measurements (satisfaction, correctness) never reach the system.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.demo.personas import Persona, UserReaction

from openclaw_rl.evals.styles import Taste, has_style
from openclaw_rl.evals.toy_world import Question, is_correct

SIDE_TRAFFIC = {"X-Turn-Type": "side"}
# Limit of one reply.
MAX_TOKENS = 256
# Seconds; long, for slow models.
_REPLY_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedReply:
    """One streamed reply. `silence`: longest wait for a chunk, in seconds."""

    id: str
    version: int
    text: str
    silence: float
    finished: bool


@dataclass(slots=True, kw_only=True)
class ConversationLog:
    """Log of a conversation: replies in order, failures, and the user's reaction to each answer."""

    replies: list[StreamedReply] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    reactions: list[tuple[StreamedReply, UserReaction]] = field(default_factory=list)

    @property
    def versions(self) -> list[int]:
        return sorted({s.version for s in self.replies})


def openai_client(base_url: str, key: str) -> Any:
    """Return the official client. Without retries, so that every failed reply is counted."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(
        base_url=f"{base_url}/v1", api_key=key, max_retries=0, timeout=_REPLY_TIMEOUT
    )


async def stream_reply(
    api: Any,
    model: str,
    history: Sequence[dict[str, str]],
    *,
    max_tokens: int = MAX_TOKENS,
    **more: Any,
) -> StreamedReply:
    """Request one reply as a stream and collect it."""
    last = time.perf_counter()
    silence = 0.0
    parts = []
    chunk = None
    finish = None
    stream = await api.chat.completions.create(
        model=model, messages=list(history), stream=True, max_tokens=max_tokens, **more
    )
    async for chunk in stream:
        now = time.perf_counter()
        silence = max(silence, now - last)
        last = now
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    if chunk is None:
        raise RuntimeError("the stream ended before its first chunk")
    version = int(str(chunk.system_fingerprint).removeprefix("v"))
    return StreamedReply(
        id=chunk.id,
        version=version,
        text="".join(parts),
        silence=silence,
        finished=finish is not None,
    )


async def run_conversation(
    api: Any,
    model: str,
    persona: Persona,
    *,
    replies: int,
    pause: float = 0.0,
    seen: Callable[[ConversationLog], None] = lambda talk: None,
    between: Callable[[ConversationLog], Awaitable[None]] | None = None,
) -> ConversationLog:
    """Run the persona until it has received `replies` replies.

    `pause`: seconds before each message. `seen` is called after each reaction, `between` before each session.
    """
    talk = ConversationLog()
    while len(talk.replies) < replies and len(talk.failures) < 5:
        if between is not None:
            await between(talk)
        history: list[dict[str, str]] = []
        while (text := persona.next_message(history)) is not None:
            if len(persona.log) > len(talk.reactions):
                talk.reactions.append((talk.replies[-1], persona.log[-1]))
                seen(talk)
            if len(talk.replies) >= replies:
                break
            history.append({"role": "user", "content": text})
            await asyncio.sleep(pause)
            try:
                spoken = await stream_reply(api, model, history, temperature=1.0)
            except Exception as error:  # noqa: BLE001 - any error is a missing reply, and is counted
                talk.failures.append(f"{type(error).__name__}: {error}")
                break
            talk.replies.append(spoken)
            history.append({"role": "assistant", "content": spoken.text})
    return talk


@dataclass(frozen=True, slots=True, kw_only=True)
class TasteEvaluation:
    """Result of an evaluation: one entry per question."""

    satisfied: tuple[bool, ...]
    correct: tuple[bool, ...]
    replies: tuple[str, ...]

    @property
    def satisfaction(self) -> float:
        """Share of replies that are correct and in the user's style."""
        return sum(self.satisfied) / len(self.satisfied)

    @property
    def correctness(self) -> float:
        return sum(self.correct) / len(self.correct)


async def measure_taste(
    api: Any,
    model: str,
    taste: Taste,
    questions: Sequence[Question],
    *,
    parallel: int = 16,
    seen: Callable[[], None] = lambda: None,
) -> TasteEvaluation:
    """Ask each question in a new conversation, with its index as the seed, as side traffic (never trained on)."""
    gate = asyncio.Semaphore(parallel)

    async def ask_question(place: int, question: Question) -> str:
        async with gate:
            reply = await api.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question.text}],
                temperature=1.0,
                max_tokens=MAX_TOKENS,
                seed=place,
                extra_headers=SIDE_TRAFFIC,
            )
            seen()
            return str(reply.choices[0].message.content or "")

    texts = await asyncio.gather(*(ask_question(i, q) for i, q in enumerate(questions)))
    right = tuple(is_correct(q, t) for q, t in zip(questions, texts, strict=True))
    liked = tuple(r and has_style(taste, t) for r, t in zip(right, texts, strict=True))
    return TasteEvaluation(satisfied=liked, correct=right, replies=tuple(texts))
