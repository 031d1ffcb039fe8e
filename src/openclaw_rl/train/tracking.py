"""Metrics of a step: a line in the log, a line of JSON, and optionally TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.types import Sample
from openclaw_rl.reasons import Reason
from openclaw_rl.settings.load import TrackConfig
from openclaw_rl.settings.specs import is_installed
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.train.checkpoints import CheckpointWriter
from openclaw_rl.train.learning_rate import LowRateWarning
from openclaw_rl.types import Policy, PolicyState, Verdict

log = logging.getLogger(__name__)
_step_log = logging.getLogger("openclaw_rl.train")
METRICS_FILE = "metrics.jsonl"
NO_STEP_STATE = "no step"
# Timeout of W&B's initialisation.
_WANDB_SECONDS = 15.0
_SUMMARY_METRICS = {
    "loss/total": "loss {:.4g}",
    "reward/mean": "reward {:+.2f}",
    "kl": "KL {:.4f}",
    "gradient/norm": "gradient {:.3g}",
    "seconds": "{:.2f} s",
}
"""Metric -> its words in the log line of a step."""
MetricsSink = Callable[[int, Mapping[str, float]], None]
"""(step, metrics). The step is the number of the new policy version."""


def summary_line(policy: Policy, m: Mapping[str, float], used: int) -> str:
    """Return a one-line summary of a step on `used` turns, for the log."""
    replays = int(m["replays"])
    of = "" if policy.name == DEFAULT_NAME else f" of {policy.name}"
    parts = [f"version {policy.version}{of}: {number_of_turns(used - replays, replays)}"]
    # A trainer that is another program reports what it likes.
    parts += [form.format(m[name]) for name, form in _SUMMARY_METRICS.items() if name in m]
    line = ", ".join(parts)
    return f"{line}: rejected: {policy.reason}" if policy.reason else line


def number_of_turns(fresh: int, replays: int) -> str:
    """Return the counts as text, for example "4 turns and 4 again"."""
    return f"{fresh} turn{'s' * (fresh != 1)}" + (f" and {replays} again" if replays else "")


def off_policy_summary(m: Mapping[str, float]) -> str:
    """Return a readable summary of how far off policy a step was, and what was masked; empty without a gap metric."""
    if "gap" not in m:
        return ""
    gap = f"off policy by {m['gap']:.2g} nats a token"
    if "gap/max" in m:
        gap += f", at most {m['gap/max']:.2g}"
    parts = [gap]
    if "staleness/versions" in m:
        parts.append(
            f"{m['staleness/versions']:.1f} versions old, at most {m['staleness/versions/max']:.0f}"
        )
    parts.extend(_masked_shares(m))
    for name, what in (("dropped/stale", "too stale"), ("truncated", "cut at their limit")):
        count = m.get(name)
        if count:
            turns = "turn" if count == 1 else "turns"
            parts.append(f"{count:.0f} {turns} {what}")
    return "; ".join(parts)


def _masked_shares(m: Mapping[str, float]) -> Iterator[str]:
    """Yield a phrase for each share of the tokens that was masked, clipped or capped."""
    for name, share in m.items():
        what, _, by = name.partition("/")
        if share and by and what in ("masked", "clipped", "capped"):
            yield f"{what} ({by}) {share:.1%}"


def version_age(lineage: Collection[int], version: int) -> int:
    """Return how many versions of a lineage are newer than this one."""
    return sum(later > version for later in lineage)


def staleness_metrics(lineage: Collection[int], samples: Sequence[Sample]) -> dict[str, float]:
    """Return mean and maximum age of the versions that sampled the turns.

    Only versions of `lineage` count, so rejected and rolled back versions add nothing to an age.
    """
    ages = [version_age(lineage, s.version) for s in samples]
    if not ages:
        return {}
    return {"staleness/versions": sum(ages) / len(ages), "staleness/versions/max": float(max(ages))}


def reward_metrics(verdicts: Collection[Verdict]) -> dict[str, float]:
    """Return mean and standard deviation of the scores, also if the method uses only hints."""
    scores = [float(v.score) for v in verdicts if v.score]
    return {"reward/mean": fmean(scores), "reward/std": pstdev(scores)} if scores else {}


def drop_counts(passed: Mapping[str, int], step: Mapping[str, float]) -> dict[str, float]:
    """Return the counts of turns that were too stale or cut at their token limit since the last version.

    `passed`: counts from before the step; `step`: the step's own metrics.
    """
    stale = passed.get("dropped/stale", 0) + step.get("dropped/stale", 0.0)
    return {"dropped/stale": float(stale), "truncated": float(passed.get("truncated", 0))}


class MetricsTracker:
    """Logs each step to all sinks. A sink that fails is removed with an error in the log, and training continues."""

    def __init__(
        self, track: TrackConfig, logs: Path, *, run: str, settings: Mapping[str, Any]
    ) -> None:
        """`run`: the run's name in W&B. Raises `ConfigError` when the library of a selected sink is not installed."""
        logs.mkdir(parents=True, exist_ok=True)
        self._file = logs / METRICS_FILE
        makers = {"tensorboard": _tensorboard_sink, "wandb": _wandb_sink}
        self._sinks: dict[str, MetricsSink] = {}
        for name in track.to:
            try:
                self._sinks[name] = makers[name](track, logs, run, settings)
            except ImportError:
                raise _not_installed_error(name) from None
            except Exception as error:
                # A missing key or network must not stop training.
                log.exception(
                    "metrics are not sent to %s: %s: %s", name, type(error).__name__, error
                )

    def catch_up(self, newest: Policy, turns: Sequence[str]) -> None:
        """Log the newest version if a trainer died after it recorded the version and before it finished logging it."""
        raw = self._file.read_bytes() if self._file.exists() else b""
        if raw and not raw.endswith(b"\n"):
            with self._file.open("ab") as file:
                file.write(b"\n")
        # A resumed or root version has no step.
        if "loss/total" not in newest.metrics:
            return
        if _newest_logged_version(raw) < newest.version:
            self.log_step(newest, newest.metrics, turns)

    def log_step(self, policy: Policy, metrics: Mapping[str, float], turns: Sequence[str]) -> None:
        """Log one step: its metrics, its result and the turns that it was trained on."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        # The list of turn ids replaces the metric of the same name.
        line = finite | {
            "version": policy.version,
            "parent": policy.parent,
            "state": policy.state.value,
            "at": policy.created_at,
            "turns": list(turns),
        }
        refusal = {"reason": policy.reason, "code": policy.reason_code}
        self._append_line(line | (refusal if policy.reason else {}))
        for name, sink in list(self._sinks.items()):
            try:
                sink(policy.version, finite)
            except Exception as error:
                # An external server or disk must not stop training.
                log.exception(
                    "metrics are no longer sent to %s: %s: %s", name, type(error).__name__, error
                )
                del self._sinks[name]

    def log_skipped_batch(
        self, head: Policy, reasons: Mapping[str, Reason], metrics: Mapping[str, float], at: float
    ) -> None:
        """Log a batch that ended without a step, with a reason for each turn. Only to the file.

        The other sinks are indexed by version, and this batch has none.
        """
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        entry = {
            "parent": head.version,
            "state": NO_STEP_STATE,
            "at": at,
            "turns": list(reasons),
            "reasons": {turn: reason.detail for turn, reason in reasons.items()},
            "codes": {turn: reason.code.value for turn, reason in reasons.items()},
        }
        self._append_line(finite | entry)

    def _append_line(self, entry: Mapping[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _newest_logged_version(raw: bytes) -> int:
    """Return the version of the last line that has one; -1 if none has."""
    for line in reversed(raw.splitlines()):
        version = _logged_version(line)
        if version >= 0:
            return version
    return -1


def _logged_version(line: bytes) -> int:
    """Return the version of a line; -1 for an incomplete line or one of a batch without a step."""
    try:
        return int(json.loads(line)["version"])
    except (ValueError, KeyError, TypeError):
        return -1


def check_installed(track: TrackConfig) -> None:
    """Raise `ConfigError` when the library of a selected sink is not installed."""
    for name in track.to:
        if not is_installed(name):
            raise _not_installed_error(name)


def _tensorboard_sink(
    track: TrackConfig, logs: Path, run: str, settings: Mapping[str, Any]
) -> MetricsSink:
    from tensorboard.summary import Writer

    writer = Writer(str(logs / "tensorboard"))

    def write_scalars(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return write_scalars


def _wandb_sink(
    track: TrackConfig, logs: Path, run: str, settings: Mapping[str, Any]
) -> MetricsSink:
    import wandb

    wandb_run = wandb.init(
        project=track.project,
        name=run,
        dir=str(logs),
        config=dict(settings),
        resume="allow",
        settings={"init_timeout": _WANDB_SECONDS},
    )

    def write_run(step: int, metrics: Mapping[str, float]) -> None:
        # Without commit W&B shows a step only after the next one.
        wandb_run.log(dict(metrics), step=step, commit=True)

    return write_run


def _not_installed_error(name: str) -> ConfigError:
    return ConfigError(
        f"track.to names {name}, which is not installed here. `pip install {name}`, or remove it there."
    )


def storable_metrics(metrics: Mapping[str, float], engine: str) -> dict[str, float]:
    """Return the finite metrics, with the engine's name in those of the gap between engine and trainer."""
    named = (
        (name.replace("gap/engine", f"gap/{engine}"), value) for name, value in metrics.items()
    )
    return {name: value for name, value in named if math.isfinite(value)}


class StepReporter:
    """Reports on each step that has a result, and on each batch that has none."""

    def __init__(
        self, tracker: MetricsTracker | None, saver: CheckpointWriter | None, engine: str
    ) -> None:
        """`engine`: name of the engine that samples, see `storable_metrics`."""
        self._tracker = tracker
        self._checkpoint_writer = saver
        self._engine = engine
        self._low_rate_warning = LowRateWarning()

    def storable(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics as they are stored, see `storable_metrics`."""
        return storable_metrics(metrics, self._engine)

    def report_step(
        self, policy: Policy, metrics: Mapping[str, float], trained: Sequence[str]
    ) -> None:
        """Write the checkpoint of a published version that is due, and log the step."""
        if policy.state is PolicyState.LIVE and self._checkpoint_writer is not None:
            self._checkpoint_writer.write_if_due(policy)
        level = logging.INFO if policy.state is PolicyState.LIVE else logging.WARNING
        _step_log.log(level, summary_line(policy, metrics, len(trained)))
        if self._tracker is not None:
            self._tracker.log_step(policy, policy.metrics, trained)
        self._low_rate_warning.add_step(metrics)

    def report_skipped_batch(
        self, head: Policy, reasons: Mapping[str, Reason], metrics: Mapping[str, float], at: float
    ) -> None:
        """Track a batch without a result, with the reason of each turn."""
        if self._tracker is not None:
            self._tracker.log_skipped_batch(head, reasons, self.storable(metrics), at)

    def catch_up(self, newest: Policy, trained: Sequence[str]) -> None:
        """Report what a trainer that died right after its transaction did not."""
        if self._checkpoint_writer is not None:
            self._checkpoint_writer.catch_up()
        if self._tracker is not None and newest.state is not PolicyState.CANDIDATE:
            self._tracker.catch_up(newest, trained)
