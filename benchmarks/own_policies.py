"""Policies of one's own (`policy.per`): two agents with opposite tastes, and many policies on one engine.

    python -m benchmarks.own_policies [--agents 32] [--reactions 120] [--seed 1]

First two simulated people, each with an agent of their own, talk in turns to one system, in one process: gateway,
collector, judge, trainer and engine are the real ones. Then each talks alone to a system of its own. Compared are their
satisfaction on questions that were never asked, and the files of the adapters.

Then a real system answers many agents at once, each by an adapter that was trained on its own four turns. Compared are
the replies to all agents in turns, and those to one agent, in the same run; and the time from the first of an agent's
reactions until its new version answers. Once all versions fit on the engine, and once only four do.
Writes benchmarks/results/own_policies.md; ends with 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.demo.personas import Persona
from benchmarks.in_process import Rooms
from benchmarks.provenance import write_result

from openclaw_rl.common.progress import record_progress
from openclaw_rl.evals.styles import Taste
from openclaw_rl.evals.toy_world import held_out_questions
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, find_name, read_heads
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

RESULTS = Path(__file__).parent / "results" / "own_policies.md"
TASTES: Mapping[str, Taste] = {"ann": "short", "bob": "long"}
MIN_SATISFIED = 0.9
QUESTIONS = 200
# Of replies to each agent.
ROUNDS = 6
# One setting for both parts: small batches, no waiting.
TEACHING = {
    "policy.per": "agent",
    "train.batch.min_turns": 4,
    "train.batch.max_turns": 4,
    "train.batch.max_wait": 1e9,
    # What the weights learn from turns is measured.
    "serve.lessons": "off",
    "practice.enabled": False,
}
# Seconds for all agents to have a version of their own.
WITHIN = 600.0
# Seconds for each agent without a new version until its person reacts once more.
PATIENCE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What an agent's policy is like at the end."""

    reactions: int
    versions: int  # that were trained for it
    satisfied: float
    correct: float
    files: Mapping[str, str | None]


async def teach(home: Path, agents: Sequence[str], reactions: int, seed: int) -> dict[str, Learned]:
    """Let the people of these agents talk in turns, one reply each."""
    config = from_flat({"home": str(home), **TEACHING})
    people = {agent: Persona(taste=TASTES[agent], seed=seed) for agent in agents}
    histories: dict[str, list[dict[str, str]]] = {agent: [] for agent in agents}
    replies = dict.fromkeys(agents, 0)
    async with Rooms(config) as rooms:
        while any(len(person.log) < reactions for person in people.values()):
            for agent, person in people.items():
                if len(person.log) >= reactions:
                    continue
                text = person.next_message(histories[agent])
                if text is None:
                    histories[agent] = []
                    continue
                history = histories[agent]
                history.append({"role": "user", "content": text})
                reply = await rooms.say(history, seed=seed * 100_003 + replies[agent], agent=agent)
                history.append({"role": "assistant", "content": reply.text})
                replies[agent] += 1
                await rooms.settle()
        return {agent: measure(rooms, agent, people[agent], seed) for agent in agents}


def measure(rooms: Rooms, agent: str, person: Persona, seed: int) -> Learned:
    """Ask the head of an agent's policy questions that were never asked."""
    with rooms.read_store() as conn:
        head = policies.head(conn, find_name(read_heads(conn), f"agent:{agent}") or DEFAULT_NAME)
        versions = len(policies.lineage(conn, head.version)) - 1
    found = rooms.measure(
        head.version, person.taste, held_out_questions(QUESTIONS, random.Random(seed))
    )
    return Learned(
        reactions=len(person.log),
        versions=versions,
        satisfied=found.satisfaction,
        correct=found.correctness,
        files=head.files,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How many agents were answered on one engine. Times in seconds."""

    loaded: int  # versions that the engine holds
    agents: int
    in_turns: list[float]  # reply to one agent after the other
    to_one: list[float]
    at_once: list[float]  # 8 agents ask at once
    until_new: list[float]  # from an agent's first reaction until its next version answers
    wrong: int  # replies by a version of another policy


def serve_many(home: Path, count: int, loaded: int) -> Served:
    """Teach `count` agents four turns each, and time the replies."""
    agents = [f"a{n}" for n in range(count)]
    config = scratch_config(
        home, TEACHING | {"engine.max_loaded_versions": loaded, "run.log_level": "warning"}
    )
    with SubprocessSystem(config) as system:
        owners = teach_until_new(system, agents, {})
        at_once = []
        in_turns = []
        wrong = 0
        for _ in range(ROUNDS):
            for agent in agents:
                seconds, version = timed_reply(system, agent)
                in_turns.append(seconds)
                wrong += version != owners[agent]
        with ThreadPoolExecutor(8) as pool:
            for seconds, version, agent in pool.map(
                lambda a: (*timed_reply(system, a), a), ROUNDS * agents
            ):
                at_once.append(seconds)
                wrong += version != owners[agent]
        to_one = [timed_reply(system, agents[0])[0] for _ in range(ROUNDS * count)]
        until_new = []
        for agent in agents[:8]:
            began = time.monotonic()
            owners |= teach_until_new(system, [agent], owners)
            until_new.append(time.monotonic() - began)
    return Served(
        loaded=loaded,
        agents=count,
        in_turns=in_turns,
        to_one=to_one,
        at_once=at_once,
        until_new=until_new,
        wrong=wrong,
    )


def ask(system: SubprocessSystem, agent: str, question: str, **more: object) -> tuple[str, int]:
    """Return the id of a reply, and the version that gave it."""
    body = {
        "model": system.config.model.name,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 16,
        **more,
    }
    reply = post_json(system, "/v1/chat/completions", body, {"X-Agent-Id": agent})
    return str(reply["id"]), int(str(reply["system_fingerprint"]).removeprefix("v"))


def timed_reply(system: SubprocessSystem, agent: str) -> tuple[float, int]:
    began = time.perf_counter()
    _, version = ask(system, agent, "What is 2 plus 3?")
    return time.perf_counter() - began, version


def react(system: SubprocessSystem, agent: str, count: int) -> None:
    """Talk to an agent and rate each reply: good and bad in turns."""
    for n in range(count):
        id_, _ = ask(system, agent, f"What is {n} plus 3?", max_tokens=64)
        post_json(system, "/v1/feedback", {"id": id_, "score": 1 if n % 2 else -1})


def teach_until_new(
    system: SubprocessSystem, agents: Sequence[str], before: Mapping[str, int]
) -> dict[str, int]:
    """React to the agents until each is answered by a newer version than before. Return it, by agent.

    A reply that is cut at its limit has no score, and the gate may reject a version: then there are more reactions.
    """
    deadline = time.monotonic() + WITHIN
    found = dict[str, int]()
    for agent in agents:
        react(system, agent, 4)
    asked = time.monotonic()
    while len(found) < len(agents):
        if time.monotonic() > deadline:
            sys.exit(
                f"only {len(found)} of {len(agents)} agents have a version of their own after {WITHIN:.0f} s"
            )
        if time.monotonic() - asked > PATIENCE * len(agents):
            for agent in agents:
                if agent not in found:
                    react(system, agent, 1)
            asked = time.monotonic()
        time.sleep(0.05)
        with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
            heads = read_heads(conn)
        for agent in agents:
            head = heads.get(find_name(heads, f"agent:{agent}") or "", 0)
            if (
                agent not in found
                and head > before.get(agent, 0)
                and timed_reply(system, agent)[1] >= head
            ):
                found[agent] = head
        record_progress()
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Two agents with opposite tastes, and many policies on one engine."
    )
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--reactions", type=int, default=120, help="of each of the two people")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def quantiles(seconds: Sequence[float]) -> str:
    cuts = statistics.quantiles(seconds, n=20)
    return f"{1000 * statistics.median(seconds):.0f} | {1000 * cuts[-1]:.0f}"


def report(
    both: Mapping[str, Learned], alone: Mapping[str, Learned], served: Sequence[Served], seed: int
) -> str:
    lines = [
        "# Policies of one's own",
        "",
        f"Two agents with opposite tastes, `policy.per agent`, the starter, method combine, batches of 4, seed {seed}. "
        f"Satisfied: share of {QUESTIONS} questions that were never asked whose answer is right and in the "
        "person's taste. Equal: the files of weights, optimizer and trainer state are the same, byte by byte, in a "
        "system that the other agent never used.",
        "",
        "| agent | wants | reactions | versions | satisfied | right | satisfied alone | equal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for agent, one in both.items():
        other = alone[agent]
        lines.append(
            f"| {agent} | {TASTES[agent]} | {one.reactions} | {one.versions} | {one.satisfied:.2f} | "
            f"{one.correct:.2f} | {other.satisfied:.2f} | {'yes' if one.files == other.files else 'no'} |"
        )
    lines += [
        "",
        "Many agents on one engine, each with an adapter of its own, replies of at most 16 tokens, 2 cores. Times in "
        "ms: the median and the 95th percentile of the time to the whole reply. Until new: from the first of four or "
        "more reactions until the version trained on them answers, in s, median and longest of 8.",
        "",
        "| agents | versions on the engine | in turns p50 | p95 | 8 at once p50 | p95 | to one p50 | p95 | until new | "
        "longest | by another's version |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in served:
        new = f"{statistics.median(run.until_new):.1f} | {max(run.until_new):.1f}"
        lines.append(
            f"| {run.agents} | {run.loaded} | {quantiles(run.in_turns)} | {quantiles(run.at_once)} | "
            f"{quantiles(run.to_one)} | {new} | {run.wrong} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        both = asyncio.run(teach(root / "both", list(TASTES), given.reactions, given.seed))
        alone: dict[str, Learned] = {}
        for agent in TASTES:
            alone |= asyncio.run(teach(root / agent, [agent], given.reactions, given.seed))
        served = [
            serve_many(root / str(loaded), given.agents, loaded)
            for loaded in (given.agents + 4, 4)
            if loaded <= 64
        ]
    text = report(both, alone, served, given.seed)
    write_result(RESULTS, text)
    sys.stdout.write(text)
    is_good = all(one.satisfied >= MIN_SATISFIED for one in both.values()) and not any(
        run.wrong for run in served
    )
    sys.exit(not (is_good and all(one.files == alone[agent].files for agent, one in both.items())))


if __name__ == "__main__":
    main()
