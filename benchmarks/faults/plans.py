"""The plans: which faults each system gets, and how often."""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults import causes, environment_causes, practice_causes, tinker_causes
from benchmarks.faults.causes import Fault, allowed_answers
from benchmarks.faults.environment_load import EnvironmentLoad, write_tracks
from benchmarks.faults.live_system import PROCESSES, WORKERS
from benchmarks.faults.runner import FaultPlan
from benchmarks.faults.small_disk import SmallDisk
from benchmarks.flaky_proxy import FlakyProxy
from benchmarks.skyrl_server import SkyrlServer

from openclaw_rl.errors import SandboxError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.sandbox.bubblewrap_args import find_bubblewrap
from openclaw_rl.settings.load import STARTER
from openclaw_rl.supervisor.subprocess_system import scratch_config

HEARTBEAT_TIMEOUT = 15.0  # seconds; `run.heartbeat_timeout` of the plan in which workers hang
# A short training cycle, so that versions are published all the time.
SETTINGS: dict[str, Any] = {
    "run.log_level": "warning",
    "train.batch.max_turns": 8,
    "train.safety.lease_ttl": 10.0,
}

GOOD_REWARD = """
class PraiseReward:
    def score(self, prompt, response, next_state):
        return 1.0 if "!" in str(next_state) else 0.0

def get_reward_model(config):
    return PraiseReward()
"""
GOOD_LOSS = """
def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    return -(policy_logits * advantages).mean()
"""
# Faults that restart a worker again and again must neither end the system nor delay its restarts as those of a worker
# that cannot run.
OFTEN_RESTARTED: dict[str, Any] = {"run.max_crashes": 1_000_000, "run.max_restart_delay": 1.0}
BREAKAGES = {
    "raises": "raise RuntimeError('no licence')",
    "exits": "import os; os._exit(3)",
    "crashes natively": "import ctypes; ctypes.string_at(0)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """How many faults of each kind. `seconds`: how long a lasting cause lasts."""

    kills: int
    each: int
    seconds: float
    seed: int


@dataclass(slots=True)
class PlanFolders:
    """Where the plans keep their systems. `disks`: those of a home and of its versions; empty: not permitted."""

    work: Path
    disks: tuple[SmallDisk, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)  # row -> why it is not run


def repeat_each(faults: list[Fault], options: FaultOptions) -> list[Fault]:
    """Return each fault `options.each` times, in a random order."""
    chosen = faults * options.each
    random.Random(options.seed).shuffle(chosen)
    return chosen


def process_plan(options: FaultOptions, folders: PlanFolders) -> FaultPlan:
    """Kills, stops and hangs of all processes, and damaged rows."""
    kills = [
        Fault(
            name=f"kill -9 of {name}",
            cause=causes.kill_process(name),
            allows=allowed_answers(name),
            starts_trainer=name in ("train", "supervisor"),
        )
        for name in itertools.islice(itertools.cycle(PROCESSES), options.kills)
    ]
    stops = [
        Fault(
            name=f"SIGSTOP of {name} for a while",
            cause=causes.freeze_process(name),
            allows="nothing" if name == "supervisor" else allowed_answers(name),
            seconds=min(options.seconds, HEARTBEAT_TIMEOUT / 2),
        )
        for name in PROCESSES
    ]
    hangs = [
        Fault(
            name=f"SIGSTOP of {name} for ever",
            cause=causes.hang_process(name, 3 * HEARTBEAT_TIMEOUT),
            allows=allowed_answers(name),
            starts_trainer=name == "train",
        )
        for name in WORKERS
    ]
    hangs += [
        Fault(
            name=f"SIGSTOP of {name} in a transaction, for ever",
            cause=causes.hang_process(name, 3 * HEARTBEAT_TIMEOUT, in_transaction=True),
        )
        for name in ("collect", "judge")
    ]
    rows = [Fault(name="a damaged row", cause=causes.damaged_row, seconds=2.0, must_learn=True)]
    mixed = kills + repeat_each(stops + hangs + rows, options)
    random.Random(f"order/{options.seed}").shuffle(mixed)
    hanging = {"run.heartbeat_timeout": HEARTBEAT_TIMEOUT}
    config = scratch_config(
        folders.work / "processes" / "home", SETTINGS | OFTEN_RESTARTED | hanging
    )
    return FaultPlan(name="processes", config=config, faults=mixed)


def disk_plan(options: FaultOptions, folders: PlanFolders) -> FaultPlan:
    """Full disks and damaged files, on small filesystems of their own if that is permitted."""
    seconds = options.seconds
    faults = [
        Fault(
            name="a damaged head",
            cause=causes.damaged_head,
            allows="errors",
            seconds=seconds,
            must_report=True,
        )
    ]
    full = {"disk": None, "version_disk": None}
    home = folders.work / "disk" / "home"
    if folders.disks:
        full = dict(zip(full, folders.disks, strict=True))
        home = folders.disks[0].folder
        faults += [
            Fault(
                name="a full disk",
                cause=causes.full_disk,
                allows="unavailable",
                seconds=seconds,
                must_report=True,
                must_learn=True,
            ),
            Fault(
                name="no room for versions",
                cause=causes.no_room_for_versions,
                seconds=seconds,
                must_report=True,
                must_learn=True,
            ),
        ]
    else:
        folders.skipped |= dict.fromkeys(
            ("a full disk", "no room for versions"),
            "no filesystem can be mounted here: it needs root",
        )
    config = scratch_config(home, SETTINGS | OFTEN_RESTARTED)
    return FaultPlan(name="disk", config=config, faults=repeat_each(faults, options), **full)


def plugin_plan(options: FaultOptions, folders: PlanFolders) -> FaultPlan:
    """Plug-ins of the judge and of the trainer that raise, exit or crash natively."""
    folder = folders.work / "plugins"
    folder.mkdir(parents=True, exist_ok=True)
    files = {"judge": folder / "reward.py", "train": folder / "loss.py"}
    good = {"judge": GOOD_REWARD, "train": GOOD_LOSS}
    faults = []
    for (worker, file), (how, code) in itertools.product(files.items(), BREAKAGES.items()):
        file.write_text(good[worker], encoding="utf-8")
        bad = (
            good[worker]
            .replace("return 1.0 if", f"{code}\n        return 1.0 if")
            .replace("return -", f"{code}\n    return -")
        )
        cause = causes.broken_plugin(file, worker, bad)
        # A plug-in of the trainer is called when a batch is full.
        faults.append(
            Fault(
                name=f"the plug-in of {worker} {how}",
                cause=cause,
                seconds=max(options.seconds, 10.0),
                must_report=True,
            )
        )
    settings = SETTINGS | {
        "judge.kind": "plugin",
        "judge.plugin_path": str(files["judge"]),
        "train.method": "binary",
        "train.loss.path": str(files["train"]),
    }
    config = scratch_config(folder / "home", settings)
    return FaultPlan(name="plugins", config=config, faults=repeat_each(faults, options))


def clock_plan(options: FaultOptions, folders: PlanFolders) -> FaultPlan | None:
    """Clocks that jump, through libfaketime; None without it."""
    library = faketime_library()
    if library is None:
        folders.skipped["clocks that jump"] = (
            "libfaketime is not installed: `pip install libfaketime`"
        )
        return None
    file = folders.work / "clock" / "offset"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("+0")
    seconds = options.seconds
    faults = [
        Fault(
            name="clock 3 h ahead for a while",
            cause=causes.shifted_clock("+3h"),
            seconds=seconds,
            must_learn=True,
        ),
        Fault(
            name="clock 3 h behind for a while",
            cause=causes.shifted_clock("-3h"),
            seconds=seconds,
            must_learn=True,
        ),
        Fault(
            name="clock 3 h ahead, trainer killed then",
            cause=causes.shifted_clock("+3h", kill="train"),
            seconds=seconds,
            must_learn=True,
            starts_trainer=True,
        ),
    ]
    config = scratch_config(folders.work / "clock" / "home", SETTINGS | OFTEN_RESTARTED)
    return FaultPlan(
        name="clock", config=config, faults=repeat_each(faults, options), clock_file=file
    )


def faketime_library() -> Path | None:
    """Return the library of the package `libfaketime`, which shifts the clock of a process; None if it is missing."""
    found = importlib.util.find_spec("libfaketime")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.rglob("libfaketime.so.1"), None)


def clock_environment(plan: FaultPlan) -> dict[str, str]:
    """Return the variables with which processes have the shifted clock; their monotonic clock is left alone."""
    library = faketime_library()
    if plan.clock_file is None or library is None:
        return {}
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(plan.clock_file),
        # Seconds; reading the file at every look at the clock takes much of a core.
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def practice_plan(options: FaultOptions, folders: PlanFolders) -> FaultPlan:
    """Kills of trainer and engine while they practise, and lessons that are forgotten meanwhile."""
    faults = [
        Fault(
            name=f"kill -9 of {name} during practice",
            cause=causes.kill_process(name),
            allows=allowed_answers(name),
            moment=practice_causes.during_practice,
            starts_trainer=name == "train",
        )
        for name in itertools.islice(itertools.cycle(("train", "engine")), options.kills)
    ]
    faults += [
        Fault(
            name=f"a lesson is forgotten{', trainer killed' * kills}",
            cause=practice_causes.forgotten_lesson(kills=kills),
            moment=practice_causes.during_practice,
            starts_trainer=kills,
        )
        for kills in (False, True)
    ] * options.each
    random.Random(f"practice/{options.seed}").shuffle(faults)
    config = scratch_config(folders.work / "practice" / "home", SETTINGS | practice_causes.SETTINGS)
    return FaultPlan(name="practice", config=config, faults=faults, load=practice_causes.LOAD)


def environment_plan(options: FaultOptions, folders: PlanFolders) -> FaultPlan | None:
    """Kills of runner, box, browser and gateway while episodes are played; None without boxes."""
    try:
        find_bubblewrap()
    except SandboxError as error:
        folders.skipped["kills while episodes are played"] = str(error)
        return None
    kinds = [
        Fault(
            name="kill -9 of a runner",
            cause=environment_causes.killed_runner,
            moment=environment_causes.during_episode,
            after=environment_causes.post_outcome_again,
        ),
        Fault(
            name="kill -9 of a box",
            cause=environment_causes.killed_part("box", environment_causes.box_processes),
            moment=environment_causes.during_box,
            after=environment_causes.post_outcome_again,
        ),
        Fault(
            name="kill -9 of gateway during episodes",
            cause=environment_causes.killed_gateway,
            allows=allowed_answers("gateway"),
            moment=environment_causes.during_episode,
            after=environment_causes.post_outcome_again,
        ),
    ]
    sources = write_tracks(folders.work / "environments" / "tasks")
    if (why := environment_causes.missing_browser()) is not None:
        folders.skipped["kill -9 of a browser"] = why
    else:
        kinds.append(
            Fault(
                name="kill -9 of a browser",
                cause=environment_causes.killed_part(
                    "browser", environment_causes.browser_processes
                ),
                moment=environment_causes.during_browser,
                after=environment_causes.post_outcome_again,
            )
        )
        sources = [one for track in sources for one in (track, environment_causes.browser_source())]
    faults = list(itertools.islice(itertools.cycle(kinds), options.kills))
    random.Random(f"environments/{options.seed}").shuffle(faults)
    config = scratch_config(
        folders.work / "environments" / "home", SETTINGS | environment_causes.SETTINGS
    )
    load = EnvironmentLoad(config=config, sources=sources)
    return FaultPlan(
        name="environments",
        config=config,
        faults=faults,
        load=environment_causes.LOAD,
        environment=load,
    )


def tinker_plan(options: FaultOptions, folders: PlanFolders) -> FaultPlan | None:
    """Kills of trainer, gateway and SkyRL's open Tinker server, at which the system serves and trains."""
    if (why := tinker_causes.missing_server()) is not None:
        folders.skipped["faults of a Tinker server"] = why
        return None
    faults = [
        Fault(
            name=f"kill -9 of {name} at Tinker",
            cause=tinker_causes.killed_server
            if name == "the server"
            else causes.kill_process(name),
            allows="errors" if name == "the server" else allowed_answers(name),
            starts_trainer=name == "train",
            must_learn=name == "train",
        )
        for name in itertools.islice(
            itertools.cycle(("train", "gateway", "the server")), options.kills
        )
    ]
    faults += [
        Fault(
            name=f"{words} from Tinker",
            cause=tinker_causes.troubled_server(trouble),
            seconds=options.seconds,
        )
        for words, trouble in tinker_causes.TROUBLES.items()
    ] * options.each
    random.Random(f"tinker/{options.seed}").shuffle(faults)
    folder = folders.work / "tinker"
    server = SkyrlServer(folder / "server", ModelFiles.from_path(STARTER).folder)
    proxy = FlakyProxy(server.url)
    config = scratch_config(
        folder / "home", SETTINGS | tinker_causes.make_settings(server, proxy.url)
    )
    tinker_causes.record_consent(config)
    return FaultPlan(
        name="tinker",
        config=config,
        faults=faults,
        load=tinker_causes.LOAD,
        limits=tinker_causes.LIMITS,
        server=server,
        proxy=proxy,
    )


PLANS = {
    "processes": process_plan,
    "disk": disk_plan,
    "plugins": plugin_plan,
    "clock": clock_plan,
    "practice": practice_plan,
    "environments": environment_plan,
    "tinker": tinker_plan,
}


def make_plans(
    names: Sequence[str], options: FaultOptions, folders: PlanFolders
) -> Iterator[FaultPlan]:
    """Yield the plans with these names. Why something cannot be run here is put into `folders.skipped`."""
    for name in names:
        if (plan := PLANS[name](options, folders)) is not None:
            yield plan
