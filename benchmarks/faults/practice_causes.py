"""Causes of faults during practice, and the load and the settings with which a system practises nearly all the time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.faults.causes import Cause, FaultScene
from benchmarks.faults.client_log import ForgottenLesson
from benchmarks.faults.clients import CrowdLoad
from benchmarks.faults.live_system import FaultFinding, LiveSystem, wait_until

from openclaw_rl.errors import OpenClawError
from openclaw_rl.store.lessons import lessons, practice_turns, removal
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.supervisor.subprocess_system import post_json

# Practice runs only while nobody waits for a reply.
LOAD = CrowdLoad(users=1, pause=10.0, probe_pause=1.5)
SETTINGS: dict[str, Any] = {
    "practice.enabled": True,
    "practice.replies": 8,
    # Nothing is ever learned.
    "practice.max_divergence": 1e-9,
    "practice.seconds_per_hour": 3600,
    # After each word: the system must settle at the end.
    "practice.step_limit": 8,
    "gate.budget": 4,
    "run.max_crashes": 1_000_000,
    "run.max_restart_delay": 1.0,
}
_WISH = "Shorter, please."
_TOPIC = "length/short"
# Of a round and its step, about.
_ROUND_SECONDS = 5.0
# Seconds from a word until its first round is stored.
_PRACTICE_WITHIN = 120.0
# Seconds.
_ASK_WITHIN = 30.0


async def during_practice(scene: FaultScene) -> list[str]:
    """A person says a wish; wait for a round of practice, then until a random moment of it or of the next one."""
    live = scene.live
    try:
        await asyncio.to_thread(_say_wish, live)
        before = await asyncio.to_thread(_count_turns, live)
        if not await wait_until(lambda: _count_turns(live) > before, _PRACTICE_WITHIN):
            beat = live.read_heartbeats().get("train")
            return [
                f"no practice within {_PRACTICE_WITHIN:g} s: {beat.note if beat else 'no trainer'}"
            ]
    except FaultFinding as error:
        return [str(error)]
    await asyncio.sleep(scene.rng.uniform(0.0, _ROUND_SECONDS))
    return []


def forgotten_lesson(*, kills: bool) -> Cause:
    """All lessons are forgotten, and the trainer is killed then if `kills` says so."""

    @contextlib.asynccontextmanager
    async def cause(scene: FaultScene) -> AsyncIterator[None]:
        with scene.live.store.write() as conn:
            at = time.time()
            for lesson in lessons.list_lessons(conn):
                removal.forget(conn, lesson.id, at=at)
                scene.log.forgotten.append(ForgottenLesson(id=lesson.id, at=at))
        if kills:
            await scene.kill("train")
        yield

    return cause


def _count_turns(live: LiveSystem) -> int:
    with live.store.read() as conn:
        return practice_turns.count_all(conn)


def _say_wish(live: LiveSystem) -> None:
    """Ask a question, correct the reply, and pin the lesson, so that no mistake of another user supersedes it.

    Raises `FaultFinding` if no lesson comes of it.
    """
    before = _wish(live)
    end = time.monotonic() + _ASK_WITHIN
    body = {
        "model": live.config.model.name,
        "messages": [{"role": "user", "content": "Where is the Louvre?"}],
    }
    try:
        reply = post_json(live.system, "/v1/chat/completions", body)
        post_json(
            live.system, "/v1/feedback", {"id": reply["id"], "score": -1, "correction": _WISH}
        )
    except (OpenClawError, OSError) as error:
        raise FaultFinding(f"a wish was refused: {error}") from error
    while (found := _wish(live)) is None or (
        before is not None and found.reinforced_at == before.reinforced_at
    ):
        if time.monotonic() > end:
            raise FaultFinding(f"no lesson within {_ASK_WITHIN:g} s of {_WISH!r}")
        time.sleep(0.1)
    with live.store.write() as conn:
        lessons.set_pinned(conn, found.id, True)
        if found.state is LessonState.SUPERSEDED:
            lessons.mark_active(conn, found.id)


def _wish(live: LiveSystem) -> Lesson | None:
    with live.store.read() as conn:
        return next(
            (lesson for lesson in lessons.list_lessons(conn) if lesson.topic == _TOPIC), None
        )
