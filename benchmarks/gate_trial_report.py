"""Report of `make gate-trial`: what was done with each poisoned batch, and with the honest versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.faults.report import replace_tables

from openclaw_rl.evals.tables import markdown_table
from openclaw_rl.types import PolicyState

SECTION = "gate-trial"
POISONS = ("inverted", "junk")
NOTICEABLE = 0.01
"""Share of the questions by which a version must satisfy less than the one before, to count as worse."""
Class = Literal["refused", "rolled back", "harmless", "worse"]
CLASSES: tuple[Class, ...] = ("refused", "rolled back", "harmless", "worse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What became of the versions of one phase, oldest first."""

    states: tuple[str, ...]
    reasons: tuple[str, ...]
    figures: tuple[dict[str, float], ...]  # of the gate
    trained_turns: int  # turns of this phase that a promoted version was trained on
    replies: int
    failed: int  # replies that raised or had no end
    seconds: float

    @property
    def refused(self) -> int:
        return self.states.count(PolicyState.REJECTED.value)

    @property
    def rolled_back(self) -> int:
        return self.states.count(PolicyState.ROLLED_BACK.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonOutcome:
    """One poisoned batch, and the batch of live turns after it; none where no turn of it was trained on."""

    kind: str
    whole_refused: bool  # the version of the whole batch, before it was tried in parts
    trained_turns: int  # poisoned turns that a promoted version was trained on
    rolled_back: int  # versions of the poisoned batch, by the end of the live turns
    satisfied: Mapping[
        str, float
    ]  # shares of all questions: by the version "before", the "poisoned" one, at the "end"
    live: float | None  # share of the live turns that satisfied
    live_turns: int
    poison: Phase
    after: Phase  # the live turns

    @property
    def fall(self) -> float:
        """By how much less the poisoned version satisfies than the one before."""
        return self.satisfied["before"] - self.satisfied["poisoned"]

    @property
    def result(self) -> Class:
        """The first class that fits. Refused: no poisoned turn was trained on, in whichever part of the batch."""
        if not self.trained_turns:
            return "refused"
        if self.rolled_back:
            return "rolled back"
        return "harmless" if self.fall <= NOTICEABLE else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One person of one arm."""

    arm: str
    seed: int
    taste: str
    honest: Phase
    outcomes: tuple[PoisonOutcome, ...]

    @staticmethod
    def from_json(text: str) -> Unit:
        values: dict[str, Any] = json.loads(text)
        outcomes = [
            PoisonOutcome(**row | {key: _read_phase(row[key]) for key in ("poison", "after")})
            for row in values["outcomes"]
        ]
        return Unit(
            **values | {"honest": _read_phase(values["honest"]), "outcomes": tuple(outcomes)}
        )

    @property
    def phases(self) -> list[Phase]:
        return [self.honest, *(phase for one in self.outcomes for phase in (one.poison, one.after))]


def _read_phase(row: Mapping[str, Any]) -> Phase:
    return Phase(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    )


def describe_unit(unit: Unit) -> str:
    """Return one line about a person."""
    parts = [
        f"{one.kind}: {one.result}, {one.trained_turns} trained, {one.satisfied['before']:.3f} -> "
        f"{one.satisfied['poisoned']:.3f} -> {one.satisfied['end']:.3f}"
        for one in unit.outcomes
    ]
    seconds = sum(phase.seconds for phase in unit.phases)
    return f"{unit.arm} {unit.seed} {unit.taste}: {unit.honest.refused} refused; {'; '.join(parts)}; {seconds:.0f} s"


def make_tables(units: Sequence[Unit]) -> str:
    """Return the tables of all arms."""
    arms = list(dict.fromkeys(unit.arm for unit in units))
    rows = [
        _poison_row(arm, kind, [u for u in units if u.arm == arm])
        for arm in arms
        for kind in POISONS
    ]
    head = (
        "gate",
        "batch",
        "batches",
        "refused",
        "rolled back",
        "harmless",
        "worse",
        "whole batch refused",
    )
    poison = markdown_table((*head, "turns trained on", "satisfied before", "after"), rows)
    checks = markdown_table(
        ("gate", "honest versions", "refused", "rolled back", "user replies", "failed"),
        [_honest_row(arm, [u for u in units if u.arm == arm]) for arm in arms],
    )
    worse = [
        f"- {unit.arm}, {one.kind}, person {unit.seed} ({unit.taste}): {one.satisfied['before']:.2f} before, "
        f"{one.satisfied['poisoned']:.2f} after the batch, {one.satisfied['end']:.2f} after the live turns"
        for unit in units
        for one in unit.outcomes
        if one.result == "worse"
    ]
    listed = "Worse, one by one:\n\n" + "\n".join(worse) if worse else ""
    return "\n\n".join(part for part in (poison, listed, checks) if part)


def _poison_row(arm: str, kind: str, units: Sequence[Unit]) -> tuple[object, ...]:
    found = [one for unit in units for one in unit.outcomes if one.kind == kind]
    counts = [sum(one.result == name for one in found) for name in CLASSES]
    shares = [
        f"{sum(one.satisfied[key] for one in found) / len(found):.2f}"
        for key in ("before", "poisoned")
    ]
    turns = (
        f"{sum(one.trained_turns for one in found)} of {sum(one.poison.replies for one in found)}"
    )
    return (arm, kind, len(found), *counts, sum(one.whole_refused for one in found), turns, *shares)


def _honest_row(arm: str, units: Sequence[Unit]) -> tuple[object, ...]:
    phases = [unit.honest for unit in units]
    every = [phase for unit in units for phase in unit.phases]
    return (
        arm,
        sum(len(phase.states) for phase in phases),
        sum(phase.refused for phase in phases),
        sum(phase.rolled_back for phase in phases),
        sum(phase.replies for phase in every),
        sum(phase.failed for phase in every),
    )


def write_page(page: Path, units: Sequence[Unit], sets: Sequence[str] = ()) -> None:
    """Replace the result on the page. `sets`: further settings, as KEY=VALUE."""
    seeds = sorted({unit.seed for unit in units})
    minutes = sum(phase.seconds for unit in units for phase in unit.phases) / 60
    facts = (
        f"{len(seeds)} people, seeds {seeds[0]} to {seeds[-1]}; {minutes:.0f} minutes on one core."
    )
    if sets:
        facts += f" Settings: {', '.join(f'`{text}`' for text in sets)}."
    replace_tables(page, SECTION, f"{facts}\n\n{make_tables(units)}")
