"""Ranks that a real Ray places: the steps of one process, and a rank that is killed. `make test-ray`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import ray

from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, RanksGone
from openclaw_rl.learner.forward.packing import TokenSequence
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.methods.registry import make_method
from openclaw_rl.methods.types import Sample
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.status import program_checks
from openclaw_rl.train.ranks.launcher import launch_trainer


def settings(home: Path, **further: object) -> Config:
    flat = {
        "home": str(home),
        "model.dtype": "float64",
        "train.ranks": 2,
        "train.safety.max_turn_log_ratio": 9.0,
    }
    launch = {"train.launch.by": "ray", "train.launch.ray": "local", "train.launch.timeout": 120.0}
    return from_flat(flat | launch | further)


def batch(trainer: LocalTrainer) -> list[Sample]:
    rng = np.random.default_rng(0)
    out = []
    for number in range(5):
        prompt, reply = (rng.integers(0, 64, n).astype(np.int32) for n in (6, 9))
        row = TokenSequence(prompt_ids=prompt, response_ids=reply, temperature=1.0)
        out.append(
            Sample(
                turn=f"turn-{number}",
                agent="a",
                prompt_ids=prompt,
                response_ids=reply,
                logprobs=trainer.logprobs([row])[0].numpy().astype(np.float32),
                mask=np.ones(9, bool),
                temperature=1.0,
                version=0,
                reward=1.0 if number % 2 else -1.0,
            )
        )
    return out


@pytest.mark.timeout(900)
def test_ray_places_the_ranks_and_tells_of_their_end(tmp_path: Path) -> None:
    config = settings(tmp_path / "home")
    model = config.model
    one = LocalTrainer(
        str(ModelFiles.from_config(model).folder), make_method(config.train), config.train, model
    )
    given = batch(one)
    alone = one.step(given, str(tmp_path / "one"))
    try:
        with closing(launch_trainer(config)) as two:
            placed = two.step(given, str(tmp_path / "two"))
            assert placed.metrics.keys() == alone.metrics.keys()
            for name in set(alone.metrics) - {"seconds"}:
                assert placed.metrics[name] == pytest.approx(
                    alone.metrics[name], rel=1e-6, abs=1e-6
                ), name
            os.kill(rank_pid(1), signal.SIGKILL)
            with pytest.raises(RanksGone, match="a rank is gone"):
                two.step(given, str(tmp_path / "lost"))
        assert not (tmp_path / "lost").exists()
        with pytest.raises(ConfigError, match=r"has no place for 2 times \{'CPU': 999\}"):
            launch_trainer(
                settings(tmp_path / "home", **{"train.threads": 999, "train.launch.timeout": 5.0})
            )
    finally:
        ray.shutdown()


@pytest.mark.timeout(900)
def test_what_doctor_names_for_a_head_that_is_away_cures_it(tmp_path: Path) -> None:
    """Either of the two: ranks that are started here, or a head (one that asks for no token)."""
    port = free_port()
    away = {"train.launch.ray": f"127.0.0.1:{port}"}
    config = settings(tmp_path / "home", **away)
    trouble = program_checks.check_ray_head(config)
    assert trouble is not None
    assert f"no head answers at 127.0.0.1:{port}" in trouble.evidence
    cured = settings(tmp_path / "home", **away, **trouble.settings)
    assert program_checks.check_ray_head(cured) is None
    model = config.model
    given = batch(
        LocalTrainer(
            str(ModelFiles.from_config(model).folder),
            make_method(config.train),
            config.train,
            model,
        )
    )
    with closing(launch_trainer(cured)) as two:
        here = two.step(given, str(tmp_path / "here"))
    assert "ray start --head" in trouble.advice
    head = open_head(port)
    try:
        while program_checks.check_ray_head(config) is not None:
            assert head.poll() is None
            time.sleep(0.5)
        with closing(launch_trainer(config)) as two:
            placed = two.step(given, str(tmp_path / "placed"))
    finally:
        ray.shutdown()
        head.terminate()
        head.wait(60)
    assert placed.metrics["loss/total"] == pytest.approx(here.metrics["loss/total"], rel=1e-6)


def open_head(port: int, **variables: str) -> subprocess.Popen[bytes]:
    """Start a head that asks for no token."""
    ray_command = str(Path(sys.executable).with_name("ray"))
    words = [
        "--block",
        f"--port={port}",
        "--node-ip-address=127.0.0.1",
        "--num-cpus=4",
        "--include-dashboard=false",
    ]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"} | variables
    return subprocess.Popen(
        [ray_command, "start", "--head", *words], env=environment, start_new_session=True
    )


@contextmanager
def running_head(port: int, **variables: str) -> Iterator[None]:
    head = open_head(port, **variables)
    try:
        yield
    finally:
        head.terminate()
        head.wait(60)


def rank_pid(rank: int) -> int:
    """The process whose environment says so."""
    for folder in Path("/proc").iterdir():
        try:
            command, environment = (
                (folder / name).read_bytes().split(b"\0") for name in ("cmdline", "environ")
            )
        except OSError:  # no process, or it is gone
            continue
        if b"openclaw_rl.train.ranks.main" in command and f"RANK={rank}".encode() in environment:
            return int(folder.name)
    raise AssertionError(f"no rank {rank} runs")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:8265", "nohost"], ids=["a dashboard", "no port"]
)
def test_an_address_of_no_head_is_one_line(tmp_path: Path, address: str) -> None:
    """Ray raises `ValueError` for it."""
    with pytest.raises(
        ConfigError, match="Expected auto, local, or HOST:PORT of the head"
    ) as caught:
        launch_trainer(settings(tmp_path / "home", **{"train.launch.ray": address}))
    assert str(caught.value).startswith(f"train.launch.ray {address}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(900)
def test_other_versions_than_those_of_the_head_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process says that it has another Ray than the head, which is a real one."""
    port = free_port()
    config = settings(tmp_path / "home", **{"train.launch.ray": f"127.0.0.1:{port}"})
    with running_head(port):
        while program_checks.check_ray_head(config) is not None:
            time.sleep(0.5)
        monkeypatch.setattr(ray, "__version__", "2.40.0")
        with pytest.raises(
            ConfigError, match="Expected the head's versions of Ray and Python"
        ) as caught:
            launch_trainer(config)
        ray.shutdown()
    assert "Ray: 2.40.0" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(900)
def test_a_machine_without_this_package_is_one_line(tmp_path: Path) -> None:
    """The head's Python finds a package of the same name that has nothing in it."""
    (tmp_path / "hollow" / "openclaw_rl").mkdir(parents=True)
    (tmp_path / "hollow" / "openclaw_rl" / "__init__.py").touch()
    port = free_port()
    config = settings(tmp_path / "home", **{"train.launch.ray": f"127.0.0.1:{port}"})
    with running_head(port, PYTHONPATH=str(tmp_path / "hollow")):
        while program_checks.check_ray_head(config) is not None:
            time.sleep(0.5)
        with pytest.raises(ConfigError, match="Expected this version of openclaw-rl") as caught:
            launch_trainer(config)
        ray.shutdown()
    assert "No module named 'openclaw_rl." in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_answers_but_is_no_head_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as another:
        address = f"127.0.0.1:{another.getsockname()[1]}"
        trouble = program_checks.check_ray_head(
            settings(tmp_path / "home", **{"train.launch.ray": address})
        )
    assert trouble is not None
    assert f"something answers at {address}, but it is not a Ray head" in trouble.evidence
