"""Has anything become a quarter slower? The processor time of five things, each against a yardstick of the same run.

    python -m benchmarks.quick [--record] [--only NAME ...] [--plant NAME --loss 0.3]

| measured | yardstick |
|---|---|
| gateway: short prompts, agent requests | a bare pass-through server under the same load |
| step of the trainer, decoding | a matrix product |
| `openclaw-rl --help` | a Python process that imports some of its own modules |
| `openclaw-rl up` until it is ready | a Python process that syncs a file to disk |

Processor time (user and system) depends little on what else the machine does, and its ratio to the yardstick less. Each
figure is the least of several rounds, in which both take turns; what comes near the bound gets more rounds. `--record`
writes `quick_base.json`, with which later runs are compared. `--plant` slows one thing down, to show that it is found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
# The other benchmarks are scripts, which import one another by plain names.
sys.path.insert(0, str(HERE))

import load  # noqa: E402
import servers  # noqa: E402
from gateway import GATEWAY, PLAIN, start_servers  # noqa: E402
from model_folder import make  # noqa: E402
from provenance import commit  # noqa: E402
from trainer import make_model  # noqa: E402

BASE = HERE / "quick_base.json"
MAX_LOSS = 0.25
# A loss from here on is measured again before it counts.
DOUBTFUL_LOSS = 0.10
MORE_ROUNDS = 2
START_WITHIN = 300.0  # seconds
CLIENTS = 4
# Modules of Python's own. A process that imports nothing uses less memory, and so suffers less from other work.
IMPORT_SCRIPT = "import asyncio, decimal, doctest, http.client, logging.config, sqlite3, unittest.mock, xml.dom.minidom"
SYNCS = 16
SYNC_SCRIPT = f"""
import os, tempfile
with tempfile.TemporaryFile(dir=".") as file:
    for _ in range({SYNCS}):
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
"""


@dataclass(frozen=True, slots=True)
class Plant:
    """A loss that is planted in one of the measured things: `loss` 0.3 makes it 30% slower."""

    name: str = ""
    loss: float = 0.0

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of the processes of a measured thing."""
        if name != self.name:
            return {}
        paths = [str(HERE / "planted_loss"), os.environ.get("PYTHONPATH", "")]
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "BENCH_PLANTED_LOSS": str(self.loss),
        }


@dataclass(slots=True)
class Samples:
    """Processor seconds of the rounds so far."""

    measured: list[float] = field(default_factory=list)
    yardstick: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return min(self.measured) / min(self.yardstick)


@dataclass(frozen=True, slots=True)
class Measure:
    """One measured thing. `run(rounds, plant)` returns the samples of so many rounds."""

    name: str
    yardstick: str
    rounds: int
    run: Callable[[int, Plant], Samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--record", action="store_true", help="write the base, instead of comparing"
    )
    parser.add_argument("--only", nargs="+", choices=[measure.name for measure in MEASURES])
    parser.add_argument("--plant", default="", choices=["", *(m.name for m in MEASURES)])
    parser.add_argument("--loss", type=float, default=0.3, help="of what is planted [0.3]")
    options = parser.parse_args()
    plant = Plant(options.plant, options.loss if options.plant else 0.0)
    chosen = [m for m in MEASURES if options.only is None or m.name in options.only]
    base = {} if options.record else json.loads(BASE.read_text())["ratios"]
    ratios = {measure.name: _measure(measure, base.get(measure.name), plant) for measure in chosen}
    if options.record:
        _record(ratios)
        return
    print(_table(chosen, ratios, base))
    lost = [name for name, ratio in ratios.items() if _loss(ratio, base.get(name)) >= MAX_LOSS]
    if lost:
        sys.exit(
            f"Slower by a quarter or more than at commit {json.loads(BASE.read_text())['commit']}: {', '.join(lost)}. "
            "Find what costs the time, or record a new base with a reason: make bench-quick-record."
        )


def _measure(measure: Measure, base: float | None, plant: Plant) -> float:
    began = time.monotonic()
    samples = measure.run(measure.rounds, plant)
    for _ in range(MORE_ROUNDS):
        if _loss(samples.ratio, base) < DOUBTFUL_LOSS:
            break
        more = measure.run(measure.rounds, plant)
        samples.measured += more.measured
        samples.yardstick += more.yardstick
    spread = max(samples.measured) / min(samples.measured) - 1
    print(
        f"{measure.name:16} {min(samples.measured) * 1e3:9.2f} ms, {measure.yardstick} "
        f"{min(samples.yardstick) * 1e3:9.2f} ms: ratio {samples.ratio:8.3f} "
        f"({len(samples.measured)} rounds, spread {spread:.0%}, {time.monotonic() - began:.0f} s)",
        file=sys.stderr,
        flush=True,
    )
    return samples.ratio


def _loss(ratio: float, base: float | None) -> float:
    return 0.0 if base is None else ratio / base - 1


def _table(
    measures: Sequence[Measure], ratios: Mapping[str, float], base: Mapping[str, float]
) -> str:
    lines = ["| measured | yardstick | ratio | base | loss |", "|---|---|---|---|---|"]
    for measure in measures:
        ratio = ratios[measure.name]
        known = base.get(measure.name)
        compared = "no base | " if known is None else f"{known:.3f} | {_loss(ratio, known):+.0%}"
        lines.append(f"| {measure.name} | {measure.yardstick} | {ratio:.3f} | {compared} |")
    return "\n".join(lines)


def _record(ratios: Mapping[str, float]) -> None:
    known = json.loads(BASE.read_text())["ratios"] if BASE.exists() else {}
    record = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "ratios": known | {name: round(ratio, 4) for name, ratio in ratios.items()},
    }
    BASE.write_text(json.dumps(record, indent=2) + "\n")
    print(f"recorded {', '.join(ratios)} in {BASE.name}")


# ----------------------------------------------------------------------------------- the gateway


def _gateway(name: str, *, agent: bool, requests: int) -> Callable[[int, Plant], Samples]:
    def run(rounds: int, plant: Plant) -> Samples:
        servers.RUNS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="q-", dir=servers.RUNS) as place:
            folder = Path(place)
            pieces, token_ids, stop = make(folder / "model")
            up = start_servers(
                folder,
                pieces,
                token_ids,
                stop,
                skip_litellm=True,
                gateway_env=plant.environment(name),
            )
            with servers.running(up):
                return asyncio.run(_drive(up, "".join(pieces), rounds, requests, agent=agent))

    return run


async def _drive(
    up: Mapping[str, servers.Server], text: str, rounds: int, requests: int, *, agent: bool
) -> Samples:
    samples = Samples()
    for number in range(rounds):
        for row, seconds in ((PLAIN, samples.yardstick), (GATEWAY, samples.measured)):
            server = up[row]
            target = load.Target(
                port=server.port, key=server.key, text=text, pid=server.process.pid
            )
            result = await load.measure(
                target,
                agent=agent,
                stream=agent,
                clients=CLIENTS,
                seconds=START_WITHIN,
                warm_up=0.1,
                name=f"quick-{number}",
                requests=requests,
            )
            if result.wrong:
                sys.exit(f"wrong answers of the {row}: {result.wrong}")
            seconds.append(result.processor_seconds / len(result.latencies))
    return samples


# ------------------------------------------------------------------------------ step and decoding


def _in_child(name: str) -> Callable[[int, Plant], Samples]:
    def run(rounds: int, plant: Plant) -> Samples:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            make_model(folder)
            command = [sys.executable, "-m", "benchmarks.quick_child", "--folder", str(folder)]
            command += ["--rounds", str(rounds), "--only", name]
            command += ["--plant", plant.name, "--loss", str(plant.loss)]
            fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
            fixed["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            done = subprocess.run(
                command, env=os.environ | fixed, capture_output=True, text=True, check=False
            )
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
        seconds = json.loads(done.stdout.strip().splitlines()[-1])
        return Samples(seconds[name], seconds["product"])

    return run


# ------------------------------------------------------------------------------ start of commands


def _process_seconds(arguments: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the processor time of a Python process from its start to its end."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | dict(env),
        stdout=subprocess.DEVNULL,
        cwd=tempfile.gettempdir(),
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(arguments)[:80]} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def _help(rounds: int, plant: Plant) -> Samples:
    samples = Samples()
    for _ in range(rounds):
        samples.yardstick.append(_process_seconds(["-c", IMPORT_SCRIPT], {}))
        env = plant.environment("help")
        samples.measured.append(_process_seconds(["-m", "openclaw_rl", "--help"], env))
    return samples


def _up(rounds: int, plant: Plant) -> Samples:
    samples = Samples()
    for _ in range(rounds):
        synced = [_process_seconds(["-c", SYNC_SCRIPT], {}) for _ in range(5)]
        samples.yardstick.append(min(synced))
        with tempfile.TemporaryDirectory(prefix="quick-") as place:
            samples.measured.append(_start_seconds(Path(place), plant.environment("up")))
    return samples


def _start_seconds(folder: Path, env: Mapping[str, str]) -> float:
    """Return the processor time of `openclaw-rl up` and all its processes until it is ready."""
    port = servers.free_port()
    arguments = ["-m", "openclaw_rl", "up", "--home", str(folder / "home"), "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | dict(env),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_ready(process, port, folder / "log")
        return _tree_seconds(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + START_WITHIN
    while time.monotonic() < give_up and process.poll() is None:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10),
        ):
            return
        time.sleep(0.1)
    sys.exit(f"`openclaw-rl up` was not ready; the end of its log:\n{log.read_text()[-2000:]}")


def _tree_seconds(pid: int) -> float:
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times: Any = process.cpu_times()
            # Those of children that have ended are counted with their parent.
            total += times.user + times.system + times.children_user + times.children_system
    return total


MEASURES = (
    Measure(
        "gateway-short", "pass-through", 7, _gateway("gateway-short", agent=False, requests=240)
    ),
    Measure("gateway-agent", "pass-through", 5, _gateway("gateway-agent", agent=True, requests=80)),
    Measure("step", "matrix product", 4, _in_child("step")),
    Measure("decode", "matrix product", 4, _in_child("decode")),
    Measure("help", "Python imports", 12, _help),
    Measure("up", "Python and fsync", 2, _up),
)


if __name__ == "__main__":
    main()
