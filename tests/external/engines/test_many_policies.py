"""`policy.per: agent` with 32 agents on one real vLLM: every reply is to the last digit that of its agent's adapter.

Once all adapters are loaded, and once four versions, so that adapters come and go as their agents ask.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import openai
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tests.external.engines.conftest import ADAPTERS, CONTEXT, base_model, chosen

from openclaw_rl.common.policy_digest import hash_folder
from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.engines.remote.vllm import VllmEngine, model_cards
from openclaw_rl.store import exchanges, leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import Exchange, Policy, PolicyState

pytestmark = pytest.mark.timeout(1200)  # vLLM starts, which takes minutes on a busy machine, and is asked a lot

NOBODY = ""  # no agent: the default policy, which is the base
AGENTS = tuple(f"a{n:02}" for n in range(32))
ROUNDS = 3  # of replies to each agent, at once
TOKENS = 24
EXACT = 1e-4
T = TypeVar("T")
LOADED_AT_ONCE = {"all": 34, "few": 4}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A random adapter for each agent, in turn of three shapes. "new": one more."""
    out, shapes = {}, list(ADAPTERS.values())
    for n, name in enumerate((*AGENTS, "new")):
        torch.manual_seed(1000 + n)
        tuned = get_peft_model(base_model(), LoraConfig(task_type="CAUSAL_LM", **shapes[n % len(shapes)]))
        for parameter, weight in tuned.named_parameters():
            if "lora_" in parameter:
                torch.nn.init.normal_(weight, std=0.05)
        out[name] = tmp_path_factory.mktemp(name)
        tuned.save_pretrained(out[name])
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply as its client saw it."""

    agent: str
    id: str
    version: int
    seconds: float


@dataclass
class Town:
    """A running gateway on a vLLM, whose agents have a policy each."""

    system: SubprocessSystem
    store: Store
    adapters: Mapping[str, Path]
    versions: dict[str, set[int]]  # by agent: its policy's
    api: openai.AsyncOpenAI = field(init=False)

    def publish(self, agent: str, adapter: str) -> int:
        """Make an adapter the head of the agent's policy."""
        path, now = self.adapters[adapter], time.time()
        digest, files = hash_folder(path)
        with self.store.write() as conn:
            head, version = policies.head(conn, f"agent:{agent}"), policies.next_version(conn)
            made = Policy(
                version=version,
                name=f"agent:{agent}",
                parent=head.version,
                state=PolicyState.CANDIDATE,
                path=str(path),
                digest=digest,
                files=files,
                base=head.base,
                identity=head.identity,
                created_at=now,
            )
            lease = leases.acquire(conn, "train", "test", 30.0, now)
            assert lease is not None
            policies.publish(conn, lease, made, [], now)
            leases.release(conn, lease)
        self.versions[agent].add(version)
        return version

    def run(self, body: Callable[[], Awaitable[T]]) -> T:
        """Run a body that asks."""

        async def run_body() -> T:
            url, key = f"{self.system.base_url}/v1", self.system.api_key
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=300) as self.api:
                return await body()

        return asyncio.run(run_body())

    async def ask(self, agent: str, n: int) -> Answer:
        began = time.perf_counter()
        stream = await self.api.chat.completions.create(
            model="openclaw",
            messages=[{"role": "user", "content": f"What is {n % 9} plus 3?"}],
            extra_headers={"X-Agent-Id": agent} if agent else {},
            temperature=0.9,
            max_tokens=TOKENS,
            seed=n,
            stream=True,
        )
        heard = [chunk async for chunk in stream]
        assert any(choice.finish_reason for choice in heard[-1].choices), "the stream ended without a finish"
        [version] = {str(chunk.system_fingerprint) for chunk in heard}
        seconds = time.perf_counter() - began
        return Answer(agent=agent, id=heard[0].id, version=int(version.removeprefix("v")), seconds=seconds)

    async def ask_in_turns(self, agents: Sequence[str]) -> list[Answer]:
        return [await self.ask(agent, n) for n, agent in enumerate(agents)]

    async def ask_at_once(self) -> list[Answer]:
        """Every agent has a client of its own, and so has nobody; all ask at the same time."""

        found = await asyncio.gather(*(self.ask_in_turns([agent] * ROUNDS) for agent in (*AGENTS, NOBODY)))
        return [answer for answers in found for answer in answers]

    def exchange(self, id: str) -> Exchange:
        with self.store.read() as conn:
            found = exchanges.get(conn, id)
        assert found is not None
        return found

    async def loaded_adapters(self) -> list[str]:
        """By vLLM's own list."""
        engine = connect_engine(self.system.config)
        assert isinstance(engine, VllmEngine)
        cards = model_cards(await engine.http.call_json("GET", "/v1/models"))
        await engine.close()
        return [str(card["id"]) for card in cards if card.get("parent")]


@contextmanager
def founded(home: Path, python: str, adapters: Mapping[str, Path], loaded: int) -> Iterator[Town]:
    torch.set_num_threads(1)
    settings = {
        "engine.backend": "vllm",
        "engine.python": python,
        "engine.max_context": CONTEXT,
        "engine.max_loaded_versions": loaded,
        "policy.per": "agent",
    }
    with SubprocessSystem(scratch_config(home, settings), command="serve") as system:
        store = Store.open(system.config.store_path, create=False)
        town = Town(system, store, adapters, defaultdict(set, {NOBODY: {0}}))
        for agent in AGENTS:
            town.publish(agent, agent)
        yield town
        store.close()


@pytest.fixture(scope="module", params=LOADED_AT_ONCE)
def town(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    vllm_python: str,
    adapters: Mapping[str, Path],
) -> Iterator[Town]:
    with founded(tmp_path_factory.mktemp("town"), vllm_python, adapters, LOADED_AT_ONCE[request.param]) as town:
        yield town


def check_exact(town: Town, answers: Sequence[Answer]) -> float:
    """Compare each reply's stored log-probabilities with a forward pass of its agent's adapter. Return the largest gap.

    They are far from those of another agent's adapter: a reply by that one would be noticed.
    """
    by_version: dict[int, list[Exchange]] = defaultdict(list)
    for one in answers:
        assert one.version in town.versions[one.agent], f"{one.agent} was answered by version {one.version}"
        found = town.exchange(one.id)
        assert found.request.version == one.version
        by_version[one.version].append(found)
    largest = 0.0
    for version, replies in by_version.items():
        gaps, other_gaps = gaps_of(town, version, replies), gaps_of(town, version % len(AGENTS) + 1, replies)
        assert gaps.max() < EXACT, f"version {version}"
        assert other_gaps.max() > 1e3 * EXACT, f"version {version} is not told from another"
        largest = max(largest, float(gaps.max()))
    return largest


def gaps_of(town: Town, version: int, replies: Sequence[Exchange]) -> np.ndarray:
    """[tokens] Differences between stored log-probabilities and those of a forward pass of a version."""
    with town.store.read() as conn:
        path = policies.require_version(conn, version).path
    model = base_model() if path is None else PeftModel.from_pretrained(base_model(), path).eval()
    out = []
    for found in replies:
        assert found.reply is not None
        prompt, response = found.request.prompt_ids.tolist(), found.reply.response_ids.tolist()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        expected = chosen(logits, response, found.request.sampling.temperature)
        out.append(np.abs(expected - found.reply.logprobs))
    return np.concatenate(out)


def test_32_agents_at_once_are_answered_by_their_own(town: Town, report: Callable[[str], None]) -> None:
    async def talk() -> list[Answer]:
        first = await town.ask_at_once()
        report(f"{describe(town)}, all at once, the first time: {quantiles(first)}")
        began = time.perf_counter()
        answers = await town.ask_at_once()
        took, loaded = time.perf_counter() - began, await town.loaded_adapters()
        cap = town.system.config.engine.max_loaded_versions
        if cap > len(AGENTS):
            assert len(loaded) == len(AGENTS) + 1, "all live at the same time, and the base's identity adapter"
        else:
            assert len(loaded) <= cap, "the others were unloaded"
        report(f"{describe(town)}, all at once: {quantiles(answers)}, {len(answers) / took:.1f} replies a second")
        return answers

    gap = check_exact(town, town.run(talk))
    report(f"{describe(town)}: the largest difference to a forward pass of the agent's own adapter is {gap:.1e}")


def test_agents_in_turns_and_one_alone(town: Town, report: Callable[[str], None]) -> None:
    """The difference is what a swap takes, when not all are loaded."""

    async def talk() -> tuple[list[Answer], list[Answer]]:
        turns = await town.ask_in_turns((*AGENTS, *AGENTS))
        return turns, await town.ask_in_turns([AGENTS[0]] * len(AGENTS))

    turns, alone = town.run(talk)
    report(f"{describe(town)}, in turns: {quantiles(turns)}; one agent alone: {quantiles(alone)}")
    check_exact(town, [*turns, *alone])


def test_a_new_version_of_one_agent_comes_while_all_talk(town: Town) -> None:
    async def talk() -> list[Answer]:
        talking = asyncio.create_task(town.ask_at_once())
        await asyncio.sleep(0.5)
        new = await asyncio.to_thread(town.publish, AGENTS[0], "new")
        answers = await talking
        until = time.monotonic() + 60
        while (last := await town.ask(AGENTS[0], 0)).version != new:
            assert time.monotonic() < until, "the new version does not answer"
        return [*answers, last]

    check_exact(town, town.run(talk))


def describe(town: Town) -> str:
    return f"{len(AGENTS)} policies, {town.system.config.engine.max_loaded_versions} versions loaded"


def quantiles(answers: Sequence[Answer]) -> str:
    seconds = [one.seconds for one in answers]
    return (
        f"reply of {TOKENS} tokens in {1000 * statistics.median(seconds):.0f} ms (median), "
        f"{1000 * statistics.quantiles(seconds, n=20)[-1]:.0f} ms (95th percentile), "
        f"{1000 * max(seconds):.0f} ms (longest)"
    )
