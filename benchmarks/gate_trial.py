"""`make gate-trial`: what becomes of poisoned batches and of honest versions, with the default gate and the strict one.

Each person talks to a fresh system in one process (`in_process.py`), with real training, until a number of versions is
made. The home is then copied, and each copy gets one poisoned batch: reactions that say the opposite of the truth
("inverted"), or praise of replies that were sampled at a high temperature ("junk"). Then the person talks honestly
again for one batch of live turns, under the watch of live satisfaction.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import dataclasses
import hashlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gate_trial_report
from benchmarks.demo.cli_args import LARGEST_SEED, bounded_int, exit_on_error
from benchmarks.demo.personas import DECK_SIZE, Persona, _ReactionCard
from benchmarks.gate_trial_report import POISONS, Phase, PoisonOutcome, Unit
from benchmarks.in_process import Rooms
from benchmarks.setting_args import parse_settings, setting_argument

from openclaw_rl.errors import OpenClawError
from openclaw_rl.evals import phrases
from openclaw_rl.evals.styles import TASTES
from openclaw_rl.evals.toy_world import Question, facts_of, questions_about
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.types import PolicyState

ARMS: Mapping[str, Mapping[str, Any]] = {"default": {}, "strict": {"gate.strict": True}}
# The highest that a client may ask for.
JUNK_TEMPERATURE = 2.0
# Versions that a person makes before the poison.
HONEST_VERSIONS = 10
# With a verdict, of which the default `train.batch.max_turns` makes one batch.
LIVE_TURNS = 16
# With or without.
MAX_LIVE_TURNS = 80


@dataclass(slots=True, kw_only=True)
class Speaker:
    """A person, and what they have said so far."""

    persona: Persona
    said: int = 0
    failed: int = 0  # replies that raised or had no end


class Trial:
    """One person and a system of their own."""

    def __init__(self, home: Path, seed: int, more: Mapping[str, Any]) -> None:
        self.seed = seed
        self.taste = TASTES[seed % len(TASTES)]
        self._more = more
        self.home = home
        self.speaker = Speaker(persona=Persona(taste=TASTES[seed % len(TASTES)], seed=seed))

    def config(self, home: Path) -> Config:
        """Return the settings of a home; a batch has exactly four turns, as with the defaults of a person who waits."""
        own = {"home": str(home), "train.seed": self.seed, "train.batch.max_wait": 1e9}
        # What the weights learn from turns is measured.
        own |= {"serve.lessons": "off", "practice.enabled": False}
        # Speed alone.
        own |= {"engine.max_batch": 256, "engine.prefill_chunk": 8192, "gate.workers": 16}
        return from_flat(own | dict(self._more))

    async def talk_honestly(self, versions: int) -> Phase:
        """Talk until there are so many versions and no turn waits."""
        config = self.config(self.home)
        began = time.monotonic()
        async with self._open_rooms(config) as rooms:
            talk = _Talk(rooms, self.seed, self.speaker, "honest")
            await talk.run(lambda: _count_versions(config) >= versions and _is_drained(config))
        return self._phase_of(config, 0, talk, began)

    async def run_poison(self, kind: str, home: Path) -> PoisonOutcome:
        """Give one poisoned batch, and talk honestly then, unless the head was trained on nothing of it."""
        config = self.config(home)
        speaker = copy.deepcopy(self.speaker)
        began = time.monotonic()
        first = _count_versions(config)
        async with self._open_rooms(config) as rooms:
            before = await rooms.settle()
            asked = [questions_about(fact)[0] for fact in facts_of("asked")]
            satisfied = {"before": self._measure(rooms, before, asked)}
            talk = _Talk(rooms, self.seed, speaker, kind)
            await talk.run(lambda: _count_versions(config) > first and _is_drained(config))
            poisoned = await rooms.settle()
            last = _count_versions(config)
            satisfied["poisoned"] = (
                self._measure(rooms, poisoned, asked) if poisoned != before else satisfied["before"]
            )
            poison = self._phase_of(config, first, talk, began)
            live = _Talk(rooms, self.seed, speaker, "honest")
            known = len(speaker.persona.log)
            if poison.trained_turns:
                await live.run(lambda: live.is_long_enough(known))
            end = await rooms.settle()
            satisfied["end"] = (
                self._measure(rooms, end, asked) if end != poisoned else satisfied["poisoned"]
            )
        after = self._phase_of(config, last, live, time.monotonic())
        reactions = speaker.persona.log[known:]
        return PoisonOutcome(
            kind=kind,
            whole_refused=bool(poison.states) and poison.states[0] == PolicyState.REJECTED.value,
            trained_turns=poison.trained_turns,
            rolled_back=_states(config, first, last).count(PolicyState.ROLLED_BACK.value),
            satisfied=satisfied,
            live=sum(reaction.satisfied for reaction in reactions) / len(reactions)
            if reactions
            else None,
            live_turns=len(reactions),
            poison=poison,
            after=after,
        )

    def _open_rooms(self, config: Config) -> Rooms:
        return Rooms(config, gate_replies=bool(config.gate.budget))

    def _measure(self, rooms: Rooms, version: int, asked: list[Question]) -> float:
        return rooms.measure(version, self.taste, asked).satisfaction

    def _phase_of(self, config: Config, first: int, talk: _Talk, began: float) -> Phase:
        """Return what became of the versions after version `first`."""
        with Store.open(config.store_path) as store, store.read() as conn:
            made = [p for p in policies.list_all(conn) if p.version > first]
            promoted = [p for p in made if p.state in (PolicyState.LIVE, PolicyState.ROLLED_BACK)]
            used = {use.turn for p in promoted for use in policies.uses_of_version(conn, p.version)}
        return Phase(
            states=tuple(p.state.value for p in made),
            reasons=tuple(str(p.reason) for p in made if p.reason),
            figures=tuple(
                {k: round(v, 3) for k, v in p.metrics.items() if k.startswith("gate/")}
                for p in made
            ),
            trained_turns=len(used & talk.turns),
            replies=talk.replies,
            failed=talk.failed,
            seconds=round(time.monotonic() - began, 1),
        )


class _Talk:
    """Sessions of one kind until something is done."""

    def __init__(self, rooms: Rooms, seed: int, speaker: Speaker, kind: str) -> None:
        self._rooms = rooms
        self._seed = seed
        self._speaker = speaker
        self._kind = kind
        # That were answered.
        self.turns: set[str] = set()
        self.failed = 0

    @property
    def replies(self) -> int:
        return len(self.turns)

    def is_long_enough(self, known: int) -> bool:
        """Whether the person has given a batch of verdicts since the first `known` reactions of the log."""
        reactions = self._speaker.persona.log[known:]
        return sum(r.known for r in reactions) >= LIVE_TURNS or len(reactions) >= MAX_LIVE_TURNS

    async def run(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            history: list[dict[str, str]] = []
            while (text := self._next_message(history)) is not None and not (history and is_done()):
                history.append({"role": "user", "content": text})
                history.append({"role": "assistant", "content": await self._reply_to(history)})
                await self._rooms.settle()

    async def _reply_to(self, history: list[dict[str, str]]) -> str:
        seed = self._seed * 100_003 + self._speaker.said
        self._speaker.said += 1
        try:
            reply = await self._rooms.say(
                history, seed=seed, temperature=JUNK_TEMPERATURE if self._kind == "junk" else 1.0
            )
        except OpenClawError:
            self.failed += 1
            return ""
        self.failed += not reply.finished
        self.turns.add(reply.id)
        return reply.text

    def _next_message(self, history: list[dict[str, str]]) -> str | None:
        persona = self._speaker.persona
        if self._kind == "honest":
            return persona.next_message(history)
        persona._cards = [
            _ReactionCard(subtle=False, wrong=self._kind == "inverted") for _ in range(DECK_SIZE)
        ]
        text = persona.next_message(history)
        persona._cards = []
        # Praise, whatever the reply was.
        if self._kind == "junk" and text is not None and len(history) > 1:
            praise = random.Random(f"{self._seed}/{self._speaker.said}").choice(
                phrases.GENERIC_PRAISE.plain
            )
            return praise if persona._question is None else f"{praise} {persona._question.text}"
        return text


def _count_versions(config: Config) -> int:
    with Store.open(config.store_path) as store, store.read() as conn:
        return 0 if policies.get(conn, 0) is None else policies.next_version(conn) - 1


def _states(config: Config, first: int, last: int) -> list[str]:
    with Store.open(config.store_path) as store, store.read() as conn:
        return [p.state.value for p in policies.list_all(conn) if first < p.version <= last]


def _is_drained(config: Config) -> bool:
    with Store.open(config.store_path) as store, store.read() as conn:
        return (
            training_queue.count_trainable(conn, max_uses=1, need_score=True, need_hint=True) == 0
        )


def run_unit(arm: str, seed: int, more: Mapping[str, Any], *, versions: int) -> Unit:
    """Run one person of one arm: the honest versions, and a copy for each poison."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder) / "home", seed, {**ARMS[arm], **more})
        honest = asyncio.run(trial.talk_honestly(versions))
        outcomes = []
        for kind in POISONS:
            copied = shutil.copytree(trial.home, Path(folder) / kind)
            outcomes.append(asyncio.run(trial.run_poison(kind, copied)))
            shutil.rmtree(copied)
        return Unit(arm=arm, seed=seed, taste=trial.taste, honest=honest, outcomes=tuple(outcomes))


def load_or_run(given: argparse.Namespace, arm: str, seed: int, more: Mapping[str, Any]) -> Unit:
    """Return the result in the folder of results, else run it and add it there."""
    rest = hashlib.sha256(
        json.dumps([dict(more), given.versions], sort_keys=True).encode()
    ).hexdigest()[:8]
    file = Path(given.out) / f"{arm}-{seed}-{rest}.json"
    if not file.exists():
        unit = run_unit(arm, seed, more, versions=given.versions)
        file.write_text(json.dumps(dataclasses.asdict(unit)), encoding="utf-8")
    return Unit.from_json(file.read_text(encoding="utf-8"))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="What becomes of poisoned batches and of honest versions."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/gate-trial"), help="results, from which it continues"
    )
    parser.add_argument("--doc", type=Path, help="page to update [none]")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument(
        "--people", type=bounded_int(1), default=10, help="each gets two poisoned batches [10]"
    )
    parser.add_argument(
        "--versions", type=bounded_int(1), default=HONEST_VERSIONS, help="honest ones of each [10]"
    )
    parser.add_argument(
        "--seed", type=bounded_int(0, LARGEST_SEED), default=7000, help="of the first person [7000]"
    )
    parser.add_argument(
        "--set",
        dest="sets",
        type=setting_argument,
        metavar="KEY=VALUE",
        action="append",
        default=[],
    )
    return parser


def main() -> None:
    given = arguments().parse_args()
    more = parse_settings(given.sets)
    with exit_on_error():
        given.out.mkdir(parents=True, exist_ok=True)
        units = []
        for arm in given.arms:
            for seed in range(given.seed, given.seed + given.people):
                units.append(load_or_run(given, arm, seed, more))
                print(gate_trial_report.describe_unit(units[-1]), flush=True)
        print(gate_trial_report.make_tables(units))
        if given.doc is not None:
            gate_trial_report.write_page(given.doc, units, given.sets)


if __name__ == "__main__":
    main()
