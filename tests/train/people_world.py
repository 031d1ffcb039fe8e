"""People with keys of their own, and attackers among them, in a real store: verdicts, feedback and steps of training.

The judge's writer stores the verdicts, and the training loop takes its steps by the credit of `binary`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from openclaw_rl.judge.verdict_writer import VerdictWriter
from openclaw_rl.methods.binary import make_binary
from openclaw_rl.methods.types import BatchLogprobs, Sample
from openclaw_rl.protocols import StepResult
from openclaw_rl.settings.load import train_settings
from openclaw_rl.status.report import collect_status
from openclaw_rl.store import exchanges, reactions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import training_queue
from openclaw_rl.testing import ScriptedTrainer
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.types import Feedback, JudgedTurn, Verdict

KINDS = ("contradicts", "praises", "floods", "switches")
ROUNDS = 7
TURNS = 6
FLOOD = 40
# Shares of turns on which the judge, and an honest person, sees what the reply was.
JUDGE_SEES = 0.9
PERSON_SEES = 0.95
GOOD_SHARE = 0.6
Judged = Callable[..., JudgedTurn]


@dataclass(frozen=True)
class Opinions:
    """The scores of one turn, by the judge and by the person; None: the person gives none."""

    key: str
    judge: int
    person: int | None


def people_of(honest: int, attackers: int) -> list[str]:
    """Keys of people; of each kind of attacker, the same number."""
    names = [f"honest-{n:02}" for n in range(honest)]
    return names + [f"{KINDS[n % len(KINDS)]}-{n:02}" for n in range(attackers)]


def opinions_of(key: str, day: int) -> list[Opinions]:
    """The turns of a person in a round, by the kind of person at the begin of the key; not by what others do."""
    chance = random.Random(f"{key} {day}")
    kind = key.partition("-")[0]
    out = []
    for n in range(FLOOD if kind == "floods" else TURNS):
        good = 1 if chance.random() < GOOD_SHARE else -1
        judge = good if chance.random() < JUDGE_SEES else -good
        honest = good if chance.random() < PERSON_SEES else -good
        scores = {
            "honest": honest,
            "contradicts": -good,
            "praises": 1,
            "floods": -good,
            "switches": honest if day <= ROUNDS // 2 else -good,
        }
        # One turn of each round is left to the judge.
        out.append(Opinions(key, judge, None if n == 0 else scores[kind]))
    return out


class CreditTrainer(ScriptedTrainer):
    """Computes the credit of `binary`, without a model."""

    def __init__(self) -> None:
        super().__init__()
        self._method = make_binary(train_settings({"method": "binary"}))
        self.advantages: dict[str, float] = {}

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        logprobs = [sample.logprobs for sample in samples]
        batch = BatchLogprobs(
            samples=samples, student_logprobs=logprobs, teacher_logprobs=[() for _ in samples]
        )
        (term,) = self._method.loss_terms(batch, self.memory)
        for sample, advantages in zip(samples, term.advantages, strict=True):
            self.advantages[sample.turn] = float(advantages[0])
        self.memory = self._method.update_state(samples, self.memory)
        return super().step(samples, out)


@dataclass
class Home:
    """A store with people, the judge's writer and the training loop."""

    store: Store
    loop: TrainLoop
    trainer: CreditTrainer
    writer: VerdictWriter
    judged: Judged
    # Turn -> its name, which is the same in each run.
    names: dict[str, str] = field(default_factory=dict)

    def live_round(self, day: int, people: Sequence[str], order: random.Random) -> None:
        """Everyone has turns, in an order of chance, and scores them; the trainer then takes all its steps."""
        asked = [
            (f"{key} {day} {n}", opinion)
            for key in people
            for n, opinion in enumerate(opinions_of(key, day))
        ]
        order.shuffle(asked)
        self.have_turns(asked)
        while self.loop.run_once():
            pass

    def have_turns(self, asked: Sequence[tuple[str, Opinions]], **request: str) -> None:
        """Serve turns by their names, judge them, and give the feedback. `request`: further fields of all requests."""
        served = []
        for name, opinion in asked:
            item = self.judged(request={"scope": opinion.key} | request, score=opinion.judge)
            self.names[item.turn.id] = name
            served.append((item, opinion))
        self._serve([item for item, _ in served])
        self.writer.save_verdicts([item.verdict for item, _ in served])
        scored = [(item, o.person) for item, o in served if o.person is not None]
        self.writer.save_verdicts(self._give_feedback(scored))

    def _serve(self, items: Sequence[JudgedTurn]) -> None:
        with self.store.write(durable=False) as conn:
            exchanges.admit(conn, [item.exchange.request for item in items])
            exchanges.finish(conn, [i.exchange.reply for i in items if i.exchange.reply])
            for item in items:
                reactions.record_reaction(
                    conn,
                    item.turn.id,
                    messages=[{"role": "user", "content": "thanks"}],
                    signature=b"",
                    source="later",
                    how="exact",
                    at=item.verdict.at,
                )

    def _give_feedback(self, scored: Sequence[tuple[JudgedTurn, int]]) -> list[Verdict]:
        verdicts = []
        with self.store.write(durable=False) as conn:
            for item, score in scored:
                turn = item.turn.id
                given = Feedback(
                    id=f"f-{turn}",
                    scope=item.exchange.request.scope,
                    target=turn,
                    score=score,
                    given_at=item.verdict.at,
                )
                records.add_feedback(conn, [given])
                assert reactions.record_pending_feedback(conn, turn, item.verdict.at)
                current = turns.current_verdict(conn, turn)
                assert current is not None
                verdicts.append(
                    replace(current, judge="explicit", revision=2, score=score, explicit=True)
                )
        return verdicts

    def advantages(self) -> dict[str, float]:
        """Name of each turn that was trained on -> its advantage."""
        return {self.names[turn]: value for turn, value in self.trainer.advantages.items()}

    def waiting(self) -> set[str]:
        """Turns that the next steps may be trained on."""
        with self.store.read() as conn:
            return set(
                training_queue.trainable_ids(
                    conn, limit=10_000, max_uses=1, need_score=True, need_hint=False
                )
            )

    def status(self) -> dict[str, Any]:
        with self.store.read() as conn:
            return collect_status(conn, time.time())


def live(home: Home, people: Sequence[str], order: int) -> Home:
    """Let people have all their rounds. `order`: of chance, in which their turns come."""
    chance = random.Random(order)
    for day in range(ROUNDS):
        home.live_round(day, people, chance)
    return home


def differences(first: Mapping[str, float], second: Mapping[str, float]) -> np.ndarray[Any, Any]:
    """Differences of the advantages of honest people's turns that both trained on."""
    shared = sorted(name for name in first if name in second and name.startswith("honest"))
    return np.array([first[name] - second[name] for name in shared])
