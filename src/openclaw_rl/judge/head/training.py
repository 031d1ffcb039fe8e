"""The rows that a head is fitted to: read once for a base, and kept in the home with the head."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from openclaw_rl.judge.head.base_states import BaseStates
from openclaw_rl.judge.head.features import make_features
from openclaw_rl.judge.head.labelled_reactions import LabelledReaction, LabelledSet
from openclaw_rl.judge.head.model import (
    CLASSES,
    Head,
    HeadReport,
    LabelledRows,
    fit_shared_head,
)
from openclaw_rl.judge.head.records import (
    ADDRESSED,
    FORM_DIGEST,
    HeadRecord,
    make_record,
    with_addressed_text,
)
from openclaw_rl.judge.head.regression import Floats, LinearHead
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.types import States, Verdict

HEAD_VERSION = "2"
"""Of the columns and of the fit: a head of another version is not used."""
ADDRESSED_EVERY = 6
"""Of so many labelled reactions, one gets a copy with a text that addresses the judge; of tool results, each."""
SAVE_EVERY = 32
"""Rows after which the states that were read are saved, so that a stop loses few."""
EARLY_ROWS = (192, 320, 448, 704)
"""Rows after which a head is fitted to those that were read so far; it judges while the rest is read."""
ShowCount = Callable[[int, int], None]
"""Called with the rows that were read, and their number."""
TakeEarly = Callable[["PreparedHead"], None]
"""Called with each head that is fitted before all rows are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A labelled reaction as the head reads it.

    `group`: place of the reaction in its set; `is_copy`: whether a text that addresses the judge was added.
    """

    labelled: LabelledReaction
    record: HeadRecord
    group: int
    is_copy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedHead:
    """A head with its name and its report."""

    name: str
    head: Head
    report: HeadReport


def training_rows(reactions: Sequence[LabelledReaction]) -> list[TrainingRow]:
    """Return the rows of a set in the order in which they are read: each reaction, some with a copy behind it.

    The order is drawn once, so that the first rows are a sample of all. A copy has a text that addresses the judge.
    """
    rows: list[TrainingRow] = []
    copies = 0
    for group in np.random.default_rng(0).permutation(len(reactions)).tolist():
        labelled = reactions[group]
        record = make_record(labelled.item)
        if record is None:
            continue
        rows.append(TrainingRow(labelled=labelled, record=record, group=group, is_copy=False))
        if record.is_tool or group % ADDRESSED_EVERY == 0:
            changed = with_addressed_text(record, ADDRESSED[copies % len(ADDRESSED)])
            rows.append(TrainingRow(labelled=labelled, record=changed, group=group, is_copy=True))
            copies += 1
    return rows


async def prepare_head(
    states: BaseStates,
    rules: RulesJudge,
    labelled: LabelledSet,
    *,
    folder: Path,
    identity: str,
    min_precision: float,
    show: ShowCount,
    take_early: TakeEarly,
) -> PreparedHead:
    """Return the head for a base: the one that is kept in `folder`, else a new one, which is then kept.

    `identity`: of the base. Raises what the engine raises.
    """
    rows = training_rows(labelled.reactions)
    read_key = _digest(identity, FORM_DIGEST, labelled.name, HEAD_VERSION)
    key = _digest(read_key, rules.name, f"{min_precision:g}")
    head_file = folder / f"head-{key}.npz"
    known = await asyncio.to_thread(_load_head, head_file)
    if known is not None:
        show(len(rows), len(rows))
        return known
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    verdicts = [await rules.judge(labelled.item) for labelled in labelled.reactions]

    async def fit(read: Sequence[States]) -> PreparedHead:
        count = len(read)
        name = f"head@{key}" if count == len(rows) else f"head@{key}/{count}"
        return await asyncio.to_thread(_fit, name, rows[:count], read, verdicts, min_precision)

    async def fit_early(read: Sequence[States]) -> None:
        take_early(await fit(read))

    read = await _read_rows(states, rows, folder / f"states-{read_key}.npz", show, fit_early)
    prepared = await fit(read)
    await asyncio.to_thread(_save_head, head_file, prepared)
    return prepared


async def _read_rows(
    states: BaseStates,
    rows: Sequence[TrainingRow],
    file: Path,
    show: ShowCount,
    fit_early: Callable[[Sequence[States]], Awaitable[None]],
) -> list[States]:
    read = await asyncio.to_thread(_load_states, file)
    read = read[: len(rows)]
    await states.wait_ready()
    show(len(read), len(rows))
    saved = len(read)
    # Of the states that an earlier start read, one head is fitted at once.
    if EARLY_ROWS[0] <= saved < len(rows):
        await fit_early(read)
    try:
        for row in rows[len(read) :]:
            read.append(await states.read(row.record))
            show(len(read), len(rows))
            if len(read) in EARLY_ROWS and len(read) < len(rows):
                await fit_early(read)
            if len(read) >= saved + SAVE_EVERY:
                saved = len(read)
                await asyncio.to_thread(_save_arrays, file, {"states": np.stack(read)})
    finally:
        if read and len(read) > saved:
            _save_arrays(file, {"states": np.stack(read)})
    return read


def _fit(
    name: str,
    rows: Sequence[TrainingRow],
    states: Sequence[States],
    verdicts: Sequence[Verdict],
    min_precision: float,
) -> PreparedHead:
    features = np.stack(
        [
            make_features(row.record, read, verdicts[row.group])
            for row, read in zip(rows, states, strict=True)
        ]
    )
    labels = np.array([CLASSES.index(row.labelled.expected) for row in rows], dtype=np.int64)
    groups = np.array([row.group for row in rows], dtype=np.int64)
    labelled = LabelledRows(
        features=features, labels=labels, texts=[row.record.reaction for row in rows]
    )
    head, probabilities = fit_shared_head(labelled, groups=groups, min_precision=min_precision)
    plain = [place for place, row in enumerate(rows) if not row.is_copy]
    report = measure_head(
        probabilities[plain],
        [rows[place].labelled for place in plain],
        [verdicts[rows[place].group] for place in plain],
        head.threshold,
    )
    return PreparedHead(name=name, head=head, report=report)


def measure_head(
    probabilities: Floats,
    reactions: Sequence[LabelledReaction],
    by_rules: Sequence[Verdict],
    threshold: float,
) -> HeadReport:
    """Return how a head with these probabilities [n, C], and the rules, judge reactions with known scores."""
    likely = [CLASSES[one] for one in probabilities.argmax(axis=1)]
    confidence = probabilities.max(axis=1)
    expected = [one.expected for one in reactions]
    given = [
        score if sure >= threshold else None for score, sure in zip(likely, confidence, strict=True)
    ]
    ruled = [verdict.score or None for verdict in by_rules]
    complaints = [place for place, one in enumerate(reactions) if one.kind == "negative"]
    coverage, precision = _coverage(given, expected)
    rules_coverage, rules_precision = _coverage(ruled, expected)
    return HeadReport(
        rows=len(reactions),
        right=_share_equal(likely, expected),
        complaints=_share([likely[place] == -1 for place in complaints]),
        coverage=coverage,
        precision=precision,
        threshold=threshold,
        rules_right=_share_equal(ruled, expected),
        rules_coverage=rules_coverage,
        rules_precision=rules_precision,
    )


def _coverage(given: Sequence[int | None], expected: Sequence[int | None]) -> tuple[float, float]:
    """Return the share of the reactions with a score that were given one, and how many of all given ones are right."""
    pairs = list(zip(given, expected, strict=True))
    covered = [score is not None for score, right in pairs if right is not None]
    correct = [score == right for score, right in pairs if score is not None]
    return _share(covered), _share(correct)


def _share_equal(one: Sequence[int | None], other: Sequence[int | None]) -> float:
    return _share([a == b for a, b in zip(one, other, strict=True)])


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.0


# ------------------------------------------------------------------------------------------------- files


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _save_arrays(file: Path, arrays: dict[str, Any]) -> None:
    """Write a file of arrays; it is complete or missing."""
    temporary = file.with_name(f".{file.name}")
    with temporary.open("wb") as stream:
        np.savez(stream, **arrays)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)


def _load_arrays(file: Path) -> dict[str, Any] | None:
    """Return the arrays of a file; None if it is missing or damaged, and is to be written again."""
    try:
        # Of a damaged file, numpy would leave the one that it opens itself open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


def _load_states(file: Path) -> list[States]:
    arrays = _load_arrays(file)
    return [] if arrays is None else list(arrays["states"])


def _save_head(file: Path, prepared: PreparedHead) -> None:
    head = prepared.head
    facts = {
        "name": prepared.name,
        "temperature": head.temperature,
        "threshold": head.threshold,
        "texts": list(head.rows.texts),
        "report": asdict(prepared.report),
    }
    arrays = {
        "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        "features": head.rows.features.astype(np.float32),
        "labels": head.rows.labels,
        "mean": head.linear.mean,
        "scale": head.linear.scale,
        "weights": head.linear.weights,
        "bias": head.linear.bias,
    }
    _save_arrays(file, arrays)


def _load_head(file: Path) -> PreparedHead | None:
    arrays = _load_arrays(file)
    if arrays is None:
        return None
    facts = json.loads(arrays["facts"].tobytes())
    rows = LabelledRows(
        features=arrays["features"].astype(np.float64),
        labels=arrays["labels"],
        texts=facts["texts"],
    )
    linear = LinearHead(
        mean=arrays["mean"],
        scale=arrays["scale"],
        weights=arrays["weights"],
        bias=arrays["bias"],
    )
    head = Head(
        linear=linear,
        temperature=facts["temperature"],
        threshold=facts["threshold"],
        rows=rows,
    )
    return PreparedHead(
        name=facts["name"],
        head=head,
        report=HeadReport(**facts["report"]),
    )
