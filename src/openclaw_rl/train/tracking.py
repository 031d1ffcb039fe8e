"""Where a step's metrics go: always a line of JSON, and by choice TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.config import TrackConfig
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Policy

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
_WANDB_SECONDS = 15.0  # that W&B may take to answer at the start
Sink = Callable[[int, Mapping[str, float]], None]
"""(step, metrics). The step is the policy version that came of it."""


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

    def tell(self, policy: Policy, metrics: Mapping[str, float], turns: Sequence[str]) -> None:
        """One step: what it measured, what became of it, and which turns it was made of."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        line = {
            "version": policy.version,
            "parent": policy.parent,
            "state": policy.state.value,
            "at": policy.created_at,
            "turns": list(turns),
            **finite,
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        for name, sink in list(self._sinks.items()):
            try:
                sink(policy.version, finite)
            except Exception as error:  # somebody else's server or disk: never a reason to stop learning
                log.exception("metrics no longer go to %s: %s: %s", name, type(error).__name__, error)
                del self._sinks[name]


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
        made.log(dict(metrics), step=step)

    return sink


def _missing(name: str) -> ConfigError:
    return ConfigError(f"track.to names {name}, which is not installed here. `pip install {name}`, or leave it out.")
