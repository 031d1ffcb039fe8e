"""A whole system on SmolLM2: conversations without headers, a wish in natural words, and processes that are killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from benchmarks.demo import everyday as demo
from benchmarks.demo.everyday_person import asked_prompts, closed_questions
from benchmarks.demo.everyday_tastes import EVERYDAY_TASTES, count_words
from sqlalchemy import select
from tests.external.real.waiting import wait_for
from tests.system.test_parked import readiness
from tests.system.test_words import run

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.render.hint import HintFormat, with_hint
from openclaw_rl.store import exchanges, heartbeats, schema, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import Exchange, FinishReason

SETTINGS: Mapping[str, Any] = {
    "practice.enabled": False,
    "train.batch.max_turns": 16,
    "train.batch.max_wait": 60.0,  # what is left of a batch does not wait long for others
    "run.max_crashes": 50,
    "run.max_restart_delay": 1.0,
    "train.safety.lease_ttl": 5.0,
}
COMPLAINT = "Too long. Keep it short, please."
LESSON = "Keep answers short."
PRAISE = "Perfect, thanks."
SHORT, LONG = 24, 64
"""Limits of a reply in tokens."""
COOL = 0.3
"""Temperature at which most replies to closed questions end within the shorter limit."""
BATCH = 4
MEASURED = 12
"""Questions that are asked with the lesson in the prompt, and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply as the client sees it."""

    id: str
    text: str
    version: int
    lessons: str  # the header


@dataclass(slots=True, kw_only=True)
class Talk:
    """A running system, and what was said to it. A conversation is the ids of its replies."""

    system: SubprocessSystem
    store: Store
    conversations: list[list[str]] = field(default_factory=list)

    def send(self, body: Mapping[str, Any]) -> Any:
        """Send a request without any header of ours. Returns the open response."""
        request = urllib.request.Request(
            f"{self.system.base_url}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.system.api_key}",
                "Content-Type": "application/json",
            },
        )
        return urllib.request.urlopen(request, timeout=900)

    def ask(self, messages: Sequence[Mapping[str, str]], **more: Any) -> Answer:
        """Ask for one reply."""
        body = {
            "model": "openclaw",
            "messages": list(messages),
            "max_tokens": SHORT,
            "temperature": COOL,
        } | more
        with self.send(body) as response:
            reply = json.load(response)
            named = response.headers.get("X-OpenClaw-Lessons", "")
        return Answer(
            id=reply["id"],
            text=reply["choices"][0]["message"]["content"],
            version=int(reply["system_fingerprint"].removeprefix("v")),
            lessons=named,
        )

    def converse(self, *texts: str, **more: Any) -> list[Answer]:
        """Have one conversation. Returns its replies."""
        history: list[dict[str, str]] = []
        answers: list[Answer] = []
        for text in texts:
            history.append({"role": "user", "content": text})
            answers.append(self.ask(history, **more))
            history.append({"role": "assistant", "content": answers[-1].text})
        self.conversations.append([answer.id for answer in answers])
        return answers

    def exchange(self, id: str) -> Exchange:
        with self.store.read() as conn:
            exchange = exchanges.get(conn, id)
        assert exchange is not None
        return exchange

    def has_ended(self, id: str) -> bool:
        """Whether the reply ended by itself: by a score, one that was cut at its limit teaches nothing."""
        reply = self.exchange(id).reply
        assert reply is not None
        return reply.finish_reason is FinishReason.STOP

    def head(self) -> int:
        with self.store.read() as conn:
            return policies.head(conn).version

    def uses(self) -> Counter[str]:
        """How often the head's lineage was trained on each turn."""
        with self.store.read() as conn:
            lineage = policies.lineage(conn, policies.head(conn).version)
            return Counter(
                use.turn for version in lineage for use in policies.uses_of_version(conn, version)
            )

    def pid_of(self, worker: str) -> int:
        with self.store.read() as conn:
            return next(
                beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == worker
            )


@pytest.fixture(scope="module")
def talk(small: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """Conversations about facts, in which the person is content, until a batch of turns can train version 1.

    What is said after it is answered by version 1.
    """
    config = scratch_config(tmp_path_factory.mktemp("talk"), {**small, **SETTINGS})
    with SubprocessSystem(config) as system, Store.open(config.store_path, create=False) as store:
        talk = Talk(system=system, store=store)
        asked = iter(one.question for one in closed_questions())
        praised = 0
        while praised < BATCH:
            answers = talk.converse(next(asked), f"{PRAISE} {next(asked)}", PRAISE)
            praised += sum(talk.has_ended(answer.id) for answer in answers[:2])
        wait_for(lambda: talk.head() >= 1)
        wait_for(lambda: readiness(system)["version"] == talk.head())
        talk.converse("What is the capital of Poland?")
        yield talk


def test_conversations_are_told_apart_without_headers(talk: Talk) -> None:
    for conversation in talk.conversations:
        with talk.store.read() as conn:
            rows = [turns.get(conn, id) for id in conversation]
        assert all(rows)
        assert len({row.session for row in rows if row}) == 1
        assert [row.parent for row in rows if row] == [None, *conversation[:-1]]
    with talk.store.read() as conn:
        sessions = {
            turn.session for (id, *_) in talk.conversations if (turn := turns.get(conn, id))
        }
    assert len(sessions) == len(talk.conversations)


def test_a_stored_prompt_is_the_text_of_the_chat_template(talk: Talk, tokenizer: Any) -> None:
    """Byte for byte what transformers makes of the client's messages and the sampled replies."""
    for id in (id for conversation in talk.conversations for id in conversation):
        request = talk.exchange(id).request
        expected = tokenizer.apply_chat_template(
            request.messages, tokenize=False, add_generation_prompt=True
        )
        assert tokenizer.decode(request.prompt_ids.tolist(), skip_special_tokens=False) == expected


def test_sampled_tokens_stay_in_the_later_prompts(talk: Talk) -> None:
    continued = 0
    for conversation in talk.conversations:
        for id, after in itertools.pairwise(conversation):
            before = talk.exchange(id)
            assert before.reply is not None
            stored = np.concatenate([before.request.prompt_ids, before.reply.response_ids])
            np.testing.assert_array_equal(
                talk.exchange(after).request.prompt_ids[: len(stored)], stored
            )
            continued += 1
    assert continued >= BATCH


def test_the_stop_token_is_in_the_response_with_its_log_probability(
    talk: Talk, tokenizer: Any
) -> None:
    stopped = 0
    for id in (id for conversation in talk.conversations for id in conversation):
        reply = talk.exchange(id).reply
        assert reply is not None
        assert len(reply.logprobs) == len(reply.response_ids)
        assert np.all(np.isfinite(reply.logprobs))
        assert np.all(reply.logprobs <= 0)
        text = reply.message["content"]
        assert tokenizer.decode(reply.response_ids.tolist(), skip_special_tokens=True) == text
        if reply.finish_reason is FinishReason.STOP:
            assert reply.response_ids[-1] == tokenizer.eos_token_id
            stopped += 1
    assert stopped > 0


def test_engine_and_trainer_agree_on_log_probabilities(talk: Talk) -> None:
    """The trainer's forward pass over the replies that the engine sampled, before the step."""
    with talk.store.read() as conn:
        (first,) = policies.get_many(conn, [1])
    assert first.metrics["gap/embedded"] < 1e-3, "nats per token"
    assert first.metrics["gap/embedded/tokens"] > 0
    assert first.metrics["gap/max"] < 1e-2


def test_the_demo_measures_a_real_model_and_a_person_talks_to_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short form of `make demo MODEL=smollm2`, without the break in which the trainer practises."""
    monkeypatch.setattr(demo, "MEASURED_QUESTIONS", 2)
    taste = EVERYDAY_TASTES["calm"]
    console = TerminalConsole()
    said, before, after = asyncio.run(
        demo.EverydayDemo(console, talk.system, taste, seed=1).run(replies=2)
    )
    demo.print_result(console, taste, said, before, after)
    assert not said.failures
    assert len(said.versions) == 2
    assert len(said.liked) == 2
    assert [len(replies) for replies in (before, after)] == [2, 2]
    assert f"the person likes: {taste.definition}" in capsys.readouterr().out


def test_a_wish_in_natural_words_is_in_the_next_prompts_and_replies_get_shorter(
    talk: Talk, tokenizer: Any
) -> None:
    first, second, _ = talk.converse(
        asked_prompts()[0], f"{COMPLAINT} {asked_prompts()[1]}", "Good night."
    )
    assert first.lessons == ""
    assert second.lessons == "wish/length/short", "the newest words count at once"

    def noted() -> list[str]:
        with talk.store.read() as conn:
            return [lesson.id for lesson in lessons.list_lessons(conn) if lesson.text == LESSON]

    (lesson,) = wait_for(noted)
    asked = asked_prompts()[2 : 2 + MEASURED]

    def ask_once(text: str, model: str) -> Answer:
        return talk.converse(text, max_tokens=LONG, temperature=0, model=model)[0]

    with ThreadPoolExecutor(2 * MEASURED) as pool:
        asking = [
            [pool.submit(ask_once, text, name) for text in asked]
            for name in ("openclaw", "openclaw@0")
        ]
        with_lesson, without = [[future.result() for future in futures] for futures in asking]
    assert {answer.lessons for answer in with_lesson} == {lesson}
    assert {answer.lessons for answer in without} == {""}
    request = talk.exchange(with_lesson[0].id).request
    hinted = with_hint(request.messages, LESSON, lambda message: False, HintFormat.PARAGRAPH)
    expected = tokenizer.apply_chat_template(hinted, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(request.prompt_ids.tolist(), skip_special_tokens=False) == expected
    words = [[count_words(answer.text) for answer in answers] for answers in (with_lesson, without)]
    assert sum(words[0]) < 0.9 * sum(words[1]), f"words with the lesson, and without: {words}"


def test_chat_shows_the_reply_and_what_was_noted(talk: Talk) -> None:
    typed = "What is the capital of Italy?\nThanks!\n/quit\n"
    before = talk.head()
    shown = run("chat", "--home", str(talk.system.config.home_dir), timeout=900, typed=typed)
    assert shown.returncode == 0, shown.stderr
    assert "no reply" not in shown.stdout
    # Practice may publish versions meanwhile.
    assert any(f"v{version} " in shown.stdout for version in range(before, talk.head() + 1))


def test_the_troubles_of_the_running_system_are_none(talk: Talk) -> None:
    shown = run("doctor", "--troubles", "--home", str(talk.system.config.home_dir), timeout=300)
    assert (shown.returncode, "no problems found" in shown.stdout) == (0, True), shown.stdout


def test_a_killed_trainer_loses_no_turn(talk: Talk) -> None:
    """It is killed while it takes a step; the turns train once, in a version that is served."""
    before = talk.head()
    asked = iter(one.question for one in closed_questions()[50:])
    scored: list[str] = []
    while len(scored) < BATCH:
        (answer,) = talk.converse(next(asked))
        if talk.has_ended(answer.id):
            post_json(talk.system, "/v1/feedback", {"id": answer.id, "score": 1})
            scored.append(answer.id)

    def at_work() -> bool:
        """Whether the trainer has begun with one of the turns and not ended it."""
        with talk.store.read() as conn:
            rows = conn.execute(
                select(schema.attempts.c.ref).where(schema.attempts.c.stage == "train")
            ).scalars()
            return bool(set(rows) & set(scored))

    wait_for(lambda: at_work() or set(scored) <= talk.uses().keys())
    killed = talk.pid_of("train")
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: set(scored) <= talk.uses().keys())
    assert talk.pid_of("train") != killed
    assert set(talk.uses().values()) == {1}
    assert talk.head() > before
    wait_for(lambda: readiness(talk.system)["version"] == talk.head())


def test_a_killed_engine_breaks_the_running_reply_alone(talk: Talk) -> None:
    """The stream ends with an error; the next reply is by the same version, which was loaded again."""
    head = talk.head()
    body = {
        "model": "openclaw",
        "messages": [{"role": "user", "content": "Tell me a long story about a dragon."}],
        "max_tokens": 1000,
        "stream": True,
    }
    with talk.send(body) as stream:
        chunks = (line for line in stream if line.startswith(b"data: {"))
        while not json.loads(next(chunks).removeprefix(b"data: "))["choices"][0]["delta"].get(
            "content"
        ):
            continue
        os.kill(talk.pid_of("engine"), signal.SIGKILL)
        rest = [json.loads(line.removeprefix(b"data: ")) for line in chunks]
    assert "error" in rest[-1]
    (answer,) = talk.converse("What is the capital of Greece?")
    assert answer.version == head
    assert talk.exchange(answer.id).reply is not None
