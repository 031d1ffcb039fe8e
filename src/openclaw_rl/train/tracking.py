"""Where a step's metrics go: one line for a person, one of JSON, and by choice TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from openclaw_rl.errors import ConfigError
from openclaw_rl.methods.types import Sample
from openclaw_rl.settings.load import TrackConfig
from openclaw_rl.types import Policy, Verdict

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
NO_STEP = "no step"
_WANDB_SECONDS = 15.0  # that W&B may take to answer at the start
Sink = Callable[[int, Mapping[str, float]], None]
"""(step, metrics). The step is the policy version that came of it."""


def in_words(policy: Policy, m: Mapping[str, float], used: int) -> str:
    """One line for a person about a step on `used` turns."""
    reward = f", reward {m['reward/mean']:+.2f}" if "reward/mean" in m else ""
    replays = int(m["replays"])
    line = (
        f"version {policy.version}: {number_of_turns(used - replays, replays)}, loss {m['loss/total']:.4f}{reward}, "
        f"KL {m['kl']:.4f}, gradient {m['gradient/norm']:.3g}, {m.get('seconds', math.nan):.2f} s"
    )
    return f"{line}: rejected: {policy.reason}" if policy.reason else line


def number_of_turns(fresh: int, replays: int) -> str:
    """E.g. "4 turns and 4 again"."""
    return f"{fresh} turn{'s' * (fresh != 1)}" + (f" and {replays} again" if replays else "")


def off_policy(m: Mapping[str, float]) -> str:
    """For a person: how far off policy a step's turns were, and what was held back of them; empty for a root."""
    if "gap" not in m:
        return ""
    words = [f"off policy by {m['gap']:.2g} nats a token" + (f", at most {m['gap/max']:.2g}" if "gap/max" in m else "")]
    if "staleness/versions" in m:
        words.append(f"{m['staleness/versions']:.1f} versions old, at most {m['staleness/versions/max']:.0f}")
    shares = [
        (*name.split("/", 1), value) for name, value in m.items() if name.startswith(("masked/", "clipped/", "capped/"))
    ]
    words += [f"{what} ({by}) {share:.1%}" for what, by, share in shares if share]
    left = {"dropped/stale": "too stale", "truncated": "cut at their limit"}
    words += [f"{m[name]:.0f} turn{'s' * (m[name] != 1)} {what}" for name, what in left.items() if m.get(name)]
    return "; ".join(words)


def age(line: Collection[int], version: int) -> int:
    """How many versions of a head's `line` came after this one."""
    return sum(later > version for later in line)


def staleness(line: Collection[int], samples: Sequence[Sample]) -> dict[str, float]:
    """The age of the versions that wrote the samples: mean and most.

    What was rejected or rolled back is no step away from anybody.
    """
    ages = [age(line, s.version) for s in samples]
    if not ages:
        return {}
    return {"staleness/versions": sum(ages) / len(ages), "staleness/versions/max": float(max(ages))}


def rewards(verdicts: Collection[Verdict]) -> dict[str, float]:
    """Mean and standard deviation of the scores, also where the method learns from hints alone."""
    found = [float(v.score) for v in verdicts if v.score]
    return {"reward/mean": fmean(found), "reward/std": pstdev(found)} if found else {}


def left_out(passed: Mapping[str, int], step: Mapping[str, float]) -> dict[str, float]:
    """Turns that were too stale, and turns cut at their token limit, since the last version.

    `passed`: what was counted before the step; `step`: what the step itself found too stale.
    """
    stale = passed.get("dropped/stale", 0) + step.get("dropped/stale", 0.0)
    return {"dropped/stale": float(stale), "truncated": float(passed.get("truncated", 0))}


class Tracker:
    """Tells each step to all sinks. One that fails is left out from then on, and the log says so: training goes on."""

    def __init__(self, track: TrackConfig, logs: Path, *, run: str, settings: Mapping[str, Any]) -> None:
        """`run`: the name that W&B shows. Raises `ConfigError` when a library that was chosen is not installed."""
        logs.mkdir(parents=True, exist_ok=True)
        self._file = logs / FILE
        makers = {"tensorboard": _tensorboard, "wandb": _wandb}
        self._sinks: dict[str, Sink] = {}
        for name in track.to:
            try:
                self._sinks[name] = makers[name](track, logs, run, settings)
            except ConfigError:
                raise
            except Exception as error:  # no key, no network: never a reason not to learn
                log.exception("metrics do not go to %s: %s: %s", name, type(error).__name__, error)

    def catch_up(self, newest: Policy, turns: Sequence[str]) -> None:
        """Tell of the newest version, where a trainer died after it was made and before it was told whole."""
        raw = self._file.read_bytes() if self._file.exists() else b""
        if raw and not raw.endswith(b"\n"):
            with self._file.open("ab") as file:
                file.write(b"\n")
        told = next((found for line in reversed(raw.splitlines()) if (found := _version(line)) >= 0), -1)
        if told < newest.version and "loss/total" in newest.metrics:  # others are no steps
            self.tell(newest, newest.metrics, turns)

    def tell(self, policy: Policy, metrics: Mapping[str, float], turns: Sequence[str]) -> None:
        """One step: what it measured, what became of it, and which turns it was made of."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        line = finite | {  # its turns by name, in place of the metric that counts them
            "version": policy.version,
            "parent": policy.parent,
            "state": policy.state.value,
            "at": policy.created_at,
            "turns": list(turns),
        }
        self._write(line | ({"reason": policy.reason} if policy.reason else {}))
        for name, sink in list(self._sinks.items()):
            try:
                sink(policy.version, finite)
            except Exception as error:  # somebody else's server or disk: never a reason to stop learning
                log.exception("metrics no longer go to %s: %s: %s", name, type(error).__name__, error)
                del self._sinks[name]

    def pass_over(self, head: Policy, reasons: Mapping[str, str], metrics: Mapping[str, float], at: float) -> None:
        """A batch on top of `head` that ended without a step: of each of its turns why. In the file alone.

        Another sink counts in versions, and there is none.
        """
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        line = {"parent": head.version, "state": NO_STEP, "at": at, "turns": list(reasons), "reasons": dict(reasons)}
        self._write(finite | line)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _version(line: bytes) -> int:
    """That a line tells of; -1 when it was not written to its end, or tells of a batch without a step."""
    try:
        return int(json.loads(line)["version"])
    except (ValueError, KeyError, TypeError):
        return -1


def check(track: TrackConfig) -> None:
    """Raises `ConfigError` when a library that was chosen is not installed."""
    for name in track.to:
        if importlib.util.find_spec(name) is None:
            raise _missing(name)


def _tensorboard(track: TrackConfig, logs: Path, run: str, settings: Mapping[str, Any]) -> Sink:
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise _missing("tensorboard") from None
    writer = Writer(str(logs / "tensorboard"))

    def sink(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return sink


def _wandb(track: TrackConfig, logs: Path, run: str, settings: Mapping[str, Any]) -> Sink:
    try:
        import wandb
    except ImportError:
        raise _missing("wandb") from None
    made = wandb.init(
        project=track.project,
        name=run,
        dir=str(logs),
        config=dict(settings),
        resume="allow",
        settings={"init_timeout": _WANDB_SECONDS},
    )

    def sink(step: int, metrics: Mapping[str, float]) -> None:
        made.log(dict(metrics), step=step, commit=True)  # else W&B shows a step when the next one is there

    return sink


def _missing(name: str) -> ConfigError:
    return ConfigError(f"track.to names {name}, which is not installed here. `pip install {name}`, or leave it out.")
