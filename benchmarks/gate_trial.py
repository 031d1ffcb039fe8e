"""How many poisoned batches the gate refuses, and how many honest versions it refuses wrongly, on the starter.

    python -m benchmarks.gate_trial --people 10 --versions 10

Each person talks to a fresh system in one process (`in_process.py`) with real training. Once a number of versions is
made, the home is copied, and each copy gets one poisoned batch: reactions that say the opposite of the truth
("inverted"), or praise of replies that were sampled at a high temperature ("junk"). A batch counts as refused if no
version that was trained on poisoned turns alone became the head.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.in_process import Rooms

from openclaw_rl.evals import phrases
from openclaw_rl.evals.personas import DECK_SIZE, Persona, _ReactionCard
from openclaw_rl.evals.styles import TASTES
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.types import Policy, PolicyState

POISONS = ("inverted", "junk")
JUNK_TEMPERATURE = 2.0  # the highest that a client may ask for
HONEST_VERSIONS = 10  # versions that a person makes before the poison


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the versions of one phase."""

    phase: str
    taste: str
    seed: int
    promoted: int
    refused: int
    trained_turns: int  # poisoned turns that a head was trained on
    first_refused: bool  # the first version of the phase, which has the whole batch
    seconds: float
    reasons: tuple[str, ...]
    figures: tuple[dict[str, float], ...]


class Trial:
    """One person and a system of their own."""

    def __init__(self, home: Path, seed: int, more: dict[str, Any]) -> None:
        self.seed, self.taste, self._more = seed, TASTES[seed % len(TASTES)], more
        self.home, self.persona = home, Persona(taste=TASTES[seed % len(TASTES)], seed=seed)
        self._said = 0

    def config(self, home: Path) -> Config:
        """Return the settings of a home; a batch has exactly four turns, as with the defaults of a person who waits."""
        own = {"home": str(home), "train.seed": self.seed, "train.batch.max_wait": 1e9, "gate.strict": True}
        own |= {"serve.lessons": "off", "practice.enabled": False}  # what the weights learn from turns is measured
        return from_flat(own | self._more)

    async def honest(self, versions: int) -> Outcome:
        """Talk until there are so many versions and no turn waits."""
        config = self.config(self.home)
        return await self._phase("honest", config, lambda: _count_versions(config) >= versions and _is_drained(config))

    async def poisoned(self, kind: str, home: Path) -> Outcome:
        """Talk with poisoned reactions until a version was made of them, and its turns are done with."""
        config = self.config(home)
        before = _count_versions(config)
        return await self._phase(kind, config, lambda: _count_versions(config) > before and _is_drained(config))

    async def _phase(self, kind: str, config: Config, is_done: Callable[[], bool]) -> Outcome:
        began, before = time.monotonic(), _count_versions(config)
        async with Rooms(config) as rooms:
            while not is_done():
                await self._session(rooms, kind, is_done)
        with Store.open(config.store_path) as store, store.read() as conn:
            made = [p for p in policies.list_all(conn) if p.version > before]
            trained = {
                u.turn for p in made if p.state is PolicyState.LIVE for u in policies.uses_of_version(conn, p.version)
            }
        return Outcome(
            phase=kind,
            taste=self.taste,
            seed=self.seed,
            promoted=sum(p.state is PolicyState.LIVE for p in made),
            refused=sum(_is_refused(p) for p in made),
            trained_turns=len(trained) if kind != "honest" else 0,
            first_refused=bool(made) and made[0].state is PolicyState.REJECTED,
            seconds=time.monotonic() - began,
            reasons=tuple(str(p.reason) for p in made if p.state is PolicyState.REJECTED),
            figures=tuple({k: round(v, 3) for k, v in p.metrics.items() if k.startswith("gate/")} for p in made),
        )

    async def _session(self, rooms: Rooms, kind: str, is_done: Callable[[], bool]) -> None:
        history: list[dict[str, str]] = []
        while (text := self._next_message(kind, history)) is not None and not (history and is_done()):
            history.append({"role": "user", "content": text})
            temperature = JUNK_TEMPERATURE if kind == "junk" else 1.0
            reply = await rooms.say(history, seed=self.seed * 100_003 + self._said, temperature=temperature)
            self._said += 1
            history.append({"role": "assistant", "content": reply.text})
            await rooms.settle()

    def _next_message(self, kind: str, history: list[dict[str, str]]) -> str | None:
        if kind == "honest":
            return self.persona.next_message(history)
        self.persona._cards = [_ReactionCard(subtle=False, wrong=kind == "inverted") for _ in range(DECK_SIZE)]
        text = self.persona.next_message(history)
        if kind == "junk" and text is not None and len(history) > 1:  # praise, whatever the reply was
            praise = random.Random(f"{self.seed}/{self._said}").choice(phrases.GENERIC_PRAISE.plain)
            question = self.persona._question
            return praise if question is None else f"{praise} {question.text}"
        return text


def _is_refused(policy: Policy) -> bool:
    return policy.state is PolicyState.REJECTED


def _count_versions(config: Config) -> int:
    with Store.open(config.store_path) as store, store.read() as conn:
        return 0 if policies.get(conn, 0) is None else policies.next_version(conn) - 1


def _is_drained(config: Config) -> bool:
    with Store.open(config.store_path) as store, store.read() as conn:
        head = policies.head(conn).version
        return training_queue.count_trainable(conn, head=head, max_uses=1, need_score=True, need_hint=True) == 0


def trials(seeds: range, more: dict[str, Any], *, versions: int) -> Iterator[Outcome]:
    """Yield the outcome of each phase of each person."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(Path(folder) / "home", seed, more)
            yield asyncio.run(trial.honest(versions))
            for kind in POISONS:
                copied = shutil.copytree(trial.home, Path(folder) / kind)
                yield asyncio.run(trial.poisoned(kind, copied))


def main() -> None:
    """Run the trial, print each outcome as a line of JSON, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=10, help="each makes two poisoned batches")
    parser.add_argument("--versions", type=int, default=HONEST_VERSIONS, help="honest versions of each person")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings")
    given = parser.parse_args()
    more = {key: json.loads(value) for key, _, value in (text.partition("=") for text in given.set)}
    found = []
    for outcome in trials(range(given.seed, given.seed + given.people), more, versions=given.versions):
        found.append(outcome)
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    for kind in ("honest", *POISONS):
        of = [o for o in found if o.phase == kind]
        print(
            f"{kind}: {sum(o.refused for o in of)} of {sum(o.refused + o.promoted for o in of)} versions refused; "
            f"whole batch refused: {sum(o.first_refused for o in of)} of {len(of)}; "
            f"poisoned turns trained on: {sum(o.trained_turns for o in of)}"
        )


if __name__ == "__main__":
    main()
