"""The tables of a run, for the terminal and for the documentation."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults import soak, wire
from benchmarks.faults.runner import FaultResult, PlanResult
from benchmarks.faults.soak import SoakSample
from benchmarks.faults.trust import TrustResult
from benchmarks.wire_attacks import AttackResult

from openclaw_rl.evals.tables import markdown_table

# Of absolute paths: those of this machine are not for the page.
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.-]+/)+")
# Different violations of a row that are quoted.
_EXAMPLES = 3


@dataclass(slots=True)
class RunReport:
    """Everything that a run found."""

    command: str
    results: list[FaultResult] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)  # that belong to no fault
    counts: Counter[str] = field(default_factory=Counter)
    attacks: list[AttackResult] = field(default_factory=list)
    trust: list[TrustResult] = field(default_factory=list)
    samples: list[SoakSample] = field(default_factory=list)
    skipped: Mapping[str, str] = field(default_factory=dict)

    def add_plan(self, name: str, found: PlanResult) -> None:
        self.results += found.results
        self.violations += [f"{name}: {line}" for line in found.violations]
        self.counts += found.counts

    @property
    def has_failed(self) -> bool:
        """Whether any invariant or bound was violated."""
        return bool(
            self.violations
            or any(r.violations for r in self.results)
            or any(wire.find_violations(a) for a in self.attacks)
            or any(result.violations for result in self.trust)
            or (self.samples and soak.find_violations(self.samples))
        )

    def write_markdown(self) -> str:
        """Return all tables."""
        parts = [f"`{self.command}`", self._fault_table(), self._sums(), self._violation_list()]
        if self.attacks:
            broken = [
                f"- {a.name}: {line}" for a in self.attacks for line in wire.find_violations(a)
            ]
            parts += [_attack_table(self.attacks), "\n".join(broken)]
        if self.trust:
            parts += [_trust_table(self.trust)]
        if self.samples:
            parts += [
                _soak_table(self.samples),
                "\n".join(f"- soak: {v}" for v in soak.find_violations(self.samples)),
            ]
        parts.append(
            "\n".join(f"- not run: {row}. Reason: {why}" for row, why in self.skipped.items())
        )
        return _FOLDERS.sub("", "\n\n".join(part for part in parts if part))

    def _fault_table(self) -> str:
        if not self.results:
            return ""
        head = (
            "fault",
            "times",
            "requests",
            "not answered",
            "outage",
            "recovery: median",
            "longest",
            "violations",
        )
        names = sorted({r.name for r in self.results})
        return markdown_table(
            head, [_fault_row(name, [r for r in self.results if r.name == name]) for name in names]
        )

    def _sums(self) -> str:
        if not self.counts:
            return ""
        counted = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        wrong = sum(len(r.violations) for r in self.results) + len(self.violations)
        return f"{len(self.results)} faults; checked: {counted}; {wrong} violations."

    def _violation_list(self) -> str:
        lines = []
        for name in sorted({r.name for r in self.results}):
            found = Counter(line for r in self.results if r.name == name for line in r.violations)
            lines += [
                f"- {name}: {line}{_times(count)}" for line, count in found.most_common(_EXAMPLES)
            ]
            lines += (
                [f"- {name}: {len(found) - _EXAMPLES} others"] if len(found) > _EXAMPLES else []
            )
        return "\n".join(
            [*lines, *(f"- at the end, {line}" for line in self.violations[: 4 * _EXAMPLES])]
        )


def _trust_table(results: Sequence[TrustResult]) -> str:
    rows = [(r.name, str(r.requests), "; ".join(r.violations) or "none") for r in results]
    return markdown_table(("attack on trust", "requests", "violations"), rows)


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _fault_row(name: str, results: Sequence[FaultResult]) -> tuple[str, ...]:
    recoveries = [r.recovery for r in results]
    return (
        name,
        str(len(results)),
        str(sum(r.requests for r in results)),
        str(sum(r.failed for r in results)),
        f"{max(r.outage for r in results):.1f} s",
        f"{statistics.median(recoveries):.1f} s",
        f"{max(recoveries):.1f} s",
        str(sum(len(r.violations) for r in results)),
    )


def _attack_table(attacks: Sequence[AttackResult]) -> str:
    head = (
        "attack",
        "times",
        "the attacker got, the first time",
        "others: longest wait",
        "median",
        "failed",
        "memory",
    )
    names = list(dict.fromkeys(attack.name for attack in attacks))
    return markdown_table(
        head, [_attack_row(name, [a for a in attacks if a.name == name]) for name in names]
    )


def _attack_row(name: str, attacks: Sequence[AttackResult]) -> tuple[str, ...]:
    return (
        name,
        str(len(attacks)),
        attacks[0].answer,
        f"{max(a.longest for a in attacks):.2f} s",
        f"{1000 * statistics.median(a.median for a in attacks):.0f} ms",
        f"{sum(a.failures for a in attacks)} of {sum(a.requests for a in attacks)}",
        f"{max(a.growth for a in attacks):+.0f} MB",
    )


def _soak_table(samples: Sequence[SoakSample]) -> str:
    first = samples[0]
    warm = samples[int(len(samples) * soak.WARM_UP_SHARE)]
    last = samples[-1]
    rows = [
        (f"memory of {name}", *(f"{s.memory.get(name, 0):.0f} MB" for s in (first, warm, last)))
        for name in last.memory
    ]
    rows += [
        (f"descriptors of {name}", *(str(s.descriptors.get(name, 0)) for s in (first, warm, last)))
        for name in last.descriptors
    ]
    rows += [
        ("store", *(f"{s.store_kb / 1e3:.1f} MB" for s in (first, warm, last))),
        ("version folders", *(f"{s.versions_mb:.1f} MB" for s in (first, warm, last))),
        ("replies", *(str(s.replies) for s in (first, warm, last))),
        ("head", *(str(s.head) for s in (first, warm, last))),
    ]
    return markdown_table(("", *(f"after {s.at / 60:.0f} min" for s in (first, warm, last))), rows)


def replace_tables(page: Path, section: str, tables: str) -> None:
    """Replace what stands between the markers of a section. Raises `ValueError` if the page lacks them."""
    begin = f"<!-- begin: {section} -->"
    end = f"<!-- end: {section} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{page}: expected the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{tables}\n\n{end}{after}", encoding="utf-8")
