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
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openclaw_rl.doctor import random_adapter
from openclaw_rl.engines import registry
from openclaw_rl.engines.base import EngineLink, Info
from openclaw_rl.engines.remote import server_process
from openclaw_rl.errors import EngineError, EngineGone, OpenClawError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config, to_environment
from openclaw_rl.supervisor.supervisor import prepare_home
from openclaw_rl.types import Generation, Ids, PolicyRef, Sampling

TOKENS = 64  # of one reply, if the context is long enough
STREAMS = 8  # concurrent replies during the version swap
WARM_UPS = 6  # a server must stream token by token within this many replies
START = 900.0  # seconds for the server to load its model
_TOLD_APART = 0.002  # nats; smallest difference between the log-probabilities of two versions
_PAUSE = 0.2
_QUESTION = "Tell me a long story about a lighthouse and the sea."
BASE = PolicyRef(version=0, path=None, digest="")


@dataclass(frozen=True, slots=True)
class Came:
    """Result of a check: the observed values, and whether they are as expected."""

    words: str
    holds: bool


@dataclass(slots=True)
class Reply:
    """One reply with the arrival times of its chunks, in seconds."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    finish: str | None = None

    @property
    def longest_gap(self) -> float:
        return max((b - a for a, b in zip(self.at, self.at[1:], strict=False)), default=0.0)


@dataclass(slots=True)
class Trial:
    """Engine, prompt and adapters of the checks. `max_mean_difference`: of log-probabilities, in nats."""

    engine: EngineLink
    info: Info
    prompt: Ids
    adapters: Sequence[PolicyRef]
    bound: float

    @property
    def tokens(self) -> int:
        return max(4, min(TOKENS, (self.info.context_length - len(self.prompt)) // 2))

    async def reply(
        self, version: int = 0, *, prompt: Ids | None = None, stop: Sequence[int] = (), **sampling: float
    ) -> Reply:
        """Return a whole reply, of `reply_tokens` tokens by default."""
        reply = Reply()
        async for _ in self.pieces(reply, version, prompt=prompt, stop=stop, **sampling):
            pass
        return reply

    async def pieces(
        self, into: Reply, version: int, *, prompt: Ids | None = None, stop: Sequence[int] = (), **sampling: float
    ) -> AsyncIterator[None]:
        """Generate a reply into `into`; yield after each chunk."""
        wanted = Sampling(
            temperature=sampling.get("temperature", 1.0), max_tokens=int(sampling.get("max_tokens", self.tokens))
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
            into.at.append(time.monotonic())
            into.finish = chunk.finish
            yield

    async def gaps(self, reply: Reply, version: int, temperature: float = 1.0) -> tuple[float, float]:
        """Return mean and maximum of |sampled - scored| log-probability, in nats."""
        ids = np.array(reply.ids, dtype=np.int32)
        scored = await self.engine.score(
            version=version, prompt_ids=self.prompt, response_ids=ids, temperature=temperature
        )
        gaps = np.abs(np.asarray(reply.logprobs) - scored)
        return float(gaps.mean()), float(gaps.max())

    async def load(self, *adapters: int) -> float:
        """Load the base and these adapters (1, 2, ...); return the seconds it took."""
        began = time.monotonic()
        await self.engine.load([BASE, *(self.adapters[i - 1] for i in adapters)])
        return time.monotonic() - began


Check = tuple[str, str, Callable[[Trial], Awaitable[Came]]]
"""(name, expected result as text, the check)"""


async def _streams(trial: Trial) -> Came:
    """Check up to `MAX_WARM_UPS` replies, because a server may send its first replies in one chunk."""
    came, tried = await _streamed(trial), 1
    while not came.holds and tried < WARM_UPS:
        came, tried = await _streamed(trial), tried + 1
    return came if tried == 1 else replace(came, words=f"{came.words} (reply {tried} since the start)")


async def _streamed(trial: Trial) -> Came:
    began = time.monotonic()
    reply = await trial.reply()
    first, took = reply.at[0] - began, reply.at[-1] - began
    words = (
        f"{len(reply.ids)} tokens in {len(reply.at)} chunks, the first after {first * 1000:.0f} ms, "
        f"{len(reply.ids) / took:.0f} tokens/s, ended by {reply.finish}"
    )
    return Came(words, (len(reply.ids), reply.finish) == (trial.tokens, "length") and 8 * len(reply.at) > trial.tokens)


async def _reads_ids(trial: Trial) -> Came:
    whole = await trial.reply(temperature=0.0)
    half = len(whole.ids) // 2
    begun = np.array([*trial.prompt, *whole.ids[:half]], dtype=np.int32)
    rest = await trial.reply(prompt=begun, temperature=0.0, max_tokens=len(whole.ids) - half)
    same = next((n for n, pair in enumerate(zip(whole.ids[half:], rest.ids, strict=True)) if pair[0] != pair[1]), None)
    if same is None:
        return Came(f"the same {len(rest.ids)} tokens", True)
    apart = abs(whole.logprobs[half + same] - rest.logprobs[same])
    words = f"differs after {same} of {len(rest.ids)} tokens, where log-probabilities differ by {apart:.2g}"
    return Came(words, apart <= trial.bound)


def _scores(temperature: float, tokens: int) -> Callable[[Trial], Awaitable[Came]]:
    async def check(trial: Trial) -> Came:
        count = min(tokens, trial.tokens)
        reply = await trial.reply(temperature=temperature, max_tokens=count)
        mean, most = await trial.gaps(reply, 0, temperature)
        return Came(f"mean {mean:.2g}, largest {most:.2g} over {count} tokens", mean <= trial.bound)

    return check


async def _stops(trial: Trial) -> Came:
    whole = await trial.reply(temperature=0.0)
    stop = next((i for n, i in enumerate(whole.ids) if n and i not in whole.ids[:n]), None)
    if stop is None:
        return Came("the model repeats one token: the stop cannot be checked", False)
    expected = whole.ids[: whole.ids.index(stop) + 1]
    reply = await trial.reply(temperature=0.0, stop=(stop,))
    words = f"{len(reply.ids)} of {len(whole.ids)} tokens, ended by {reply.finish}"
    return Came(words, (reply.finish, reply.ids[-1]) == ("stop", stop) and len(reply.ids) <= len(expected))


async def _cancels(trial: Trial) -> Came:
    reply = Reply()
    stream = trial.pieces(reply, 0)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    began = time.monotonic()
    while (left := (await trial.engine.info()).running) and time.monotonic() - began < 5:  # noqa: ASYNC110 (its count)
        await asyncio.sleep(0.01)
    took = time.monotonic() - began
    again = await trial.reply(max_tokens=4)
    words = f"{left} running {took * 1000:.0f} ms later; next reply: {len(again.ids)} tokens"
    return Came(words, not left and len(again.ids) == 4)


async def _refuses(trial: Trial) -> Came:
    try:
        await trial.reply(9999)
    except EngineGone:
        raise
    except EngineError as error:
        return Came(f"refused: {error}", "9999" in str(error))
    return Came("it answered", False)


async def _side_by_side(trial: Trial) -> Came:
    took = await trial.load(1, 2)
    versions = (0, 1, 2)
    replies = await asyncio.gather(*(trial.reply(v) for v in versions))
    own = [(await trial.gaps(r, v))[0] for v, r in zip(versions, replies, strict=True)]
    others = [(await trial.gaps(r, (v + 1) % 3))[0] for v, r in zip(versions, replies, strict=True)]
    words = (
        f"own at most {max(own):.2g}, others at least {min(others):.2g}; two adapters loaded in {took * 1000:.0f} ms"
    )
    return Came(words, max(own) <= trial.bound and min(others) > max(4 * max(own), _TOLD_APART))


async def _swaps(trial: Trial) -> Came:
    await trial.load(1)
    replies = [Reply() for _ in range(STREAMS)]
    begun = [asyncio.Event() for _ in replies]

    async def stream(reply: Reply, started: asyncio.Event) -> None:
        async for _ in trial.pieces(reply, 1):
            started.set()

    tasks = [asyncio.create_task(stream(*pair)) for pair in zip(replies, begun, strict=True)]
    try:
        await asyncio.gather(*(event.wait() for event in begun))
        took = await trial.load(2, 3)
        running = sum(not task.done() for task in tasks)
        fresh = await trial.reply(3, max_tokens=4)
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    await trial.load(1)
    mean = max([(await trial.gaps(reply, 1))[0] for reply in replies])
    whole = sum(len(reply.ids) == trial.tokens for reply in replies)
    words = (
        f"{whole} of {STREAMS} replies complete ({running} were running), "
        f"mean difference {mean:.2g}, longest gap {max(r.longest_gap for r in replies) * 1000:.0f} ms; "
        f"loaded in {took * 1000:.0f} ms"
    )
    return Came(words, whole == STREAMS and mean <= trial.bound and len(fresh.ids) == 4)


def _checks(trial: Trial) -> list[Check]:
    bound = f"mean difference at most {trial.bound:g} nats"
    checks: list[Check] = [
        ("streaming", f"{trial.tokens} tokens, one by one", _streams),
        ("exact ids", "the first half of a reply as prompt gives the second half", _reads_ids),
        ("scored as sampled, T 1", bound, _scores(1.0, trial.tokens)),
        ("scored as sampled, T 0.7", bound, _scores(0.7, 12)),
        ("stop", "ends with the stop token", _stops),
        ("cancellation", "no sequence stays in the batch", _cancels),
        ("unknown version", "refused", _refuses),
    ]
    if trial.adapters:
        checks += [
            ("three versions side by side", f"own {bound}, others more than four times that", _side_by_side),
            ("swap under load", f"{STREAMS} complete replies on the old version", _swaps),
        ]
    return checks


# --------------------------------------------------------------------------------------------------- running the checks


def examine(config: Config, *, console: Console | None = None, wait: float = 120.0) -> bool:
    """Run all checks on the engine of `config`, whose home is temporary. Returns whether every check passes.

    `wait`: timeout of one check in seconds.
    """
    console = console or Console()
    console.print(f"[bold]openclaw-rl doctor --engine {config.engine.backend}[/]  ({config.model.path})")
    try:
        registry.check(config, wait=wait)
        with tempfile.TemporaryDirectory(prefix="openclaw-rl-trial-") as folder:
            rows = asyncio.run(_examined(config, Path(folder), console, wait))
    except OpenClawError as error:
        console.print(Text(f"  failed  {error}", style="red"))
        _keep_logs(config, console)
        return False
    holds = all(came.holds for _, _, came in rows)
    console.print(_table(rows))
    console.print("  every check passed." if holds else "  [red]some checks failed[/]: see above.")
    if not holds:
        _keep_logs(config, console)
    return holds


def _keep_logs(config: Config, console: Console) -> None:
    """Copy the logs to one file, because the temporary home is deleted."""
    logs = sorted(config.logs_dir.glob("*.log"))
    if not logs:
        return
    with tempfile.NamedTemporaryFile("w", prefix="openclaw-rl-doctor-", suffix=".log", delete=False) as file:
        for log in logs:
            file.write(f"==> {log.name}\n{log.read_text(errors='replace')}\n")
    console.print(f"  the engine's logs: {file.name}", soft_wrap=True)


async def _examined(config: Config, folder: Path, console: Console, wait: float) -> list[tuple[str, str, Came]]:
    files = ModelFiles.of(config.model)
    prompt = Renderer(files).render([{"role": "user", "content": _QUESTION}]).prompt_ids
    rank = min(config.train.lora.rank, 8)
    adapters = [random_adapter.write(files.weights, folder / str(n), version=n, rank=rank) for n in (1, 2, 3)]
    exact = server_process.dtype(config.model.dtype, str(files.folder)) == "float32"
    with _room(config) as room:
        engine = registry.connect(config)
        try:
            info = await _ready(engine, room, config, wait)
            console.print(
                f"  answers: {info.model}, context {info.context_length} tokens, device {info.device}, "
                f"grammars {'yes' if info.grammar else 'no'}",
                highlight=False,
            )
            trial = Trial(engine, info, prompt, [a for a in adapters if a is not None], 1e-3 if exact else 0.05)
            rows = [(name, expected, await _tried(check, trial, wait)) for name, expected, check in _checks(trial)]
            with contextlib.suppress(EngineError):  # a failure to load was reported above
                await asyncio.wait_for(engine.load([BASE]), wait)
        finally:
            await engine.close()
    if not trial.adapters:
        words = f"the weights of {files.folder} have no {' and '.join(random_adapter.TARGETS)} to adapt: not checked"
        rows.append(("versions", "two adapters side by side", Came(words, False)))
    return rows


async def _tried(check: Callable[[Trial], Awaitable[Came]], trial: Trial, wait: float) -> Came:
    try:
        async with asyncio.timeout(wait):
            return await check(trial)
    except TimeoutError:
        return Came(f"not finished within {wait:g} s (--wait)", False)
    except OpenClawError as error:
        return Came(str(error), False)


@contextlib.contextmanager
def _room(config: Config) -> Iterator[subprocess.Popen[bytes] | None]:
    """Start the engine process as `up` does, and stop it at the end; None if `engine.url` is set."""
    if config.engine.url is not None:
        yield None
        return
    prepare_home(config)
    command = [sys.executable, "-m", "openclaw_rl", "room", "engine"]
    with (config.logs_dir / "room.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=to_environment(config), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _ready(engine: EngineLink, room: subprocess.Popen[bytes] | None, config: Config, wait: float) -> Info:
    """Wait until the engine answers. Raises `EngineError` with the last log lines if its process ends first."""
    ready = asyncio.create_task(engine.wait_ready(wait if room is None else max(wait, START)))
    try:
        while not ready.done():
            if room is not None and room.poll() is not None:
                lines = (config.logs_dir / "room.log").read_text(errors="replace").splitlines()[-12:]
                raise EngineError("the engine did not start:\n" + "\n".join(f"    {line}" for line in lines))
            await asyncio.wait({ready}, timeout=_PAUSE)
        return ready.result()
    finally:
        ready.cancel()


def _table(rows: Sequence[tuple[str, str, Came]]) -> Table:
    table = Table(box=None, padding=(0, 2))
    for column in ("", "check", "expected", "observed"):
        table.add_column(column, overflow="fold")
    for name, expected, came in rows:
        mark = Text("passed", style="green") if came.holds else Text("FAILED", style="red")
        table.add_row(mark, name, expected, Text(came.words))
    return table
