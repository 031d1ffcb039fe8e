"""`policy.per: agent` with 32 agents on one real vLLM: every reply is to the last digit that of its agent's adapter.

Once all adapters are loaded, and once four versions, so that adapters come and go as their agents ask.
"""

from __future__ import annotations

import asyncio
import shutil
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
from openai.types.chat import ChatCompletionChunk
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.external.engines.conftest import ADAPTERS, CONTEXT, base_model, chosen

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, hash_folder
from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.engines.remote.vllm import VllmEngine, model_cards
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.serve.auth import scope_of
from openclaw_rl.settings.load import STARTER
from openclaw_rl.store import exchanges, leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import Exchange, Policy, PolicyRef, PolicyState

pytestmark = pytest.mark.timeout(
    1200
)  # vLLM starts, which takes minutes on a busy machine, and is asked a lot

NOBODY = ""  # no agent: the default policy, which is the base
AGENTS = tuple(f"a{n:02}" for n in range(32))
ROUNDS = 3  # of replies to each agent, at once
TOKENS = 24
EXACT = 1e-4
T = TypeVar("T")
LOADED_AT_ONCE = {"all": 34, "few": 4}


@pytest.fixture(scope="module")
def adapters(
    refs: Mapping[int, PolicyRef], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Path]:
    """A random adapter for each agent, in turn of the shapes in `refs`. "new": one more."""
    out, random = {}, torch.Generator().manual_seed(1)
    for n, name in enumerate((*AGENTS, "new")):
        shape, out[name] = (
            Path(str(refs[1 + n % len(ADAPTERS)].path)),
            tmp_path_factory.mktemp(name),
        )
        weights = load_file(shape / ADAPTER_WEIGHTS)
        made = {
            key: 0.1 * torch.randn(weight.shape, generator=random)
            for key, weight in weights.items()
        }
        save_file(made, out[name] / ADAPTER_WEIGHTS)
        shutil.copy(shape / ADAPTER_CONFIG, out[name])
    return out


@pytest.fixture(scope="module")
def logits_of(
    adapters: Mapping[str, Path],
) -> Callable[[str, Sequence[int], Sequence[int]], torch.Tensor]:
    """[R, V] logits of a response by a plain forward pass with an adapter. "": the base."""
    base = base_model()
    tuned = PeftModel.from_pretrained(base_model(), adapters[AGENTS[0]], AGENTS[0]).eval()

    def logits(adapter: str, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
        if adapter:
            if adapter not in tuned.peft_config:
                tuned.load_adapter(adapters[adapter], adapter)
            tuned.set_adapter(adapter)
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *response]])
            return (tuned if adapter else base)(input_ids=ids).logits[0, len(prompt) - 1 : -1]

    return logits


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
    versions: dict[str, dict[int, str]]  # by agent: its policy's, with the adapter of each
    api: openai.AsyncOpenAI = field(init=False)

    @property
    def without_end(self) -> dict[str, int]:
        """The bias with which a reply ends at its limit only."""
        return {str(i): -100 for i in Renderer(ModelFiles.from_path(STARTER)).stop_token_ids}

    def publish(self, agent: str, adapter: str) -> int:
        """Make an adapter the head of the agent's policy."""
        path, now = self.adapters[adapter], time.time()
        digest, files = hash_folder(path)
        name = f"agent:{scope_of(self.system.api_key)}:{agent}"
        with self.store.write() as conn:
            head, version = policies.head(conn, name), policies.next_version(conn)
            made = Policy(
                version=version,
                name=name,
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
        self.versions[agent][version] = adapter
        return version

    def run(self, body: Callable[[], Awaitable[T]]) -> T:
        """Run a body that asks."""

        async def run_body() -> T:
            url, key = f"{self.system.base_url}/v1", self.system.api_key
            async with openai.AsyncOpenAI(
                base_url=url, api_key=key, max_retries=0, timeout=300
            ) as self.api:
                return await body()

        return asyncio.run(run_body())

    async def open_stream(
        self, agent: str, n: int, **more: object
    ) -> openai.AsyncStream[ChatCompletionChunk]:
        asked = {"temperature": 0.9, "max_tokens": TOKENS, "seed": n, **more}
        found = await self.api.chat.completions.create(  # type: ignore[call-overload]
            model="openclaw",
            messages=[{"role": "user", "content": f"What is {n % 9} plus 3?"}],
            extra_headers={"X-Agent-Id": agent} if agent else {},
            stream=True,
            **asked,
        )
        assert isinstance(found, openai.AsyncStream)
        return found

    async def ask(self, agent: str, n: int, **more: object) -> Answer:
        began = time.perf_counter()
        heard = [chunk async for chunk in await self.open_stream(agent, n, **more)]
        assert any(choice.finish_reason for choice in heard[-1].choices), (
            "the stream ended without a finish"
        )
        [version] = {str(chunk.system_fingerprint) for chunk in heard}
        seconds = time.perf_counter() - began
        return Answer(
            agent=agent, id=heard[0].id, version=int(version.removeprefix("v")), seconds=seconds
        )

    async def hang_up(self, agent: str) -> None:
        """Leave in the middle of a reply."""
        stream = await self.open_stream(agent, 0)
        await anext(aiter(stream))
        await stream.close()

    async def ask_in_turns(self, agents: Sequence[str]) -> list[Answer]:
        return [await self.ask(agent, n) for n, agent in enumerate(agents)]

    async def ask_at_once(self) -> list[Answer]:
        """Every agent has a client of its own, and so has nobody; all ask at the same time. Some hang up as well."""
        leaving = asyncio.gather(*(self.hang_up(agent) for agent in AGENTS[::4]))
        found = await asyncio.gather(
            *(self.ask_in_turns([agent] * ROUNDS) for agent in (*AGENTS, NOBODY))
        )
        await leaving
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
        "serve.engine_wait": 240.0,  # the machine may be busy
    }
    with SubprocessSystem(scratch_config(home, settings), command="serve") as system:
        store = Store.open(system.config.store_path, create=False)
        town = Town(system, store, adapters, defaultdict(dict, {NOBODY: {0: NOBODY}}))
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
    with founded(
        tmp_path_factory.mktemp("town"), vllm_python, adapters, LOADED_AT_ONCE[request.param]
    ) as town:
        yield town


@pytest.fixture
def check_exact(
    town: Town, logits_of: Callable[..., torch.Tensor]
) -> Callable[[Sequence[Answer]], float]:
    """Compare the stored log-probabilities with a forward pass of the agent's adapter. Return the largest difference.

    With another agent's adapter they differ by far: a reply by that one would be noticed.
    """

    def difference(found: Exchange, adapter: str) -> float:
        assert found.reply is not None
        response = found.reply.response_ids.tolist()
        logits = logits_of(adapter, found.request.prompt_ids.tolist(), response)
        expected = chosen(logits, response, found.request.sampling.temperature)
        return float(np.abs(expected - found.reply.logprobs).max())

    def check(answers: Sequence[Answer]) -> float:
        largest, found = 0.0, {one.id: town.exchange(one.id) for one in answers}
        for one in answers:
            assert one.version in town.versions[one.agent], (
                f"{one.agent} was answered by version {one.version}"
            )
            assert found[one.id].request.version == one.version
            gap = difference(found[one.id], town.versions[one.agent][one.version])
            assert gap < EXACT, f"{one.agent}, version {one.version}"
            largest = max(largest, gap)
        assert difference(found[answers[0].id], AGENTS[-1]) > 100 * EXACT, (
            "one adapter is like another"
        )
        return largest

    return check


def test_32_agents_at_once_are_answered_by_their_own(
    town: Town, check_exact: Callable[..., float], report: Callable[[str], None]
) -> None:
    async def talk() -> list[Answer]:
        long = asyncio.create_task(town.ask(NOBODY, 0, max_tokens=300, logit_bias=town.without_end))
        await asyncio.sleep(1.0)
        first = await town.ask_at_once()
        assert (await long).version == 0, "it began on the base, before any adapter was loaded"
        report(f"{describe(town)}, all at once, the first time: {quantiles(first)}")
        began = time.perf_counter()
        answers = await town.ask_at_once()
        took, loaded = time.perf_counter() - began, await town.loaded_adapters()
        cap = town.system.config.engine.max_loaded_versions
        if cap > len(AGENTS):
            assert len(loaded) == len(AGENTS) + 1, (
                "all live at the same time, and the base's identity adapter"
            )
        else:
            assert len(loaded) <= cap, "the others were unloaded"
        report(
            f"{describe(town)}, all at once: {quantiles(answers)}, {len(answers) / took:.1f} replies a second"
        )
        return answers

    gap = check_exact(town.run(talk))
    report(
        f"{describe(town)}: the largest difference to a forward pass of the agent's own adapter is {gap:.1e}"
    )


def test_agents_in_turns_and_one_alone(
    town: Town, check_exact: Callable[..., float], report: Callable[[str], None]
) -> None:
    """The difference is what a swap takes, when not all are loaded."""

    async def talk() -> tuple[list[Answer], list[Answer]]:
        turns = await town.ask_in_turns((*AGENTS, *AGENTS))
        return turns, await town.ask_in_turns([AGENTS[0]] * len(AGENTS))

    turns, alone = town.run(talk)
    report(f"{describe(town)}, in turns: {quantiles(turns)}; one agent alone: {quantiles(alone)}")
    check_exact([*turns, *alone])


def test_a_new_version_of_one_agent_comes_while_all_talk(
    town: Town, check_exact: Callable[..., float]
) -> None:
    async def talk() -> list[Answer]:
        talking = asyncio.create_task(town.ask_at_once())
        await asyncio.sleep(0.5)
        new = await asyncio.to_thread(town.publish, AGENTS[0], "new")
        answers = await talking
        until = time.monotonic() + 60
        while (last := await town.ask(AGENTS[0], 0)).version != new:
            assert time.monotonic() < until, "the new version does not answer"
        return [*answers, last]

    check_exact(town.run(talk))


def describe(town: Town) -> str:
    return (
        f"{len(AGENTS)} policies, {town.system.config.engine.max_loaded_versions} versions loaded"
    )


def quantiles(answers: Sequence[Answer]) -> str:
    seconds = [one.seconds for one in answers]
    return (
        f"reply of {TOKENS} tokens in {1000 * statistics.median(seconds):.0f} ms (median), "
        f"{1000 * statistics.quantiles(seconds, n=20)[-1]:.0f} ms (95th percentile), "
        f"{1000 * max(seconds):.0f} ms (longest)"
    )
