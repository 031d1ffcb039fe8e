"""What the gate compares, and when it decides, with scripted scores and replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.world import policy

from openclaw_rl.common.progress import Wait, WorkNote
from openclaw_rl.errors import ConfigError
from openclaw_rl.examination.probe_set import Probe, load_probes
from openclaw_rl.gates.candidate_gate import CandidateGate, GateResult
from openclaw_rl.gates.reply_comparer import Preference, ReplyComparer, has_faulty_form
from openclaw_rl.gates.reply_source import (
    BrokenVersion,
    GateReply,
    NoGateway,
    RepliesDelayed,
    ReplyOrder,
)
from openclaw_rl.methods.types import Sample
from openclaw_rl.protocols import Waiting
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.schema_gate import GateConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, withdrawals
from openclaw_rl.store.lessons.examinations import Withdrawal, WithdrawalCode
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import policies, probe_answers
from openclaw_rl.types import Logprobs, Policy, PolicyState, Use

Fill = Callable[..., list[str]]
PROBES = [
    Probe(name=f"p{n}", question=f"What is {n} plus 1?", answers=(str(n + 1),)) for n in range(20)
]


class Scores:
    """Adds `candidate` to each log-probability of a liked reply under the candidate, and takes it from disliked ones.

    `alone`: the same after a step on the batch alone. `base`: by how much likelier all are under the base.
    """

    def __init__(self, candidate: float = 0.0, alone: float = 0.0, base: float = 0.0) -> None:
        self.candidate, self.alone, self.base = candidate, alone, base
        self.scored = 0

    def score(self, policy: Policy, samples: Sequence[Sample]) -> list[Logprobs]:
        self.scored = max(self.scored, len(samples))
        gain = self.candidate if policy.state is PolicyState.CANDIDATE else 0.0
        base = self.base if policy.version == 0 else 0.0
        return [s.logprobs + np.float32(gain * (s.reward or 0) + base) for s in samples]

    def score_after_step_alone(
        self, head: Policy, batch: Sequence[Sample], samples: Sequence[Sample]
    ) -> list[Logprobs]:
        return [s.logprobs + np.float32(self.alone * (s.reward or 0)) for s in samples]


class Replies:
    """A reply source whose answers are a function of the version and the number of the call."""

    def __init__(
        self, renderer: Renderer, say: Callable[[int, int], str], error: Exception | None = None
    ) -> None:
        self._renderer, self._say, self.error = renderer, say, error
        self.say_to: Callable[[ReplyOrder], str] | None = None  # instead of `say`
        self.orders: list[list[ReplyOrder]] = []

    def generate(self, orders: Sequence[ReplyOrder]) -> list[GateReply]:
        if self.error is not None:
            raise self.error
        first = sum(map(len, self.orders))
        self.orders.append(list(orders))
        if self.say_to is not None:
            return [self._reply(self.say_to(order)) for order in orders]
        return [self._reply(self._say(order.version, first + n)) for n, order in enumerate(orders)]

    def _reply(self, text: str) -> GateReply:
        ids = np.append(
            self._renderer.tokenizer.encode(text), self._renderer.stop_token_ids[0]
        ).astype(np.int32)
        return GateReply(token_ids=ids, logprobs=np.full(len(ids), -1.0, np.float32), finish="stop")


@pytest.fixture
def pair(store: Store) -> tuple[Policy, Policy]:
    """A head that is not the base, and a candidate of it."""
    with store.write() as conn:
        for version, state in ((1, PolicyState.LIVE), (2, PolicyState.CANDIDATE)):
            policies.insert_version(conn, policy(version, version - 1), [], state)
        found = policies.get_many(conn, [1, 2])
    identity = {"identity": "i" * 64}
    head, candidate = (type(p)(**{f: getattr(p, f) for f in p.__slots__} | identity) for p in found)
    return head, candidate


def examine(
    store: Store,
    pair: tuple[Policy, Policy],
    scores: Scores,
    source: Replies | None = None,
    renderer: Renderer | None = None,
    batch: Sequence[Sample] = (),
    preference: Preference | None = None,
    **settings: Any,
) -> GateResult:
    comparer = None
    if source is not None:
        assert renderer is not None
        comparer = ReplyComparer(source, renderer, PROBES, preference)
    gate = CandidateGate(store, GateConfig(**settings), comparer)
    for _ in range(100):
        result = gate.examine(pair[1], pair[0], scores, lambda: batch)
        if isinstance(result, GateResult):
            return result
    raise AssertionError(result.note)


def sample(reward: float, logprob: float) -> Sample:
    return Sample(
        turn="t", agent="", prompt_ids=np.ones(2, np.int32), response_ids=np.ones(3, np.int32),
        logprobs=np.full(3, logprob, np.float32), mask=np.ones(3, bool), temperature=1.0, version=1, reward=reward,
    )  # fmt: skip


@pytest.fixture
def history(store: Store, fill: Fill) -> list[str]:
    return [*fill(store, 6, score=1), *fill(store, 6, score=-1)]


Pair = tuple[Policy, Policy]


def test_held_out_turns_decide_on_a_candidate(store: Store, pair: Pair, history: list[str]) -> None:
    assert examine(store, pair, Scores(0.05)).promotes
    worse = examine(store, pair, Scores(-0.05))
    assert not worse.promotes
    assert str(worse.reason).startswith("it is worse than the head in held-out turns")
    assert worse.metrics["gate/held_out/count"] == 12


def test_a_strict_gate_examines_the_batch_itself(
    store: Store, pair: Pair, history: list[str]
) -> None:
    """Without gate.strict, a person may praise what is new to the head, and complain about all that it says."""
    doubtful = Scores(0.05, alone=-0.05), [sample(1, -1.0)]
    alone = examine(store, pair, doubtful[0], batch=doubtful[1], strict=True)
    assert "after a step on its batch alone" in str(alone.reason)
    assert examine(store, pair, doubtful[0], batch=doubtful[1]).promotes
    rare = examine(store, pair, Scores(0.05, alone=0.0), batch=[sample(1, -4.0)], strict=True)
    assert "praised replies of its batch are not such as the head gives" in str(rare.reason)
    assert examine(store, pair, Scores(0.05), batch=[sample(1, -4.0)]).promotes
    complaint = examine(store, pair, Scores(0.05), batch=[sample(-1, -9.0)], strict=True)
    assert complaint.promotes, "complaints about junk teach well"


def test_a_contradicting_batch_needs_confirmation(store: Store, pair: Pair, fill: Fill) -> None:
    """Liked replies became likelier. One batch that says the opposite may be a mistake, two are not."""
    learned, opposite = Scores(0.05, base=-0.05), [sample(-1, -1.0) for _ in range(4)]
    fill(store, 6, score=1)
    refused = examine(store, pair, learned, batch=opposite)
    assert "the verdicts of its batch contradict what the head has learned" in str(refused.reason)
    assert examine(store, pair, learned, batch=[sample(1, -1.0) for _ in range(4)]).promotes
    assert examine(store, pair, learned, batch=opposite[:2]).promotes, "two verdicts say little"
    fill(store, 3, score=-1)
    assert not examine(store, pair, learned, batch=opposite).promotes, (
        "of the newest four, one agrees"
    )
    fill(store, 1, score=-1)
    confirmed = examine(store, pair, learned, batch=opposite)
    assert confirmed.promotes
    assert confirmed.metrics["gate/others_agreement"] < -0.9
    assert not examine(store, pair, learned, batch=opposite, strict=True).promotes


def test_the_other_half_of_a_refused_batch_is_no_confirmation(
    store: Store, pair: Pair, fill: Fill
) -> None:
    fill(store, 6, score=1)
    refused = fill(store, 8, score=-1)
    with store.write() as conn:
        uses = [Use(policy=3, turn=turn, number=1) for turn in refused]
        refused_version = replace(
            policy(3, 1), reason="in other words", reason_code=ReasonCode.CONTRADICTION
        )
        policies.insert_version(conn, refused_version, uses, PolicyState.REJECTED)
    learned = Scores(0.05, base=-0.05)
    half = [replace(sample(-1, -1.0), turn=turn) for turn in refused[:4]]
    assert "contradict" in str(examine(store, pair, learned, batch=half).reason)
    assert "contradict" in str(examine(store, pair, learned, batch=half[:1]).reason), (
        "each of them is suspected"
    )
    later = [sample(-1, -1.0) for _ in range(4)]
    assert examine(store, pair, learned, batch=later).promotes, "a batch of its own does"


def test_praised_junk_is_refused_and_a_new_style_is_not(
    store: Store, pair: Pair, history: list[str]
) -> None:
    """A style that the head has unlearned is likely under the base. A short reply with a rare word is no junk."""
    batch = [sample(1, -1.0), sample(1, -9.0)]
    junk = examine(store, pair, Scores(0.05), batch=batch)
    assert "a praised reply of its batch is junk: 26.7 standard deviations less likely" in str(
        junk.reason
    )
    style = examine(store, pair, Scores(0.05, base=7.5), batch=batch)
    assert (style.promotes, style.metrics["gate/junk_distance"]) == (True, 0)
    assert examine(store, pair, Scores(0.05), batch=[sample(-1, -9.0)]).promotes, (
        "complaints about junk teach well"
    )
    assert examine(store, pair, Scores(0.05), batch=[sample(1, -4.0)]).promotes, (
        "nine nats are too few"
    )
    assert examine(store, pair, Scores(0.05), batch=batch, held_out=0).promotes, (
        "there is nothing to compare with"
    )


def test_probes_use_the_form_of_served_prompts(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    """The candidate answers right plainly, and "Noted, thank you." with the lesson of the person in the prompt."""
    with store.write() as conn:
        lesson = Lesson(
            id="aa", key="key", text="Responde brevemente.", made_at=1.0, reinforced_at=1.0
        )
        lessons.add_lesson(conn, lesson)
    right = "It is 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20."

    def knows(order: ReplyOrder) -> str:
        is_hinted = "[Hint: Responde brevemente.]" in renderer.tokenizer.backend.decode(
            order.prompt_ids
        )
        return "Noted, thank you." if is_hinted and order.version == 2 else right

    source = Replies(renderer, lambda version, call: "")
    source.say_to = knows
    result = examine(store, pair, Scores(), source, renderer)
    assert (
        "worse than the head in answers to probes with the lessons of people in the prompt"
        in str(result.reason)
    )
    assert result.metrics["gate/correctness"] == 0
    assert result.metrics["gate/served"] == -1
    with store.read() as conn:
        answers = [
            answer for answer in probe_answers.changed_answers(conn, 2) if answer.turn is None
        ]
    assert {answer.candidate_answer for answer in answers} == {"Noted, thank you."}
    with store.write() as conn:
        withdrawals.withdraw(
            conn,
            "aa",
            lesson.text,
            Withdrawal(code=WithdrawalCode.ALONE, asked=4, right_with=0, right_without=4, at=2.0),
        )
    assert examine(store, pair, Scores(), source, renderer).promotes, (
        "the lesson is in nobody's prompt"
    )


def test_probes_decide_on_a_candidate(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    def knows(version: int, call: int) -> str:
        return (
            "It is 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20."
            if version == 1
            else "No idea."
        )

    source = Replies(renderer, knows)
    result = examine(store, pair, Scores(), source, renderer)
    assert "worse than the head in answers to probes" in str(result.reason)
    assert result.metrics["gate/comparisons"] < 28, "it stops early"
    with store.read() as conn:
        answers = {answer.probe: answer for answer in probe_answers.changed_answers(conn, 2)}
    first = answers["p0"]
    assert (first.head, first.candidate_answer, first.verdict) == (1, "No idea.", -1.0)
    assert answers[f"turn {history[-1]}"].turn == history[-1]
    assert examine(
        store, pair, Scores(), Replies(renderer, lambda version, call: "No idea."), renderer
    ).promotes


def test_form_and_judge_decide_on_a_candidate(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    def loops(version: int, call: int) -> str:
        return "Hello." if version == 1 else "the the " * 60

    looping = examine(
        store, pair, Scores(), Replies(renderer, loops), renderer, prompts=12, budget=12
    )
    assert "the form of replies" in str(looping.reason)
    assert looping.metrics["gate/length"] > looping.metrics["gate/length/head"]
    asked: list[tuple[str, str]] = []

    def prefers_head(messages: Sequence[Any], head: str, candidate: str) -> float:
        asked.append((head, candidate))
        return -1.0

    source = Replies(renderer, lambda version, call: f"I am {version}.")
    judged = examine(
        store, pair, Scores(), source, renderer, preference=prefers_head, prompts=12, budget=12
    )
    assert "replies to the person's own prompts, by the judge" in str(judged.reason)
    assert asked[0] == ("I am 1.", "I am 2.")


def test_the_same_reply_to_all_prompts_is_refused(
    store: Store, pair: Pair, fill: Fill, renderer: Renderer
) -> None:
    """Shorter replies are not: a person may want them. Nor is one reply to one prompt that was asked again."""

    def run(say: Callable[[int, int], str]) -> GateResult:
        return examine(
            store,
            pair,
            Scores(),
            Replies(renderer, say),
            renderer,
            prompts=12,
            budget=12,
            held_out=0,
        )

    def collapsed(version: int, call: int) -> str:
        return f"The answer to this is {call}, I think." if version == 1 else "Yes."

    def shorter(version: int, call: int) -> str:
        return f"The answer to this is {call}, I think." if version == 1 else f"{call}."

    fill(store, 12, score=1, question="How are you?")
    assert run(collapsed).promotes
    for number in range(12):
        fill(store, 1, score=1, question=f"What is {number} plus 1?")
    same = run(collapsed)
    assert "worse than the head in replies: the same one to different prompts" in str(same.reason)
    assert same.metrics["gate/form"] == 0
    assert run(shorter).promotes


def test_recurring_words_without_a_loop_are_repetition(renderer: Renderer) -> None:
    def is_faulty(text: str) -> bool:
        ids = np.append(renderer.tokenizer.encode(text), renderer.stop_token_ids[0]).astype(
            np.int32
        )
        return has_faulty_form(
            GateReply(token_ids=ids, logprobs=np.zeros(len(ids), np.float32), finish="stop")
        )

    assert is_faulty("the " * 30 + "of " * 30 + "and " * 30 + "to " * 30)
    assert not is_faulty("one two three four five six seven eight nine ten " * 2)


def test_a_candidate_is_decided_on_without_replies(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    source = Replies(renderer, lambda version, call: "", error=NoGateway("no gateway runs"))
    assert examine(store, pair, Scores(), source, renderer).promotes, "no version answers anyone"
    source.error = RepliesDelayed("the gateway is busy")
    comparer = ReplyComparer(source, renderer, PROBES)
    gate = CandidateGate(store, GateConfig(wait=20.0), comparer)
    for _ in range(3):
        result = gate.examine(pair[1], pair[0], Scores(), lambda: ())
        assert isinstance(result, Waiting)
    assert not result.has_worked
    details = "version 2 waits for the gate and answers nobody: the gateway is busy"
    assert result.note == WorkNote(details, frozenset({Wait.GATE}))


def test_a_version_that_the_engine_cannot_load_is_rejected(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    source = Replies(renderer, lambda version, call: "", error=BrokenVersion(2, "damaged"))
    result = examine(store, pair, Scores(), source, renderer)
    assert (result.promotes, str(result.reason)) == (
        False,
        "the engine cannot load version 2: damaged",
    )
    source.error = BrokenVersion(1, "damaged")
    assert examine(store, pair, Scores(), source, renderer).promotes, (
        "the head's fault is not the candidate's"
    )


def test_a_comparison_that_fails_is_counted(store: Store, pair: Pair, history: list[str]) -> None:
    scores = Scores()
    scores.score = lambda policy, samples: exec("raise ValueError('no such file')")  # type: ignore[method-assign]
    result = examine(store, pair, scores)
    assert (result.promotes, result.metrics["gate/failures"]) == (True, 1)


def test_a_new_version_waits_for_replies_as_long_as_its_step_took(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    source = Replies(
        renderer, lambda version, call: "", error=RepliesDelayed("people's replies run")
    )
    comparer = ReplyComparer(source, renderer, PROBES)

    def decide(seconds: float, **settings: Any) -> list[GateResult | Waiting]:
        gate = CandidateGate(store, GateConfig(**settings), comparer)
        candidate = replace(pair[1], metrics={"seconds": seconds})
        return [gate.examine(candidate, pair[0], Scores(), lambda: ()) for _ in range(2)]

    first, second = decide(0.0)
    assert isinstance(first, Waiting)
    assert isinstance(second, GateResult)
    assert (second.promotes, second.metrics["gate/comparisons"]) == (True, 0)
    assert isinstance(decide(20.0)[1], Waiting)
    assert isinstance(decide(20.0, wait=0.0)[1], GateResult)
    assert isinstance(decide(0.0, wait=20.0)[1], Waiting)


def test_a_setting_changes_the_gate(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    """Each of gate.margin, gate.error, gate.held_out, gate.prompts, gate.budget, gate.seconds and gate.workers does."""

    def run(scores: Scores, **settings: Any) -> tuple[GateResult, Replies]:
        source = Replies(renderer, lambda version, call: "1")
        return examine(store, pair, scores, source, renderer, **settings), source

    slightly = Scores(-0.01)
    assert not run(slightly)[0].promotes
    assert run(slightly, margin=0.5)[0].promotes
    assert "gate.error 0.05" not in str(run(slightly)[0].reason)
    assert "gate.error 0.2" in str(run(slightly, error=0.2)[0].reason)
    result, source = run(Scores())
    assert (result.metrics["gate/held_out/count"], result.metrics["gate/comparisons"]) == (12, 28)
    assert max(len(orders) for orders in source.orders) == 4, "two replies of each of two prompts"
    assert "gate/held_out" not in run(slightly, held_out=0)[0].metrics
    assert run(Scores(), budget=2)[0].metrics["gate/comparisons"] == 2
    assert run(Scores(), seconds=0.0)[0].metrics["gate/comparisons"] == 0
    assert max(len(orders) for orders in run(Scores(), workers=1)[1].orders) == 2
    sampled = [
        o for orders in run(Scores(), prompts=1)[1].orders for o in orders if o.temperature > 0
    ]
    assert len(sampled) == 2, "both versions answer one of the person's prompts"


def test_known_answers_of_the_head_are_reused(
    store: Store, pair: Pair, history: list[str], renderer: Renderer
) -> None:
    with store.write() as conn:
        known = probe_answers.ProbeAnswer(
            version=1,
            probe="p0",
            head=0,
            question="?",
            head_answer="",
            candidate_answer="It is 1.",
            verdict=0.0,
        )
        probe_answers.record_answers(conn, [known])
    source = Replies(renderer, lambda version, call: "It is 2.")
    examine(store, pair, Scores(), source, renderer, prompts=0, budget=2)
    assert [order.version for orders in source.orders for order in orders] == [2, 1, 2]
    with store.read() as conn:
        assert probe_answers.answers_of_version(conn, 2)[0].head_answer == "It is 1."


def test_probes_of_a_file_are_used(tmp_path: Path) -> None:
    """The file of gate.probes replaces the shipped ones."""
    file = tmp_path / "probes.yaml"
    file.write_text('- {question: "Who wrote Faust?", answers: [Goethe]}\n')
    settings = GateConfig(probes=str(file))
    (probe,) = load_probes(settings.probes)
    assert (probe.is_correct("It was goethe."), probe.is_correct("Goethes Freund")) == (True, False)
    for wrong in ("- {question: Who}", "[]", "question: x", ": ["):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=r"gate\.probes"):
            load_probes(str(file))
    assert len(load_probes(None)) >= 20
