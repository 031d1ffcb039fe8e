"""The example cluster file and its jobs, on a local cluster with the resources of the file. `make test-ray`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.external.recipes.running import ROOT, environment, talks

from openclaw_rl.common.sockets import free_port

pytestmark = pytest.mark.timeout(1200)
FILE = ROOT / "examples" / "ray" / "cluster.yaml"
CLUSTER: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
TYPES: dict[str, Any] = CLUSTER["available_node_types"]
GUIDE = (ROOT / "docs" / "guides" / "many_gpus.md").read_text(encoding="utf-8")
JUDGE, RECIPE, ROLLOUTS = re.findall(r"```bash\n(ray job submit .*?)```", GUIDE, re.DOTALL)
KEY = "a-key-that-only-this-test-uses"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A head and the workers of the file as Ray nodes of this machine. `type_of`: node id -> node type of the file."""

    folder: Path
    variables: dict[str, str]
    type_of: dict[str, str]

    def run(self, command: str) -> str:
        """Run a shell command in the folder, with the variables of the guide. Fails with its output."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def state(self, what: str) -> list[dict[str, Any]]:
        """Return what `ray list` says of jobs or actors, ended ones included."""
        address = self.variables["RAY_API_SERVER_ADDRESS"]
        found: list[dict[str, Any]] = json.loads(
            self.run(f"ray list {what} --format json --detail --address {address}")
        )
        return found

    def place_of_job(self, words: str) -> str:
        """Return the node type on which the job with these words in its command ran."""
        jobs = [job for job in self.state("jobs") if words in (job.get("entrypoint") or "")]
        return self.type_of[jobs[-1]["driver_node_id"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    top = tmp_path_factory.mktemp("cluster")
    programs, folder = top / "programs", top / "checkout"
    programs.mkdir()
    for name, words in (("openclaw-rl", "-m openclaw_rl"), ("vllm", f"{top}/vllm.py")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)
    (top / "vllm.py").write_text("import sys\nprint('served', *sys.argv[1:])\n")
    (programs / "ray").symlink_to(Path(sys.executable).with_name("ray"))
    for name in ("recipes", "examples"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    port, dashboard = free_port(), free_port()
    variables = environment(top, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", HF_HUB_OFFLINE="1")
    variables |= {"PATH": f"{programs}{os.pathsep}{variables['PATH']}", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    variables |= {"OPENCLAW_API_KEY": KEY, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}"}
    head = ["--head", f"--port={port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    type_of: dict[str, str] = {}
    with contextlib.ExitStack() as running:
        for number, kind in enumerate([CLUSTER["head_node_type"], "ranks", "ranks", "judge", "rollouts"]):
            words = [f"--address=127.0.0.1:{port}"] if number else head
            running.enter_context(node_of(kind, words, top / f"node-{number}.log", variables))
            type_of |= dict.fromkeys(living_nodes(variables, number + 1) - set(type_of), kind)
        yield LocalCluster(folder=folder, variables=variables, type_of=type_of)


@contextlib.contextmanager
def node_of(kind: str, words: list[str], log: Path, variables: dict[str, str]) -> Iterator[None]:
    """Start a node with the resources that `ray up` gives to this node type, in the same way."""
    resources = json.dumps(TYPES[kind]["resources"])
    command = ["ray", "start", "--block", *words, "--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
    for _ in range(10):  # Ray gives up after 30 s, which a busy machine needs
        with log.open("a") as file:
            process = subprocess.Popen(
                command, env=variables | {"RAY_OVERRIDE_RESOURCES": resources}, stdout=file, stderr=file
            )
        while process.poll() is None and "Ray runtime started" not in log.read_text():
            time.sleep(0.5)
        if process.poll() is None:
            break
    else:
        raise AssertionError(log.read_text()[-3000:])
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def living_nodes(variables: dict[str, str], count: int) -> set[str]:
    """Return the ids of the living nodes, once there are `count`."""
    address = f"{variables['RAY_API_SERVER_ADDRESS']}/api/v0/nodes"
    end, found = time.monotonic() + 240, set[str]()
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                rows = json.load(answer)["data"]["result"]["result"]
        except OSError:
            rows = []
        found = {row["node_id"] for row in rows if row["state"] == "ALIVE"}
        if len(found) == count:
            return found
        time.sleep(1)
    raise AssertionError(f"{len(found)} nodes live, expected {count}")


def local(command: str, home: Path) -> str:
    """The guide's command with the model, the programs and the folders of this machine."""
    for printed, here in (
        ("/home/ubuntu/vllm/bin/vllm", "vllm"),
        ("Qwen/Qwen3-8B", "starter"),
        ("/openclaw", str(home)),
        ("/tmp/rollouts", f"{home}-client"),
        ("OPENCLAW_HOST=HEAD", f"OPENCLAW_HOST=127.0.0.1 OPENCLAW_PORT={free_port()}"),
        ("--no-wait ", ""),
    ):
        command = command.replace(printed, here)
    return command


def test_ray_accepts_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    whole = prepare_config(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    validate_config(whole)
    most = sum(kind.get("max_workers", 0) for name, kind in TYPES.items() if name != CLUSTER["head_node_type"])
    assert whole["max_workers"] == most
    assert TYPES[CLUSTER["head_node_type"]]["resources"]["GPU"] == 0, "the engine's GPU is not for ranks"
    for source in CLUSTER["file_mounts"].values():
        assert source.startswith("~") or (ROOT / source / "pyproject.toml").is_file()
    assert all(word in " ".join(CLUSTER["setup_commands"]) for word in CLUSTER["file_mounts"] if "openclaw-rl" in word)


def test_the_judge_runs_where_its_resource_is(cluster: LocalCluster, tmp_path: Path) -> None:
    said = cluster.run(local(JUDGE, tmp_path / "home"))
    assert "served serve starter --host 0.0.0.0 --port 8001" in said
    assert cluster.place_of_job("vllm serve") == "judge"


def test_the_recipe_runs_on_the_head_and_its_ranks_beside_it(cluster: LocalCluster, tmp_path: Path) -> None:
    """The guide's command on files, so that it ends, with the judge and the engine of this machine."""
    talks(tmp_path / "talks.jsonl")
    command = local(RECIPE, tmp_path / "home")
    command = command.replace(" --backend vllm --set engine.python=/home/ubuntu/vllm/bin/python", "")
    command = re.sub(r"--backend vllm .*?\n|--set judge.base_url.*?\n", "\\\\\n", command)
    command = command.rstrip() + f" --data-path {tmp_path}/talks.jsonl --set train.max_steps=1"
    cluster.run(command)
    assert cluster.place_of_job("run_combine_training.sh") == "gateway"
    places = [cluster.type_of[actor["node_id"]] for actor in cluster.state("actors") if "Rank" in actor["class_name"]]
    assert places == ["ranks", "ranks"]
    assert (tmp_path / "home" / "policies").is_dir()


def test_rollouts_run_where_their_resource_is(cluster: LocalCluster, tmp_path: Path) -> None:
    """No gateway is at the address: the client says so, from the right machine and without a home of its own."""
    with pytest.raises(AssertionError, match=r"127\.0\.0\.1:\d+: no gateway is ready there"):
        cluster.run(local(ROLLOUTS, tmp_path / "home"))
    assert cluster.place_of_job("openclaw-rl rollout") == "rollouts"
