"""Where the metrics of a step go, and that nobody else's trouble stops the training."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import TrackConfig
from openclaw_rl.train.tracking import METRICS_FILE, MetricsTracker, summary_line
from openclaw_rl.types import Policy, PolicyState

METRICS = {
    "loss/total": 0.5,
    "reward/mean": -1.0,
    "gradient/norm": float("nan"),
    "step": 3.0,
    "turns": 2.0,
}


def policy(version: int) -> Policy:
    return Policy(
        version=version, parent=version - 1, state=PolicyState.LIVE, path=None, digest="", base="b", identity="i",
        created_at=5.0,
    )  # fmt: skip


def tracker(folder: Path, *to: str, **more: str) -> MetricsTracker:
    track = TrackConfig(to=to, **more)  # type: ignore[arg-type]
    return MetricsTracker(track, folder, run="openclaw-rl-binary", settings={"rank": 4})


def test_each_step_is_logged_as_a_line(tmp_path: Path) -> None:
    made = tracker(tmp_path)
    made.log_step(policy(1), METRICS, ["a", "b"])
    tracker(tmp_path).log_step(policy(2), METRICS, [])
    first, second = (
        json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()
    )
    assert first == {
        "version": 1, "parent": 0, "state": "live", "at": 5.0, "turns": ["a", "b"],
        "loss/total": 0.5, "reward/mean": -1.0, "step": 3.0,
    }  # fmt: skip
    assert second["version"] == 2


def test_the_log_line_has_what_was_reported() -> None:
    """Another program reports what it likes, and any number."""
    known = {
        "replays": 0.0,
        "loss/total": 0.69314,
        "reward/mean": 1.0,
        "kl": 0.01,
        "gradient/norm": 2.0,
    }
    line = summary_line(policy(1), known | {"seconds": 3.0}, 4)
    assert line == "version 1: 4 turns, loss 0.6931, reward +1.00, KL 0.0100, gradient 2, 3.00 s"
    assert summary_line(policy(1), {"replays": 1.0, "loss/total": 1e300}, 4) == (
        "version 1: 3 turns and 1 again, loss 1e+300"
    )


def test_a_version_of_a_trainer_that_died_is_logged(tmp_path: Path) -> None:
    """Killed after it published, before the line or in the middle of it; and what is there already is not repeated."""
    steps = [replace(policy(n), metrics={"loss/total": n / 2}) for n in range(1, 4)]
    tracker(tmp_path).catch_up(steps[0], ["a"])
    tracker(tmp_path).catch_up(steps[0], ["a"])
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"version": 2, "lo')
    tracker(tmp_path).catch_up(steps[1], ["b"])
    tracker(tmp_path).log_step(steps[2], steps[2].metrics, ["c"])
    tracker(tmp_path).catch_up(policy(4), [])  # no step: it began as a checkpoint
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    assert [(line["version"], line["loss/total"], line["turns"]) for line in whole] == [
        (1, 0.5, ["a"]),
        (2, 1.0, ["b"]),
        (3, 1.5, ["c"]),
    ]


SURFACE = {  # what the descriptions promise, by these very names
    "loss/total": 0.5, "loss/binary": 0.25, "loss/opd": 0.125, "reward/mean": -1.0, "reward/std": 0.75,
    "gradient/norm": 2.0, "learning_rate": 0.0625, "step": 3.0,
}  # fmt: skip


def test_tensorboard_shows_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", exc_type=ImportError
    )
    # `tensorboard.summary` itself is a stand-in for a module that is loaded later.
    summary = importlib.import_module("tensorboard.summary")
    writers = []

    def make_writer(folder: str) -> object:
        writers.append(open_writer(folder))
        return writers[-1]

    open_writer = summary.Writer
    monkeypatch.setattr(summary, "Writer", make_writer)
    made = tracker(tmp_path, "tensorboard")
    made.log_step(policy(4), SURFACE, [])
    made.log_step(policy(5), {"loss/total": 0.25}, [])
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for writer in writers:
        writer.close()
    written = {
        name: [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors(name)]
        for name in SURFACE
    }
    assert written == {name: [(4, value)] for name, value in SURFACE.items()} | {
        "loss/total": [(4, 0.5), (5, 0.25)]
    }


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed: pip install wandb"
)
@pytest.mark.filterwarnings("default")  # its own, and those of what it brings
def test_wandb_stores_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: a run of the promised name, in whose file each name and value stands."""
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker(tmp_path, "wandb").log_step(policy(4), SURFACE, [])
    run = wandb.run
    assert run is not None
    assert (run.name, run.project, run.config["rank"]) == ("openclaw-rl-binary", "openclaw-rl", 4)
    assert run.step == 5, "the step is not held back until the next one is there"
    wandb.finish()
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert all(name.encode() in kept.read_bytes() for name in SURFACE)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("wandb", "wandb"), ("tensorboard", "tensorboard.summary")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=f"pip install {name}"):
            tracker(tmp_path, name)


def test_a_failing_sink_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stand-in for the library, as far as it is used: its server goes away after the first step."""
    got: list[tuple[int | None, dict[str, float]]] = []

    def log(metrics: dict[str, float], step: int, commit: bool) -> None:
        assert commit
        if got:
            raise ConnectionError("no route")
        got.append((step, metrics))

    asked: dict[str, object] = {}
    monkeypatch.setitem(
        sys.modules,
        "wandb",
        SimpleNamespace(init=lambda **given: asked.update(given) or SimpleNamespace(log=log)),
    )
    made = tracker(tmp_path, "wandb", project="mine")
    for version in (1, 2, 3):
        made.log_step(policy(version), METRICS, [])
    assert (asked["project"], asked["name"]) == ("mine", "openclaw-rl-binary")
    assert got == [(1, {"loss/total": 0.5, "reward/mean": -1.0, "step": 3.0, "turns": 2.0})]
    assert caplog.text.count("no longer sent to wandb: ConnectionError: no route") == 1
    assert len((tmp_path / METRICS_FILE).read_text().splitlines()) == 3


def test_a_sink_that_cannot_start_is_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("api_key not configured")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    tracker(tmp_path, "wandb").log_step(policy(1), METRICS, [])
    assert "metrics are not sent to wandb: RuntimeError: api_key not configured" in caplog.text
    assert len((tmp_path / METRICS_FILE).read_text().splitlines()) == 1
