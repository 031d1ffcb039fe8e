"""`openclaw-rl doctor --trainer slime`: on sound parts every check holds; a missing one is a line with the cure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.engines.sglang_server import SglangWire
from tests.process_ends import find_running

from openclaw_rl.cli.main import cli
from openclaw_rl.engines.remote import server_process
from openclaw_rl.other_trainers.batch_stream import BatchStream
from openclaw_rl.other_trainers.external_trainer import ExternalTrainer
from openclaw_rl.settings.load import from_flat

ROOT = Path(__file__).parent.parent.parent
CHECKS = ("slime", "version", "Sample", "rollout function", "weight hook", "train worker", "router")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for slime's environment: its modules by their published names, and its version."""
    folder = tmp_path / "environment"
    modules = {
        "slime/__init__.py": "",
        "slime/utils/__init__.py": "",
        "slime/utils/types.py": "from tests.train.slime_double import PublishedSample as Sample\n",
        "slime/utils/misc.py": "from tests.train.slime_double import load_function as load_function\n",
        "slime-0.3.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: slime\nVersion: 0.3.1\n",
    }
    for name, text in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}:{ROOT / 'src'}")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose train worker listens for a trainer."""
    config = from_flat(
        {
            "train.trainer": "external",
            "train.finetune": "full",
            "gate.kind": "numbers",
            "home": str(tmp_path / "home"),
        }
    )
    config.home_dir.mkdir()
    trainer = ExternalTrainer(config, "base")
    yield config.home_dir
    trainer.close()


def examine(*words: str) -> tuple[int, dict[str, str], str]:
    """Return the exit status, the mark of each check, and the output."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(cli, ["doctor", "--trainer", "slime", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    rows = [line.split(maxsplit=1) for line in result.output.splitlines()]
    marks = {
        c: row[0] for c in CHECKS for row in rows if len(row) == 2 and row[1].startswith(f"{c}  ")
    }
    return result.exit_code, marks, result.output


def test_every_check_holds_where_the_parts_fit(environment: Path, home: Path) -> None:
    with SglangWire(Path(server_process.model_location("starter")), mode="incremental") as wire:
        wire.weight_version = "3"
        code, marks, output = examine("--home", str(home), "--engine-url", wire.url)
    assert marks == dict.fromkeys(CHECKS, "passed"), output
    assert code == 0
    assert "4 tokens, weight_version 3" in output


def test_the_doctor_takes_the_place_of_no_trainer(
    environment: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "openclaw_rl.other_trainers")
    _, marks, output = examine("--home", str(home))
    assert (marks["train worker"], "waits for slime" in output) == ("passed", True), output
    assert "is connected" not in caplog.text, "slime could not have connected meanwhile"
    with BatchStream.connect(home, name="slime") as stream:
        _, marks, output = examine("--home", str(home))
        assert (marks["train worker"], "the trainer 'slime' is connected" in output) == (
            "passed",
            True,
        ), output
        assert not stream.has_message(), "slime is still connected"


def test_each_missing_part_of_slime_is_one_line_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    code, marks, output = examine("--home", str(tmp_path))
    assert code == 1
    assert marks == dict.fromkeys(CHECKS, "FAILED"), output
    for cure in (
        "--trainer-python PATH", "Install the tag v0.3.1", "train.trainer: external", "Add --engine-url"
    ):  # fmt: skip
        assert cure in output
    code, _, output = examine("--home", str(tmp_path), "--trainer-python", str(tmp_path / "none"))
    assert "cannot be run. Give the Python of slime's environment" in output
    code, _, output = examine(
        "--home", str(tmp_path), "--engine-url", "http://127.0.0.1:9", "--wait", "5"
    )
    assert "Start slime, and give the address that it prints" in output


@pytest.mark.parametrize("words", ["", "hello", "[]"])
def test_a_program_other_than_python_is_named_in_the_error(tmp_path: Path, words: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho '{words}'\n")
    program.chmod(0o755)
    code, _, output = examine("--home", str(tmp_path), "--trainer-python", str(program))
    assert code == 1
    assert f"{program} is no Python. Give that of slime's environment" in output


def test_output_of_slimes_modules_hides_no_check(environment: Path, home: Path) -> None:
    module = environment / "slime/utils/types.py"
    module.write_text(f"import atexit\natexit.register(print, 'the end')\n{module.read_text()}")
    _, marks, output = examine("--home", str(home))
    assert {name for name, mark in marks.items() if mark == "FAILED"} == {"router"}, output


HANGS = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(40)"])
Path(__file__).with_name("fresh").write_text(f"{os.getpid()} {child.pid}")
Path(__file__).with_name("fresh").rename(Path(__file__).with_name("processes"))
time.sleep(40)
"""


def test_a_slime_that_hangs_is_ended_at_the_limit_with_its_children(
    environment: Path, home: Path
) -> None:
    (environment / "slime/utils/types.py").write_text(HANGS)
    code, _, output = examine(
        "--home", str(home), "--wait", "5", "--trainer-python", sys.executable
    )
    assert code == 1
    (line,) = [line for line in output.splitlines() if "environment" in line]
    assert (
        f"{sys.executable} did not end within 5 s (--wait) and was killed. Find where it hangs: "
        in line
    )
    assert "waits for slime" in output, "the other checks are made"
    assert find_running(map(int, (environment / "slime/utils/processes").read_text().split())) == []


@pytest.mark.parametrize(("number", "ended"), [(signal.SIGINT, 2), (signal.SIGKILL, 1)])
def test_a_slime_that_hangs_ends_with_the_doctor(
    environment: Path, home: Path, number: signal.Signals, ended: int
) -> None:
    (environment / "slime/utils/types.py").write_text(HANGS)
    processes = environment / "slime/utils/processes"
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "doctor",
        "--trainer",
        "slime",
        "--home",
        str(home),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as doctor:
        while not processes.exists() and doctor.poll() is None:
            time.sleep(0.05)
        doctor.send_signal(number)
    pids = [int(pid) for pid in processes.read_text().split()]
    assert find_running(pids[:ended]) == []
    if ended == 1:
        os.kill(pids[1], signal.SIGKILL)


def test_a_local_folder_named_slime_does_not_hide_the_installed_package(
    environment: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that `pip install -e` installed are found last, after folders without `__init__.py`."""
    (environment / "slime").rename(environment / "source")
    (environment / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.util import spec_from_file_location\n\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        folder = {str(environment / 'source')!r}\n"
        "        if name == 'slime':\n"
        "            return spec_from_file_location(\n"
        "                name, folder + '/__init__.py', submodule_search_locations=[folder])\n\n"
        "sys.meta_path.append(Finder)\n"
    )
    (environment / "tests").symlink_to(ROOT / "tests")
    monkeypatch.setenv("PYTHONPATH", f"{environment}:{ROOT / 'src'}")  # without this checkout
    (tmp_path / "checkout" / "slime").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "checkout")
    _, marks, output = examine("--home", str(home))
    assert {name for name, mark in marks.items() if mark == "FAILED"} == {"router"}, output


def test_another_version_and_other_fields_are_named(environment: Path, home: Path) -> None:
    metadata = environment / "slime-0.3.1.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.3.1", "0.2.4"))
    (environment / "slime/utils/types.py").write_text(
        "import dataclasses\nSample = dataclasses.make_dataclass('Sample', ['tokens', 'reward'])\n"
    )
    _, marks, output = examine("--home", str(home))
    assert {name for name, mark in marks.items() if mark == "FAILED"} == {
        "version",
        "Sample",
        "router",
    }
    assert "slime 0.2.4; expected 0.3.1 up to 0.4" in output
    assert "teacher_log_probs" in output
