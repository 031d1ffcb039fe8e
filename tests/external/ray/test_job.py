"""A recipe as a job of a real, local Ray head: the commands of docs/guides/recipes.md as printed. `make test-ray`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.external.recipes.running import RECIPES, ROOT, environment, talks

from openclaw_rl.common.sockets import free_port

pytestmark = pytest.mark.timeout(600)
GUIDE = (ROOT / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(ray job submit .*?)```", GUIDE, re.DOTALL)
PRINTED_ADDRESS, LINK = "http://HEAD:8265", "openclaw-combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHead:
    """A running head, and a folder from which jobs are submitted."""

    address: str
    folder: Path
    variables: dict[str, str]

    def run(self, command: str, **exported: str) -> subprocess.CompletedProcess[str]:
        """Run a shell command where a person submits jobs. Errors and output are in `stdout`."""
        return subprocess.run(
            ["bash", "-c", command.replace(PRINTED_ADDRESS, self.address)],
            cwd=self.folder,
            env=self.variables | exported,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    top = tmp_path_factory.mktemp("ray")
    programs, folder = top / "programs", top / "checkout"
    programs.mkdir()
    (programs / "openclaw-rl").write_text(f'#!/bin/sh\nexec {sys.executable} -m openclaw_rl "$@"\n')
    (programs / "openclaw-rl").chmod(0o755)
    (programs / "ray").symlink_to(Path(sys.executable).with_name("ray"))
    shutil.copytree(RECIPES, folder / "recipes", symlinks=True)
    (folder / LINK).symlink_to(Path("recipes") / LINK)
    variables = environment(
        top, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", HF_HUB_OFFLINE="1"
    )
    variables |= {
        "PATH": f"{programs}{os.pathsep}{variables['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    port = free_port()
    words = [
        "--head",
        "--block",
        f"--port={free_port()}",
        "--node-ip-address=127.0.0.1",
        "--num-cpus=2",
    ]
    words += ["--dashboard-host=127.0.0.1", f"--dashboard-port={port}"]
    with (top / "head.log").open("w") as log:
        process = subprocess.Popen(["ray", "start", *words], env=variables, stdout=log, stderr=log)
    try:
        found = RayHead(address=f"http://127.0.0.1:{port}", folder=folder, variables=variables)
        wait_until_ready(found, process, top / "head.log")
        yield found
    finally:
        process.terminate()
        process.wait(60)


def wait_until_ready(head: RayHead, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{head.address}/api/version", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"no dashboard at {head.address}: {log.read_text()}")


def watch_dashboard(head: RayHead, has_ended: threading.Event) -> list[str]:
    """Look at the dashboard's pages of running jobs until the event. Return the log of each look."""
    seen = []
    while not has_ended.wait(0.2):
        for job in ask_dashboard(head, "/api/jobs/"):
            if job["status"] == "RUNNING":
                seen.append(ask_dashboard(head, f"/api/jobs/{job['submission_id']}/logs")["logs"])
    return seen


def ask_dashboard(head: RayHead, path: str) -> Any:
    with urllib.request.urlopen(head.address + path, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.parametrize("number", range(2))
def test_a_command_of_the_guide_passes_its_variables(
    head: RayHead, number: int, tmp_path: Path
) -> None:
    """The checkpoint is where CKPT_SAVE_DIR says, on the model of MODEL_PATH and the conversations of DATA_PATH."""
    (tmp_path / "data").mkdir()
    talks(tmp_path / "data" / "talks.jsonl")
    command = COMMANDS[number].replace("/models/my-model", "starter")
    command = command.replace("/data/conversations", f"{tmp_path}/data").replace(
        "/runs/", f"{tmp_path}/"
    )
    has_ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch_dashboard, head, has_ended)
        try:
            done = head.run(
                command, LORA_ARGS="--lora-rank 4", CKPT_SAVE_DIR=f"{tmp_path}/exported"
            )
        finally:
            has_ended.set()
    assert done.returncode == 0, done.stdout[-4000:]
    assert any("version 1: " in log for log in watching.result()), (
        "the dashboard shows the step while the job runs"
    )
    assert (tmp_path / "checkpoints" / "checkpoint-latest" / "model.safetensors").is_file(), (
        "whole weights"
    )
    assert (tmp_path / "home" / "store.db").is_file()
    assert not (tmp_path / "exported").exists()
    assert "note: MODEL_PATH" not in done.stdout


def test_a_job_without_variables_says_so(head: RayHead) -> None:
    """Also from a link to the folder, which Ray copies as a folder."""
    submit = f"ray job submit --address {PRINTED_ADDRESS} --working-dir ."
    done = head.run(
        f"{submit} -- bash {LINK}/run_qwen3_7b_openclaw_combine.sh", MODEL_PATH="starter"
    )
    assert done.returncode != 0
    assert (
        "note: MODEL_PATH and DATA_PATH are not set. A Ray job does not get the variables"
        in done.stdout
    )
    assert "Qwen/Qwen3-8B" in done.stdout, "the default of the script"


def test_the_guide_has_both_forms() -> None:
    assert [
        ("env MODEL_PATH=" in command, "--runtime-env-json" in command) for command in COMMANDS
    ] == [
        (True, False),
        (False, True),
    ]
