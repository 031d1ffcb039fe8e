"""Wall time of tool episodes against the engine's own time: `python -m benchmarks.tool_episodes [--episodes 64]`.

Episodes of three replies run in parallel through the gateway. Each reply calls a tool, in a box of its episode.
Then a fresh engine generates the same replies again: the same prompts and formats, directly over its socket, each
as soon as the one before it in its episode is complete. The calls are forced, because the starter cannot call tools;
such turns are not trained on. The table of processor time says what shares the cores with the engine. Writes
benchmarks/results/tool_episodes.md; ends with 1 above the bound. Without bubblewrap it prints why nothing was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from benchmarks.provenance import measured_at

from openclaw_rl.engines.embedded.client import EngineClient
from openclaw_rl.environments.episode_client import EpisodeClient, open_session
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.sources.tools.tool_config import load_tool_config
from openclaw_rl.environments.sources.tools.tool_source import ToolRunner, ToolSetup, ToolSource
from openclaw_rl.environments.types import EnvironmentTask, PlayLimits, PlayOutcome
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.bubblewrap_args import find_bubblewrap
from openclaw_rl.store import exchanges
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import Exchange, Generation

RESULTS = Path(__file__).parent / "results" / "tool_episodes.md"
BOUND = 1.2
REPLIES = 3
PYTHON = "total = 0\ndef add(number):\n    global total\n    total += number\n    return {'total': total}\n"
PARAMETERS = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["number"],
    "additionalProperties": False,
}
CONFIG = {
    "tools": [
        {
            "name": "add",
            "description": "Add to the total.",
            "parameters": PARAMETERS,
            "python": PYTHON,
        }
    ],
    "request": {"tool_choice": "required", "max_tokens": 64},
}
CALL = {"tool": "add", "alternatives": {"number": list(range(100))}}
TASK = {
    "prompt": "Add some numbers.",
    "check": {"kind": "calls", "value": [CALL] * 3, "extra": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`seconds`: wall time. `replies`, `tokens`: that were generated. `cpu_seconds`: processor time, by process."""

    seconds: float
    replies: int
    tokens: int
    cpu_seconds: Mapping[str, float]


def cpu_seconds() -> dict[str, float]:
    """Return the processor time so far of the engine, of the gateway, of this process, and of all others.

    Boxes are among the others, because the system does not add up the time of processes that end with their namespace.
    """
    workers = dict.fromkeys(("engine", "gateway"), 0.0)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            times = process.cpu_times()
            for name in workers:
                if "worker" in command and command[command.index("worker") + 1] == name:
                    workers[name] += times.user + times.system
    own = resource.getrusage(resource.RUSAGE_SELF)
    all_times = psutil.cpu_times()
    known = workers | {"runner": own.ru_utime + own.ru_stime}
    return known | {
        "others": all_times.user + all_times.nice + all_times.system - sum(known.values())
    }


def spent_since(before: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - before[name] for name, seconds in cpu_seconds().items()}


def make_runner(folder: Path) -> tuple[ToolRunner, EnvironmentTask]:
    (folder / "tools.json").write_text(json.dumps(CONFIG))
    (folder / "tasks.jsonl").write_text(json.dumps(TASK))
    setup = ToolSetup(
        config=load_tool_config(folder / "tools.json"),
        folder=folder,
        tasks=folder / "tasks.jsonl",
        python=sys.executable,
        search_path="/usr/bin:/bin",
    )
    return ToolRunner(setup, "chat"), ToolSource(setup).load_tasks()[0]


async def play_episodes(
    system: SubprocessSystem, folder: Path, count: int
) -> tuple[float, Mapping[str, float], Sequence[PlayOutcome]]:
    """Play episodes at once, as `env run` does. The first one, which is not counted, loads what is loaded once.

    Return the wall time, the processor time by process, and the outcomes.
    """
    runner, task = make_runner(folder)
    async with open_session(system.api_key) as http:
        client = EpisodeClient(http, system.base_url)

        async def play_one(number: int) -> PlayOutcome:
            name = f"bench-{number}"
            body = {
                "task": "add",
                "group": {"id": f"g{number // 8}", "size": 8},
                "max_steps": REPLIES,
            }
            ticket = await client.open_episode(name, body)
            outcome = await runner.play_episode(
                task, ticket, new_scratch_folder(name), PlayLimits(seconds=300)
            )
            await client.end_episode(name, outcome)
            return outcome

        try:
            await play_one(count)
            began = time.perf_counter()
            used = cpu_seconds()
            outcomes = await asyncio.gather(*(play_one(number) for number in range(count)))
            return time.perf_counter() - began, spent_since(used), outcomes
        finally:
            await runner.close_runner()


async def list_exchanges(system: SubprocessSystem, count: int) -> list[list[Exchange]]:
    """Return the replies of each episode, in order."""
    async with open_session(system.api_key) as http:
        client = EpisodeClient(http, system.base_url)
        entries = [await client.get_episode(f"bench-{number}") for number in range(count)]
    ids = [[turn["id"] for turn in entry["turns"]] for entry in entries]
    with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
        found = exchanges.get_many(conn, [one for chain in ids for one in chain])
    return [[found[one] for one in chain] for chain in ids]


async def replay_replies(
    system: SubprocessSystem, chains: Sequence[Sequence[Exchange]]
) -> Measured:
    """Generate the same replies with an engine that has seen none of them."""
    engine = EngineClient(system.config.engine_socket)
    await engine.wait_ready(60)

    stop = tuple(
        {int(e.reply.response_ids[-1]) for chain in chains for e in chain if e.reply is not None}
    )

    async def generate(name: str, exchange: Exchange) -> int:
        length = len(exchange.reply.response_ids) if exchange.reply is not None else 0
        request = exchange.request
        sampling = replace(
            request.sampling,
            max_tokens=length,
            min_tokens=0 if request.sampling.grammar else length,
        )
        order = Generation(
            id=name,
            version=0,
            prompt_ids=request.prompt_ids,
            sampling=sampling,
            stop_token_ids=stop,
        )
        return sum([len(chunk.token_ids) async for chunk in engine.generate(order)])

    async def generate_chain(number: int) -> list[int]:
        return [
            await generate(f"r{number}-{n}", exchange) for n, exchange in enumerate(chains[number])
        ]

    try:
        await generate("warm-up", chains[-1][0])
        began = time.perf_counter()
        used = cpu_seconds()
        lengths = await asyncio.gather(*(generate_chain(number) for number in range(len(chains))))
        seconds = time.perf_counter() - began
        used = spent_since(used)
    finally:
        await engine.close()
    return Measured(
        seconds=seconds,
        replies=sum(map(len, lengths)),
        tokens=sum(map(sum, lengths)),
        cpu_seconds=used,
    )


def measure_all(count: int) -> tuple[Measured, Measured]:
    with tempfile.TemporaryDirectory(prefix="tool-episodes-") as name:
        folder = Path(name)
        settings = {"engine.max_batch": 64}
        with SubprocessSystem(scratch_config(folder / "a", settings), command="serve") as system:
            seconds, used, outcomes = asyncio.run(play_episodes(system, folder, count))
            chains = asyncio.run(list_exchanges(system, count))
        bad = [
            outcome.reason
            for outcome in outcomes
            if outcome.status != "done" or outcome.reward != 1.0
        ]
        if bad:
            sys.exit(f"{len(bad)} of {count} episodes were void or without a call: {bad[0]}")
        tokens = sum(
            len(e.reply.response_ids) for chain in chains for e in chain if e.reply is not None
        )
        played = Measured(
            seconds=seconds, replies=sum(map(len, chains)), tokens=tokens, cpu_seconds=used
        )
        with SubprocessSystem(scratch_config(folder / "b", settings), command="serve") as system:
            alone = asyncio.run(replay_replies(system, chains))
    return played, alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    try:
        find_bubblewrap()
    except SandboxError as error:
        print(f"tool episodes are not measured: {error}")
        return
    rounds = [measure_all(options.episodes) for _ in range(options.rounds)]
    played = min((one for one, _ in rounds), key=lambda m: m.seconds / m.tokens)
    alone = min((one for _, one in rounds), key=lambda m: m.seconds / m.tokens)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ratio = (played.seconds / played.tokens) / (alone.seconds / alone.tokens)
    lines = [
        "# Tool episodes against the engine alone",
        "",
        f"{measured_at()}, 2 cores, no GPU. `python -m benchmarks.tool_episodes`: {options.episodes} "
        f"episodes of {REPLIES} replies in parallel, each with calls of a Python tool in a box of its own; starter "
        "policy, embedded engine. Then the same prompts and formats on a fresh engine, without gateway and tools. "
        f"The fastest of {options.rounds} rounds of each; load of the machine at the end: {os.getloadavg()[1]:.1f}.",
        "",
        "Processor time in seconds. *Runner*: the process that plays the episodes, or asks the engine. *Others*: all "
        "other processes of the machine, boxes and their tools among them.",
        "",
        "| | seconds | replies | tokens | tokens/s | engine | gateway | runner | others |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {name} | {m.seconds:.1f} | {m.replies} | {m.tokens} | {m.tokens / m.seconds:.0f} "
            + "".join(f"| {seconds:.1f} " for seconds in m.cpu_seconds.values())
            + "|"
            for name, m in (("episodes", played), ("engine alone", alone))
        ),
        "",
        f"Ratio by token: {ratio:.2f} (bound {BOUND}). {memory:.0f} MB in the runner.",
    ]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    sys.exit(0 if ratio <= BOUND else 1)


if __name__ == "__main__":
    main()
