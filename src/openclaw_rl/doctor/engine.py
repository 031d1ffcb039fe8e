"""`openclaw-rl doctor --engine NAME`: checks one engine on this machine; reports expected and observed values.

It starts the engine process with your settings on a temporary home (or uses the server at `engine.url`), writes random
adapters for your model, and checks the engine as the contract test does (`tests/engines/test_contract.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.doctor import random_adapter
from openclaw_rl.engines import registry
from openclaw_rl.engines.base import BASE_POLICY
from openclaw_rl.engines.remote import server_process
from openclaw_rl.errors import EngineError, EngineGone, OpenClawError
from openclaw_rl.protocols import EngineInfo, EngineLink
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config, to_environment
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.subprocess_system import stop_process
from openclaw_rl.types import Generation, Ids, PolicyRef, Sampling

# Of one reply, if the context is long enough.
REPLY_TOKENS = 64
# Concurrent replies during the version swap.
CONCURRENT_REPLIES = 8
# A server must stream token by token within this many replies.
MAX_WARM_UPS = 6
# Nats; smallest difference between the log-probabilities of two versions.
_MIN_VERSION_DIFFERENCE = 0.002
_POLL_INTERVAL = 0.2
_QUESTION = "Write a long story about a lighthouse and the sea."


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of a check: the observed values, and whether they are as expected."""

    words: str
    passed: bool


@dataclass(slots=True)
class TimedReply:
    """One reply with the arrival times of its chunks, in seconds."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    arrival_times: list[float] = field(default_factory=list)
    finish: str | None = None

    @property
    def longest_gap(self) -> float:
        return max(
            (b - a for a, b in zip(self.arrival_times, self.arrival_times[1:], strict=False)),
            default=0.0,
        )


@dataclass(slots=True)
class EngineTrial:
    """Engine, prompt and adapters of the checks. `max_mean_difference`: of log-probabilities, in nats."""

    engine: EngineLink
    info: EngineInfo
    prompt: Ids
    adapters: Sequence[PolicyRef]
    max_mean_difference: float

    @property
    def reply_tokens(self) -> int:
        return max(4, min(REPLY_TOKENS, (self.info.context_length - len(self.prompt)) // 2))

    async def collect_reply(
        self,
        version: int = 0,
        *,
        prompt: Ids | None = None,
        stop: Sequence[int] = (),
        **sampling: float,
    ) -> TimedReply:
        """Return a whole reply, of `reply_tokens` tokens by default."""
        reply = TimedReply()
        async for _ in self.stream_reply(reply, version, prompt=prompt, stop=stop, **sampling):
            pass
        return reply

    async def stream_reply(
        self,
        into: TimedReply,
        version: int,
        *,
        prompt: Ids | None = None,
        stop: Sequence[int] = (),
        **sampling: float,
    ) -> AsyncIterator[None]:
        """Generate a reply into `into`; yield after each chunk."""
        wanted = Sampling(
            temperature=sampling.get("temperature", 1.0),
            max_tokens=int(sampling.get("max_tokens", self.reply_tokens)),
        )
        call = Generation(
            id="doctor",
            version=version,
            prompt_ids=self.prompt if prompt is None else prompt,
            sampling=wanted,
            stop_token_ids=tuple(stop),
        )
        async for chunk in self.engine.generate(call):
            into.ids += chunk.token_ids
            into.logprobs += chunk.logprobs
            into.arrival_times.append(time.monotonic())
            into.finish = chunk.finish
            yield

    async def logprob_differences(
        self, reply: TimedReply, version: int, temperature: float = 1.0
    ) -> tuple[float, float]:
        """Return mean and maximum of |sampled - scored| log-probability, in nats."""
        ids = np.array(reply.ids, dtype=np.int32)
        scored = await self.engine.score(
            version=version, prompt_ids=self.prompt, response_ids=ids, temperature=temperature
        )
        gaps = np.abs(np.asarray(reply.logprobs) - scored)
        return float(gaps.mean()), float(gaps.max())

    async def load_adapters(self, *adapters: int) -> float:
        """Load the base and these adapters (1, 2, ...); return the seconds it took."""
        began = time.monotonic()
        await self.engine.load([BASE_POLICY, *(self.adapters[i - 1] for i in adapters)])
        return time.monotonic() - began


EngineCheck = tuple[str, str, Callable[[EngineTrial], Awaitable[CheckResult]]]
"""(name, expected result as text, the check)"""


async def _check_streaming(trial: EngineTrial) -> CheckResult:
    """Check up to `MAX_WARM_UPS` replies, because a server may send its first replies in one chunk."""
    came = await _measure_streaming(trial)
    tried = 1
    while not came.passed and tried < MAX_WARM_UPS:
        came = await _measure_streaming(trial)
        tried = tried + 1
    return (
        came if tried == 1 else replace(came, words=f"{came.words} (reply {tried} since the start)")
    )


async def _measure_streaming(trial: EngineTrial) -> CheckResult:
    began = time.monotonic()
    reply = await trial.collect_reply()
    first = reply.arrival_times[0] - began
    took = reply.arrival_times[-1] - began
    observed = (
        f"{len(reply.ids)} tokens in {len(reply.arrival_times)} chunks, the first after {first * 1000:.0f} ms, "
        f"{len(reply.ids) / took:.0f} tokens/s, ended by {reply.finish}"
    )
    whole = (len(reply.ids), reply.finish) == (trial.reply_tokens, "length")
    return CheckResult(observed, whole and 8 * len(reply.arrival_times) > trial.reply_tokens)


async def _check_token_ids(trial: EngineTrial) -> CheckResult:
    whole = await trial.collect_reply(temperature=0.0)
    half = len(whole.ids) // 2
    begun = np.array([*trial.prompt, *whole.ids[:half]], dtype=np.int32)
    rest = await trial.collect_reply(
        prompt=begun, temperature=0.0, max_tokens=len(whole.ids) - half
    )
    same = next(
        (
            n
            for n, pair in enumerate(zip(whole.ids[half:], rest.ids, strict=True))
            if pair[0] != pair[1]
        ),
        None,
    )
    if same is None:
        return CheckResult(f"the same {len(rest.ids)} tokens", True)
    apart = abs(whole.logprobs[half + same] - rest.logprobs[same])
    observed = f"differs after {same} of {len(rest.ids)} tokens, where log-probabilities differ by {apart:.2g}"
    return CheckResult(observed, apart <= trial.max_mean_difference)


def _scoring_check(
    temperature: float, tokens: int
) -> Callable[[EngineTrial], Awaitable[CheckResult]]:
    async def check_scores(trial: EngineTrial) -> CheckResult:
        count = min(tokens, trial.reply_tokens)
        reply = await trial.collect_reply(temperature=temperature, max_tokens=count)
        mean, most = await trial.logprob_differences(reply, 0, temperature)
        return CheckResult(
            f"mean {mean:.2g}, largest {most:.2g} over {count} tokens",
            mean <= trial.max_mean_difference,
        )

    return check_scores


async def _check_stop(trial: EngineTrial) -> CheckResult:
    whole = await trial.collect_reply(temperature=0.0)
    stop = next((i for n, i in enumerate(whole.ids) if n and i not in whole.ids[:n]), None)
    if stop is None:
        return CheckResult("the model repeats one token: the stop cannot be checked", False)
    expected = whole.ids[: whole.ids.index(stop) + 1]
    reply = await trial.collect_reply(temperature=0.0, stop=(stop,))
    observed = f"{len(reply.ids)} of {len(whole.ids)} tokens, ended by {reply.finish}"
    return CheckResult(
        observed,
        (reply.finish, reply.ids[-1]) == ("stop", stop) and len(reply.ids) <= len(expected),
    )


async def _check_cancellation(trial: EngineTrial) -> CheckResult:
    reply = TimedReply()
    stream = trial.stream_reply(reply, 0)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    began = time.monotonic()
    left = (await trial.engine.info()).running
    while left and time.monotonic() - began < 5:
        await asyncio.sleep(0.01)
        left = (await trial.engine.info()).running
    took = time.monotonic() - began
    again = await trial.collect_reply(max_tokens=4)
    observed = f"{left} running {took * 1000:.0f} ms later; next reply: {len(again.ids)} tokens"
    return CheckResult(observed, not left and len(again.ids) == 4)


async def _check_unknown_version(trial: EngineTrial) -> CheckResult:
    try:
        await trial.collect_reply(9999)
    except EngineGone:
        raise
    except EngineError as error:
        return CheckResult(f"refused: {error}", "9999" in str(error))
    return CheckResult("it answered", False)


async def _check_side_by_side(trial: EngineTrial) -> CheckResult:
    took = await trial.load_adapters(1, 2)
    versions = (0, 1, 2)
    replies = await asyncio.gather(*(trial.collect_reply(v) for v in versions))
    same_version = [
        (await trial.logprob_differences(r, v))[0] for v, r in zip(versions, replies, strict=True)
    ]
    other_version = [
        (await trial.logprob_differences(r, (v + 1) % 3))[0]
        for v, r in zip(versions, replies, strict=True)
    ]
    observed = (
        f"own at most {max(same_version):.2g}, others at least {min(other_version):.2g}; two adapters loaded in "
        f"{took * 1000:.0f} ms"
    )
    apart = min(other_version) > max(4 * max(same_version), _MIN_VERSION_DIFFERENCE)
    return CheckResult(observed, max(same_version) <= trial.max_mean_difference and apart)


async def _check_swap(trial: EngineTrial) -> CheckResult:
    await trial.load_adapters(1)
    replies = [TimedReply() for _ in range(CONCURRENT_REPLIES)]
    begun = [asyncio.Event() for _ in replies]

    async def stream_one(reply: TimedReply, started: asyncio.Event) -> None:
        async for _ in trial.stream_reply(reply, 1):
            started.set()

    tasks = [asyncio.create_task(stream_one(*pair)) for pair in zip(replies, begun, strict=True)]
    try:
        await asyncio.gather(*(event.wait() for event in begun))
        took = await trial.load_adapters(2, 3)
        running = sum(not task.done() for task in tasks)
        fresh = await trial.collect_reply(3, max_tokens=4)
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    await trial.load_adapters(1)
    mean = max([(await trial.logprob_differences(reply, 1))[0] for reply in replies])
    whole = sum(len(reply.ids) == trial.reply_tokens for reply in replies)
    observed = (
        f"{whole} of {CONCURRENT_REPLIES} replies complete ({running} were running), "
        f"mean difference {mean:.2g}, longest gap {max(r.longest_gap for r in replies) * 1000:.0f} ms; "
        f"loaded in {took * 1000:.0f} ms"
    )
    return CheckResult(
        observed,
        whole == CONCURRENT_REPLIES and mean <= trial.max_mean_difference and len(fresh.ids) == 4,
    )


def _list_checks(trial: EngineTrial) -> list[EngineCheck]:
    bound = f"mean difference at most {trial.max_mean_difference:g} nats"
    checks: list[EngineCheck] = [
        ("streaming", f"{trial.reply_tokens} tokens, one by one", _check_streaming),
        (
            "exact ids",
            "the first half of a reply as prompt gives the second half",
            _check_token_ids,
        ),
        ("scored as sampled, T 1", bound, _scoring_check(1.0, trial.reply_tokens)),
        ("scored as sampled, T 0.7", bound, _scoring_check(0.7, 12)),
        ("stop", "ends with the stop token", _check_stop),
        ("cancellation", "no sequence stays in the batch", _check_cancellation),
        ("unknown version", "refused", _check_unknown_version),
    ]
    if trial.adapters:
        checks += [
            (
                "three versions side by side",
                f"own {bound}, others more than four times that",
                _check_side_by_side,
            ),
            (
                "swap under load",
                f"{CONCURRENT_REPLIES} complete replies on the old version",
                _check_swap,
            ),
        ]
    return checks


def run_checks(
    config: Config, *, console: TerminalConsole | None = None, wait: float = 120.0
) -> bool:
    """Run all checks on the engine of `config`, whose home is temporary. Returns whether every check passes.

    `wait`: timeout of one check in seconds.
    """
    console = console or TerminalConsole()
    title = Text(f"openclaw-rl doctor --engine {config.engine.backend}", "bold")
    console.print(Text.assemble(title, f"  ({config.model.path})"))
    try:
        registry.check_engine(config, wait=wait)
        with tempfile.TemporaryDirectory(prefix="openclaw-rl-trial-") as folder:
            rows = asyncio.run(_check_engine(config, Path(folder), console, wait))
    except OpenClawError as error:
        console.print(Text(f"  failed  {error}", style="red"))
        _save_logs(config, console)
        return False
    holds = all(came.passed for _, _, came in rows)
    console.print(result_table(rows))
    failed = Text.assemble(("  some checks failed", "red"), ": see above.")
    console.print("  every check passed." if holds else failed)
    if not holds:
        _save_logs(config, console)
    return holds


def _save_logs(config: Config, console: TerminalConsole) -> None:
    """Copy the logs to one file, because the temporary home is deleted."""
    logs = sorted(config.logs_dir.glob("*.log"))
    if not logs:
        return
    with tempfile.NamedTemporaryFile(
        "w", prefix="openclaw-rl-doctor-", suffix=".log", delete=False
    ) as file:
        for log in logs:
            file.write(f"==> {log.name}\n{log.read_text(errors='replace')}\n")
    console.print(f"  the engine's logs: {file.name}", soft_wrap=True)


async def _check_engine(
    config: Config, folder: Path, console: TerminalConsole, wait: float
) -> list[tuple[str, str, CheckResult]]:
    files = ModelFiles.from_config(config.model)
    prompt = Renderer(files).render([{"role": "user", "content": _QUESTION}]).prompt_ids
    rank = min(config.train.lora.rank, 8)
    adapters = [
        random_adapter.write_random_adapter(files.folder, folder / str(n), version=n, rank=rank)
        for n in (1, 2, 3)
    ]
    exact = server_process.dtype_flag(config.model.dtype, str(files.folder)) == "float32"
    with _engine_process(config) as process:
        engine = registry.connect_engine(config)
        try:
            info = await _wait_until_ready(engine, process, config, wait)
            console.print(
                f"  answers: {info.model}, context {info.context_length} tokens, device {info.device}, "
                f"grammars {'yes' if info.grammar else 'no'}, images {'yes' if info.images else 'no'}",
            )
            trial = EngineTrial(
                engine,
                info,
                prompt,
                [a for a in adapters if a is not None],
                1e-3 if exact else 0.05,
            )
            rows = [
                (name, expected, await _run_check(check, trial, wait))
                for name, expected, check in _list_checks(trial)
            ]
            # A failure to load was reported above.
            with contextlib.suppress(EngineError):
                await asyncio.wait_for(engine.load([BASE_POLICY]), wait)
        finally:
            await engine.close()
    if not trial.adapters:
        observed = (
            f"the weights of {files.folder} have no "
            f"{' and '.join(random_adapter.TARGET_MODULES)} to adapt: not checked"
        )
        rows.append(("versions", "two adapters side by side", CheckResult(observed, False)))
    return rows


async def _run_check(
    check: Callable[[EngineTrial], Awaitable[CheckResult]], trial: EngineTrial, wait: float
) -> CheckResult:
    try:
        async with asyncio.timeout(wait):
            return await check(trial)
    except TimeoutError:
        return CheckResult(f"not finished within {wait:g} s (--wait)", False)
    except OpenClawError as error:
        return CheckResult(str(error), False)


@contextlib.contextmanager
def _engine_process(config: Config) -> Iterator[subprocess.Popen[bytes] | None]:
    """Start the engine process as `up` does, and stop it at the end; None if `engine.url` is set."""
    if config.engine.url is not None:
        yield None
        return
    prepare_home(config)
    command = [sys.executable, "-m", "openclaw_rl", "worker", "engine"]
    with (config.logs_dir / "engine-output.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=to_environment(config), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        stop_process(process)


async def _wait_until_ready(
    engine: EngineLink, process: subprocess.Popen[bytes] | None, config: Config, wait: float
) -> EngineInfo:
    """Wait until the engine answers. Raises `EngineError` with the last log lines if its process ends first."""
    ready = asyncio.create_task(
        engine.wait_ready(wait if process is None else max(wait, config.run.startup_timeout))
    )
    try:
        while not ready.done():
            if process is not None and process.poll() is not None:
                lines = (
                    (config.logs_dir / "engine-output.log")
                    .read_text(errors="replace")
                    .splitlines()[-12:]
                )
                raise EngineError(
                    "the engine did not start:\n" + "\n".join(f"    {line}" for line in lines)
                )
            await asyncio.wait({ready}, timeout=_POLL_INTERVAL)
        return ready.result()
    finally:
        ready.cancel()


def result_table(rows: Sequence[tuple[str, str, CheckResult]]) -> Table:
    """Return a table of checks: name, expected and observed values."""
    table = Table(box=None, padding=(0, 2))
    for column in ("", "check", "expected", "observed"):
        table.add_column(column, overflow="fold")
    for name, expected, came in rows:
        mark = Text("passed", style="green") if came.passed else Text("FAILED", style="red")
        table.add_row(mark, name, expected, Text(came.words))
    return table
