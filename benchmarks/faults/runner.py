"""Causes faults one after the other in a running system under load, and checks the invariants after each."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from benchmarks.faults import invariants
from benchmarks.faults.causes import Fault, FaultScene
from benchmarks.faults.client_log import ClientLog, FaultWindow, open_log
from benchmarks.faults.clients import USUAL_LOAD, CrowdLoad, crowd
from benchmarks.faults.environment_invariants import check_all_ended, count_episodes
from benchmarks.faults.environment_load import EnvironmentLoad, play_load, play_unlike_group
from benchmarks.faults.invariants import USUAL_LIMITS, PlanLimits
from benchmarks.faults.live_system import FaultFinding, LiveSystem, wait_until
from benchmarks.faults.small_disk import SmallDisk
from benchmarks.faults.tinker_invariants import check_tinker
from benchmarks.flaky_proxy import FlakyProxy
from benchmarks.skyrl_server import SkyrlServer

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.status import diagnose
from openclaw_rl.store.lessons import practice_turns
from openclaw_rl.store.lineage.policy_marks import freeze_training

# After which a recovery is no longer waited for, unless its limit is higher.
GIVE_UP_SECONDS = 60.0
# Seconds between two faults.
_LARGEST_PAUSE = 2.0
# Newest versions whose files are checked after each fault; at the end all.
_FILES_CHECKED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """What came of one fault. Times in seconds."""

    name: str
    requests: int  # that overlap the fault
    failed: int
    outage: float  # longest time between two successes of the probe
    recovery: float  # from the end of the cause until all workers ran
    reported: bool | None  # whether the system named its trouble; None: it need not
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """A system and the faults that it gets."""

    name: str
    config: Config
    faults: Sequence[Fault]
    load: CrowdLoad = USUAL_LOAD
    limits: PlanLimits = USUAL_LIMITS
    disk: SmallDisk | None = None
    version_disk: SmallDisk | None = None
    clock_file: Path | None = None
    environment: EnvironmentLoad | None = None
    server: SkyrlServer | None = None  # runs as long as the system
    proxy: FlakyProxy | None = None  # in front of the server


@dataclass(slots=True)
class PlanResult:
    """The results of a plan; `violations` are those of its end, and belong to no fault."""

    results: list[FaultResult] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(
        default_factory=Counter
    )  # replies, reactions, feedback, verdicts, versions


class FaultRunner:
    """Runs the faults of one plan."""

    def __init__(self, scene: FaultScene, recovery_limit: float, plan: FaultPlan) -> None:
        self._scene = scene
        self._limits = plan.limits
        self._recovery_limit = max(recovery_limit, plan.limits.recovery)
        self._outage_limit = plan.limits.outage + plan.load.probe_pause
        self._patience = max(GIVE_UP_SECONDS, self._recovery_limit)
        self._verdicts: dict[invariants.VerdictKey, int | None] = {}
        # Requests whose replies were checked.
        self._checked = 0
        self._known_failures: Counter[str] = Counter()

    async def run_fault(self, fault: Fault) -> FaultResult:
        """Cause the fault, wait for its end and the recovery, and check the invariants."""
        scene = self._scene
        problems = list[str]()
        await asyncio.to_thread(self._save_verdicts)
        scene.killed.clear()
        reported = False
        if fault.moment is not None:
            problems += await fault.moment(scene)
        began = time.time()
        try:
            async with fault.cause(scene):
                reported = await self._wait_for_report(fault)
        except (FaultFinding, OpenClawError) as error:
            problems.append(str(error))
        if scene.environment is not None:
            problems += scene.environment.take_problems()
        ended = time.time()
        if fault.must_report and not reported:
            problems.append("neither /readyz nor the doctor reported it")
        problems += await self._wait_recovered(
            ended, self._limits.trainer_start if fault.starts_trainer else 0.0
        )
        window = FaultWindow(
            name=fault.name, began=began, ended=ended, recovered=time.time(), allows=fault.allows
        )
        scene.log.add_window(window)
        if fault.must_learn:
            problems += await self.check_learning()
        if fault.after is not None:
            problems += await fault.after(scene)
        problems += await asyncio.to_thread(self._check_invariants, window)
        outage = scene.log.longest_gap(window.began, window.recovered)
        if fault.allows == "nothing" and outage > self._outage_limit:
            problems.append(
                f"no reply for {outage:.1f} s instead of at most {self._outage_limit:g} s"
            )
        during = list(scene.log.requests_during(window.began, window.recovered))
        return FaultResult(
            name=fault.name,
            requests=len(during),
            failed=sum(not request.finished for request in during),
            outage=outage,
            recovery=window.recovered - window.ended,
            reported=reported if fault.must_report else None,
            violations=tuple(problems),
        )

    async def _wait_for_report(self, fault: Fault) -> bool:
        """Wait while the cause lasts; return whether the system reported a problem meanwhile."""
        end = time.time() + fault.seconds
        reported = False
        while (left := end - time.time()) > 0:
            reported = reported or (fault.must_report and await asyncio.to_thread(self._has_report))
            await asyncio.sleep(min(left, 0.5))
        return reported

    def _has_report(self) -> bool:
        live = self._scene.live
        if live.read_readiness().get("reasons"):
            return True
        with live.store.read() as conn:
            return bool(diagnose.find_diagnoses(live.config, conn, time.time()))

    async def _wait_recovered(self, ended: float, least: float) -> list[str]:
        """Wait until all workers run, requests are answered, and the head is served. Return what took too long.

        `least`: seconds that the recovery may take in any case.
        """
        scene = self._scene
        killed = frozenset(self._scene.killed)
        limit = max(self._recovery_limit, least)

        def is_recovered() -> bool:
            return (
                not scene.live.missing_workers(ended, killed)
                and self._is_answering(ended)
                and self._serves_head()
            )

        await wait_until(lambda: scene.live.is_down or is_recovered(), self._patience)
        if scene.live.is_down:
            reason = scene.live.system.log_tail(1)
            await asyncio.to_thread(scene.live.restart)
            return [f"the system ended and was started again by hand: {reason}"]
        seconds = time.time() - ended
        if seconds <= limit:
            return []
        missing = await asyncio.to_thread(scene.live.missing_workers, ended, killed)
        rest = f"; still not running: {', '.join(missing)}" if missing else ""
        return [f"recovery took {seconds:.1f} s instead of at most {limit:g} s{rest}"]

    def _is_answering(self, since: float) -> bool:
        return any(
            r.is_probe and r.finished and r.began > since for r in self._scene.log.requests[-100:]
        )

    def _serves_head(self) -> bool:
        live = self._scene.live
        return live.read_readiness().get("version") == live.head_version()

    async def check_learning(self) -> list[str]:
        """Wait for a new version. Return a violation if none comes.

        A policy that solves all tasks of an environment, or none, learns nothing there: it gets a group to learn from.
        """
        live = self._scene.live
        before = await asyncio.to_thread(live.head_version)
        if self._scene.environment is not None:
            try:
                await play_unlike_group(live)
            except (OpenClawError, aiohttp.ClientError, TimeoutError) as error:
                return [f"a group of episodes could not be played: {error}"]
        if await wait_until(lambda: live.head_version() > before, self._limits.learning):
            return []
        return [f"no new version within {self._limits.learning:g} s"]

    def _save_verdicts(self) -> None:
        with self._scene.live.store.read() as conn:
            self._verdicts |= invariants.read_verdicts(conn)

    def _check_invariants(self, window: FaultWindow) -> list[str]:
        # Older than the snapshot of the store.
        scene = self._scene
        log = self._scene.log.copy_entries()
        fresh = log.requests[self._checked :]
        self._checked = len(log.requests)
        failures = [
            *invariants.check_answers(
                log.requests_during(window.began, window.recovered), log.windows
            )
        ]
        self._known_failures.update(failures)
        with scene.live.store.read() as conn:
            return [
                *invariants.check_store(conn, log, fresh, self._verdicts, scene.live.config),
                *invariants.check_files(conn, scene.live.config.home_dir, _FILES_CHECKED),
                *failures,
            ]

    def check_end(self) -> list[str]:
        """Check everything over the whole run. Call it when the clients have ended.

        Training is frozen first: the crowd leaves more turns than are trained on in minutes.
        """
        scene = self._scene
        log = self._scene.log
        found = list[str]()
        with scene.live.store.write() as conn:
            freeze_training(conn, time.time())
        try:
            scene.live.system.wait_until_settled(timeout=self._patience)
        except OpenClawError as error:
            found.append(str(error).splitlines()[0])
        failures = (
            Counter(invariants.check_answers(log.requests, log.windows)) - self._known_failures
        )
        served = scene.live.read_readiness().get("version")
        if scene.environment is not None:
            found += scene.environment.take_problems()
        with scene.live.store.read() as conn:
            return [
                *found,
                *invariants.check_store(conn, log, log.requests, self._verdicts, scene.live.config),
                *invariants.check_reactions(conn, log.requests, log.damaged_rows),
                *invariants.check_files(conn, scene.live.config.home_dir),
                *invariants.check_head(conn, served),
                *check_all_ended(conn),
                *failures.elements(),
                *invariants.check_outages(log.requests, log.windows, self._limits.stall),
                *(
                    check_tinker(conn, scene.live.config.home_dir, scene.server)
                    if scene.server
                    else ()
                ),
            ]

    def count_checked(self) -> Counter[str]:
        """Return how much was checked."""
        log = self._scene.log
        with self._scene.live.store.read() as conn:
            practised = practice_turns.count_all(conn)
            played = count_episodes(conn)
        return played + Counter(
            {
                "replies": len(log.finished),
                "reactions": sum(r.previous is not None and r.id is not None for r in log.requests),
                "feedback": len(log.feedback),
                "verdicts": len(self._verdicts),
                "versions": self._scene.live.head_version(),
                "practice replies": practised,
            }
        )


def ignore_progress(_name: str, _result: FaultResult | None) -> None:
    """Show nothing."""


async def run_plan(
    plan: FaultPlan,
    seed: int,
    recovery_limit: float,
    out: Path,
    seen: Callable[[str, FaultResult | None], None] = ignore_progress,
) -> PlanResult:
    """Start the system of a plan, cause its faults under load, and check. `seen`: called before and after each fault.
    `recovery_limit`: seconds from the end of a cause until all workers run.

    The log of the clients, the logs of the system and, after a violation, its store stay in `out`.
    """
    with plan.server or contextlib.nullcontext(), plan.proxy or contextlib.nullcontext():
        return await _run_system(plan, seed, recovery_limit, out, seen)


async def _run_system(
    plan: FaultPlan,
    seed: int,
    recovery_limit: float,
    out: Path,
    seen: Callable[[str, FaultResult | None], None],
) -> PlanResult:
    found = PlanResult()
    log = open_log(out / "clients.jsonl")
    live = await asyncio.to_thread(LiveSystem, plan.config)
    try:
        rng = random.Random(f"{seed}/{plan.name}")
        scene = FaultScene(
            live=live,
            log=log,
            rng=rng,
            disk=plan.disk,
            version_disk=plan.version_disk,
            clock_file=plan.clock_file,
            environment=plan.environment,
            server=plan.server,
            proxy=plan.proxy,
        )
        load = plan.load
        runner = FaultRunner(scene, recovery_limit, plan)
        talk = crowd(
            live.system,
            load.users,
            log,
            pause=load.pause,
            probe_pause=load.probe_pause,
            wait=load.wait,
        )
        async with talk, play_load(plan.environment):
            await asyncio.sleep(3)
            for fault in plan.faults:
                seen(fault.name, None)
                await asyncio.sleep(rng.uniform(0.1, _LARGEST_PAUSE))
                result = await runner.run_fault(fault)
                found.results.append(result)
                seen(fault.name, result)
            found.violations += await runner.check_learning()
        found.violations += await asyncio.to_thread(runner.check_end)
        found.counts = await asyncio.to_thread(runner.count_checked)
    finally:
        await asyncio.to_thread(live.close)
        await asyncio.to_thread(_keep_files, plan.config, out, log)
    return found


def _keep_files(config: Config, out: Path, log: ClientLog) -> None:
    if log.file is not None:
        log.file.close()
    shutil.copytree(config.logs_dir, out / "logs", dirs_exist_ok=True)
    for file in config.home_dir.glob("store.db*"):
        shutil.copy(file, out / file.name)
