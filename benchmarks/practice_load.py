"""What people notice of practice: token gaps and times to first token with it, without it, and without training.

    python -m benchmarks.practice_load [--rounds 5] [--seconds 60] [--clients 8] [--pause 4] [--arrivals 100]

Each round runs the real system (the starter, simulated people) three times on copies of one home that has a lesson:
once it practises the lesson all the time; once practice is off, and the trainer only learns from what people say; once
only engine and gateway run. Practice generates replies only while nobody waits for one, so people pause between their
messages. In the run without training, requests also arrive in the middle of a reply of practice, and in turns with
them, requests arrive while nothing runs.
Writes benchmarks/results/practice_load.md; ends with 1 when a bound does not hold, or when there was no practice.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.provenance import measured_at
from benchmarks.servers import RUNS
from benchmarks.streams import Heard, Stream, connect, request_reply, user
from benchmarks.swaps import cpu_seconds, trainer_pid
from sqlalchemy import select

from openclaw_rl.evals.toy_world import draw_question
from openclaw_rl.gates.reply_source import GatewayReplySource, RepliesDelayed, ReplyOrder
from openclaw_rl.settings.load import Config
from openclaw_rl.store import exchanges, schema
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import Ids, Kind

RESULTS = Path(__file__).parent / "results" / "practice_load.md"
# Bound of practice against no practice, of gaps and of times to first token.
P99_RATIO = 1.3
# Of practice while a run is measured.
MIN_STEPS = 2
WISH = "Shorter, please."
# Seconds.
ARM_WITHIN = 300.0
WARM_UP_SECONDS = 5.0
# Replies of practice, as many as `gate.workers`.
AT_ONCE = 2
# Seconds from the begin of a reply of practice until a request arrives.
ARRIVAL_DELAY = 0.010, 0.080
IDLE_SECONDS = 0.1  # before each request that is measured by itself
# Small steps keep the policy, and so the length of its replies, the same in all runs. No turn grows too old.
SETTINGS: dict[str, Any] = {
    "train.batch.min_turns": 8,
    "train.batch.max_turns": 8,
    "train.optimizer.learning_rate": 1e-6,
    "train.safety.max_staleness": 100_000,
    # The lesson is never learned.
    "practice.max_divergence": 1e-9,
    "practice.step_limit": 1_000_000,
    "practice.seconds_per_hour": 3600,
    "run.log_level": "warning",
}
ARMS = {
    "practice": {"practice.enabled": True},
    "no practice": {"practice.enabled": False},
    "no training": {"practice.enabled": False},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a trainer has done so far: replies of practice, versions that used them, and other versions."""

    replies: int = 0
    steps: int = 0
    others: int = 0

    def since(self, before: Work) -> Work:
        return Work(
            replies=self.replies - before.replies,
            steps=self.steps - before.steps,
            others=self.others - before.others,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Seconds to the first token, of requests in the middle of a reply of practice and of those that are alone."""

    during: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # between two tokens of those that are alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run. Times in seconds."""

    work: Work
    trainer_cpu: float  # of the trainer's process, per second of wall time
    heard: Heard
    arrivals: Arrivals | None = None

    def gap_ms(self, percentile: float) -> float:
        return _ms(self.heard.gaps, percentile)

    def first_ms(self, percentile: float) -> float:
        return _ms(self.heard.first_tokens, percentile)


def _ms(seconds: Sequence[float], percentile: float) -> float:
    return float(np.percentile(seconds, percentile)) * 1e3 if seconds else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.practice_load", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--pause", type=float, default=4.0, help="mean seconds of a client before each message"
    )
    parser.add_argument(
        "--arrivals", type=int, default=100, help="requests of a round that arrive during practice"
    )
    options = parser.parse_args()
    rounds: list[dict[str, Arm]] = []
    with home_with_lesson() as home:
        for number in range(options.rounds):
            order = list(ARMS) if number % 2 == 0 else list(reversed(ARMS))
            arms = {name: run_arm(name, home, options) for name in order}
            rounds.append(arms)
            print(*_rows(number + 1, arms), sep="\n", file=sys.stderr, flush=True)
    text, good = report(rounds, options)
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    sys.exit(0 if good else 1)


@contextmanager
def home_with_lesson() -> Iterator[Path]:
    """Yield a home in which a person has talked, and asked for shorter answers. It is removed at exit."""
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="p-", dir=RUNS) as folder:
        home = Path(folder) / "home"
        config = scratch_config(home, SETTINGS)
        with (
            SubprocessSystem(config) as system,
            Store.open(config.store_path, create=False) as store,
        ):
            for seed in range(16):
                text = draw_question("asked", random.Random(seed)).text
                reply = _say(system, [{"role": "user", "content": text}])
                given = {"score": -1, "correction": WISH} if seed == 0 else {"score": 1}
                post_json(system, "/v1/feedback", {"id": reply["id"], **given})
            _wait_for(lambda: _lesson_ids(store))
            with store.write() as conn:
                for id_ in _lesson_ids(store):
                    # What the people of this benchmark say contradicts it.
                    lessons.set_pinned(conn, id_, True)
            system.wait_until_settled()
        yield home


def _say(system: SubprocessSystem, messages: list[dict[str, str]]) -> dict[str, Any]:
    return post_json(
        system, "/v1/chat/completions", {"model": system.config.model.name, "messages": messages}
    )


def _lesson_ids(store: Store) -> list[str]:
    with store.read() as conn:
        return [lesson.id for lesson in lessons.list_lessons(conn)]


def _wait_for(condition: Callable[[], object], within: float = ARM_WITHIN) -> None:
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(
                f"the system was not ready to be measured within {within:g} s; see `up.log`"
            )
        time.sleep(0.1)


def run_arm(name: str, prepared: Path, options: argparse.Namespace) -> Arm:
    """Measure a system with the arm's settings on a copy of the home."""
    with tempfile.TemporaryDirectory(prefix="p-", dir=RUNS) as folder:
        home = Path(folder) / "home"
        shutil.copytree(
            prepared, home, ignore=shutil.ignore_patterns("*.lock", "gateway.json", "*.sock")
        )
        return asyncio.run(_measure(name, scratch_config(home, SETTINGS | ARMS[name]), options))


async def _measure(name: str, config: Config, options: argparse.Namespace) -> Arm:
    has_trainer = name != "no training"
    with (
        SubprocessSystem(config, command="up" if has_trainer else "serve") as system,
        Store.open(config.store_path, create=False) as store,
    ):
        heard = Heard()
        stop = asyncio.Event()
        port = config.serve.port
        key = system.api_key
        crowd = [
            asyncio.create_task(user(port, key, seed, heard, stop, options.pause))
            for seed in range(options.clients)
        ]
        try:
            first = _read_work(store)
            if name == "practice":
                await asyncio.to_thread(_wait_for, lambda: _read_work(store).since(first).steps > 0)
            await asyncio.sleep(WARM_UP_SECONDS)
            pid = trainer_pid(store) if has_trainer else os.getpid()
            with no_garbage_collection():
                before = _read_work(store)
                busy = cpu_seconds(pid)
                start = time.perf_counter()
                heard.listening = True
                await asyncio.sleep(options.seconds)
                heard.listening = False
                work = _read_work(store).since(before)
                busy = cpu_seconds(pid) - busy
                seconds = time.perf_counter() - start
        finally:
            stop.set()
            await asyncio.gather(*crowd)
        arrivals = (
            None if has_trainer else await measure_arrivals(config, store, key, options.arrivals)
        )
        return Arm(
            work=work,
            trainer_cpu=busy / seconds if has_trainer else 0.0,
            heard=heard,
            arrivals=arrivals,
        )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage while the block runs: a pause of the clients would count as the system's."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _read_work(store: Store) -> Work:
    with store.read() as conn:
        is_practice = schema.turns.c.kind == Kind.PRACTICE.value
        users = select(schema.uses.c.policy).join(
            schema.turns, schema.turns.c.id == schema.uses.c.turn
        )
        steps = set(conn.execute(users.where(is_practice).distinct()).scalars())
        all_steps = set(conn.execute(users.distinct()).scalars())
        return Work(
            replies=practice_turns.count_all(conn), steps=len(steps), others=len(all_steps - steps)
        )


async def measure_arrivals(config: Config, store: Store, key: str, count: int) -> Arrivals:
    """Send requests that arrive in the middle of replies of practice, in turns with requests while nothing runs.

    The replies of practice are requested as the trainer requests them. They are given up when a person's request comes,
    which is how this knows that one came in their middle.
    """
    source = GatewayReplySource(config.home_dir, store, AT_ONCE)
    head, prompt = _newest_prompt(store)
    stream = await connect(config.serve.port)
    port = config.serve.port
    rng = random.Random(0)
    found = Arrivals()
    tries = 0
    while len(found.during) < count:
        if (tries := tries + 1) > 10 * count:
            raise RuntimeError(
                f"{len(found.during)} of {tries} requests arrived in the middle of a reply of practice"
            )
        words = draw_question("asked", rng).text
        practising = asyncio.create_task(
            asyncio.to_thread(source.generate, _orders(head, prompt, tries))
        )
        await asyncio.sleep(rng.uniform(*ARRIVAL_DELAY))
        during = await _ask(stream, port, key, words)
        try:
            await practising
            # It had ended before the request came.
            continue
        except RepliesDelayed:
            found.during.extend(during.first_tokens)
        await asyncio.sleep(IDLE_SECONDS)
        alone = await _ask(stream, port, key, words)
        found.alone.extend(alone.first_tokens)
        found.gaps.extend(alone.gaps)
        await asyncio.sleep(IDLE_SECONDS)
    stream.close()
    return found


async def _ask(stream: Stream, port: int, key: str, words: str) -> Heard:
    heard = Heard(listening=True)
    await request_reply(stream, port, key, [{"role": "user", "content": words}], heard)
    return heard


def _orders(head: int, prompt: Ids, seed: int) -> list[ReplyOrder]:
    """As a round of practice has them: one of the base, one of the head."""
    return [
        ReplyOrder(
            version=version, prompt_ids=prompt.tolist(), max_tokens=256, temperature=1.0, seed=seed
        )
        for version in (0, head)
    ]


def _newest_prompt(store: Store) -> tuple[int, Ids]:
    with store.read() as conn:
        head = policies.head(conn)
        (lesson,) = lessons.list_lessons(conn)
        (id_,) = practice_turns.newest_prompts(conn, lesson, identity=head.identity, limit=1)
        exchange = exchanges.get(conn, id_)
    assert exchange is not None
    return head.version, exchange.request.prompt_ids


def _rows(number: int, arms: dict[str, Arm]) -> list[str]:
    rows = []
    for name in ARMS:
        arm = arms[name]
        cells = [
            str(number),
            name,
            str(arm.work.replies),
            str(arm.work.steps),
            str(arm.work.others),
        ]
        cells += [f"{arm.trainer_cpu:.2f}", str(arm.heard.replies), str(len(arm.heard.gaps))]
        cells += [f"{arm.gap_ms(p):.1f}" for p in (50, 95, 99, 99.9)]
        cells += [f"{arm.first_ms(p):.1f}" for p in (50, 99)]
        rows.append(f"| {' | '.join([*cells, str(len(arm.heard.failures))])} |")
    return rows


def _ratios(
    rounds: Sequence[dict[str, Arm]], other: str, what: str, percentile: float
) -> list[float]:
    measure = Arm.gap_ms if what == "gap" else Arm.first_ms
    return [
        measure(arms["practice"], percentile) / measure(arms[other], percentile) for arms in rounds
    ]


def _ratio_row(rounds: Sequence[dict[str, Arm]], other: str, what: str, percentile: float) -> str:
    ratios = _ratios(rounds, other, what, percentile)
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"| {what} p{percentile:g} | {other} | {statistics.median(ratios):.2f} | {each} |"


def report(rounds: Sequence[dict[str, Arm]], options: argparse.Namespace) -> tuple[str, bool]:
    """The page, and whether the bounds hold."""
    heard = [arm.heard for arms in rounds for arm in arms.values()]
    failures = [failure for one in heard for failure in one.failures]
    least = min(arms["practice"].work.steps for arms in rounds)
    found = [arms["no training"].arrivals or Arrivals() for arms in rounds]
    during, alone, gaps = (
        [t for one in found for t in getattr(one, name)] for name in ("during", "alone", "gaps")
    )
    interval = statistics.mean(gaps) * 1e3
    more = [_ms(during, p) - _ms(alone, p) for p in (50, 95)]
    p99 = {
        what: statistics.median(_ratios(rounds, "no practice", what, 99))
        for what in ("gap", "first token")
    }
    good = (
        all(ratio <= P99_RATIO for ratio in p99.values()) and more[0] <= interval and not failures
    )
    good = good and least >= MIN_STEPS
    columns = [
        "round",
        "run",
        "replies of practice",
        "steps of practice",
        "other steps",
        "trainer CPU",
        "replies",
    ]
    columns += [
        "gaps",
        *(f"gap p{p} ms" for p in (50, 95, 99, 99.9)),
        "first token p50 ms",
        "p99 ms",
        "errors",
    ]
    compared = [(what, p) for what in ("gap", "first token") for p in (50, 99)]
    lines = [
        "# Practice beside people",
        "",
        f"{measured_at()}, {os.cpu_count()} cores. `python -m benchmarks.practice_load`: {options.clients} "
        f"clients stream from the starter policy, each with a pause of {options.pause:g} s in the mean before each "
        f"message; {options.seconds:g} s a run. `practice`: a lesson is practised all the time, and its versions are "
        "swapped in. `no practice`: the trainer only learns from what people say. `no training`: only engine and "
        "gateway run. Gaps are milliseconds between two tokens of one reply at the client. Clients, engine, gateway "
        "and trainer share the machine's cores.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(row for number, arms in enumerate(rounds, 1) for row in _rows(number, arms)),
        "",
        "| of replies | practice compared with | ratio, median | ratio of each round |",
        "|---|---|---|---|",
        *(
            _ratio_row(rounds, other, what, p)
            for other in ("no practice", "no training")
            for what, p in compared
        ),
        "",
        f"A request in the middle of replies of practice ({len(during)} requests, in turns with as many while nothing "
        "ran), in ms:",
        "",
        "| | p50 | p95 | p99 |",
        "|---|---|---|---|",
        *(
            f"| first token, {name} | {' | '.join(f'{_ms(times, p):.1f}' for p in (50, 95, 99))} |"
            for name, times in (("in the middle of practice", during), ("alone", alone))
        ),
        f"| token interval, alone (mean: {interval:.1f}) | {' | '.join(f'{_ms(gaps, p):.1f}' for p in (50, 95, 99))} |",
        "",
        f"Practice took at least {least} steps in each run (bound: {MIN_STEPS}). Bounds, of practice against no "
        f"practice: p99 of gaps and of times to first token at most {P99_RATIO:g} times in the median round "
        f"({p99['gap']:.2f} and {p99['first token']:.2f}). A request in the middle of practice waits for at most one "
        f"mean token interval more in the median: {more[0]:+.1f} ms, of {interval:.1f} ms (p95: {more[1]:+.1f} ms). No "
        f"errors ({len(failures)}). **{'Holds' if good else 'DOES NOT HOLD'}**.",
        *(f"- {failure}" for failure in failures[:10]),
    ]
    return "\n".join(lines) + "\n", good


if __name__ == "__main__":
    main()
