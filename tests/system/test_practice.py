"""Practice in a whole system: a lesson gets into the weights, whichever process is killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.system.test_parked import wait_for

from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import PolicyState

pytestmark = pytest.mark.system

KILLS = 8
SETTINGS: dict[str, Any] = {
    "practice.enabled": True,
    "gate.budget": 0,
    "practice.replies": 8,
    "practice.step_limit": 200,
    "run.max_crashes": 1000,
    "run.max_restart_delay": 1.0,
    "train.safety.lease_ttl": 1.0,
}


def talk(system: SubprocessSystem) -> None:
    """A conversation in which the person asks for short answers."""
    history: list[dict[str, str]] = []
    for text in (
        "What is the capital of France?",
        "Shorter, please. What is the capital of Japan?",
        "Good night.",
    ):
        history.append({"role": "user", "content": text})
        body = {"model": "openclaw", "messages": history, "max_tokens": 64, "temperature": 1.0}
        history.append(post_json(system, "/v1/chat/completions", body)["choices"][0]["message"])


def found_lessons(config: Config) -> list[Lesson]:
    with Store.open(config.store_path) as store, store.read() as conn:
        return lessons.list_lessons(conn)


def with_pending(config: Config) -> bool:
    """Whether a turn of practice was not trained on yet."""
    with Store.open(config.store_path) as store, store.read() as conn:
        return bool(practice_turns.pending_turns(conn))


def is_learned(config: Config) -> bool:
    return [lesson.state for lesson in found_lessons(config)] == [LessonState.LEARNED]


def pid_of(config: Config, name: str) -> int:
    with Store.open(config.store_path) as store, store.read() as conn:
        return next(beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == name)


def check_whole(config: Config) -> None:
    """Each turn of practice has at most one use on any lineage, and each live version has its folder."""
    with Store.open(config.store_path) as store, store.read() as conn:
        versions = policies.list_all(conn)
        used = Counter(
            use.turn
            for policy in versions
            for use in policies.uses_of_version(conn, policy.version)
        )
        assert all(number == 1 for number in used.values())
        live = [policy for policy in versions[1:] if policy.state is PolicyState.LIVE]
        assert [policy.parent for policy in live] == [0, *(policy.version for policy in live[:-1])]
        whole = [policy for policy in live if any(policy.files.values())]
    assert all(Path(str(policy.path)).is_dir() for policy in whole)
    assert {path.name for path in config.policies_dir.iterdir()} >= {
        Path(str(p.path)).name for p in whole
    }


def practised_turns(config: Config) -> int:
    with Store.open(config.store_path) as store, store.read() as conn:
        return len(
            practice_turns.turns_of_lessons(
                conn, [lesson.id for lesson in lessons.list_lessons(conn)]
            )
        )


def test_a_lesson_gets_into_the_weights_although_processes_are_killed(tmp_path: Path) -> None:
    """Each kill hits a trainer or an engine that has just generated replies of practice."""
    home, rng = tmp_path / "home", random.Random(0)
    config = scratch_config(home, SETTINGS | {"practice.max_divergence": 1e-9})
    with SubprocessSystem(config) as system:
        talk(system)
        wait_for(lambda: bool(found_lessons(config)))
        for number in range(KILLS):
            before = practised_turns(config)
            wait_for(lambda before=before: practised_turns(config) > before)
            time.sleep(rng.uniform(0.0, 1.5))
            with contextlib.suppress(ProcessLookupError):  # it is being restarted
                os.kill(pid_of(config, "engine" if number % 4 == 3 else "train"), signal.SIGKILL)
    check_whole(config)
    config = scratch_config(home, SETTINGS)
    with SubprocessSystem(config) as system:
        wait_for(lambda: is_learned(config))
        question = {"role": "user", "content": "What is the capital of Italy?"}
        body = {"model": "openclaw", "messages": [question]}
        replies = [post_json(system, "/v1/chat/completions", body) for _ in range(9)]
        words = sorted(len(reply["choices"][0]["message"]["content"].split()) for reply in replies)
        assert words[4] <= 8, f"the plain prompt is answered shortly, as a rule: {words} words"
        wait_for(lambda: not with_pending(config))
    check_whole(config)
