"""SGLang under another trainer: a reply belongs to the version whose weights the server had, and none is guessed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.contract_fixtures import closing
from tests.engines.remote.test_sglang import BASE, PROMPT, call, reply
from tests.engines.sglang_server import SglangWire

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.engines import registry
from openclaw_rl.engines.remote import trainer_weights
from openclaw_rl.engines.remote.sglang_router import SglangRouterEngine
from openclaw_rl.errors import ConfigError, EngineError, EngineGone
from openclaw_rl.protocols import EngineLink
from openclaw_rl.settings.load import from_flat
from openclaw_rl.types import PolicyRef

SETTINGS = {
    "engine.backend": "sglang",
    "engine.weights": "trainer",
    "train.trainer": "external",
    "train.finetune": "full",
    "gate.kind": "numbers",
}


class RouterWire(SglangWire):
    """A server without the routes that a router does not have; the weights change as by slime."""

    async def _update(self, request: Any) -> Any:
        raise AssertionError("a router has no /update_weights_from_disk")

    def push(self, tag: str) -> None:
        """What slime's engines say after `update_weights_from_disk`."""
        self.weight_version = tag


class Slime:
    """The files that slime's adapter writes: the tag of its weights, and the version that they are."""

    def __init__(self, home: Path) -> None:
        self.home, self._start = home, home / "start.json"
        home.mkdir()

    def begin(self, folder: str | None) -> None:
        self._start.write_text(json.dumps({"run": "one"}))
        trainer_weights.start_record(self.home, "1", folder, run="one", run_file=self._start)

    def begin_another(self) -> None:
        self._start.write_text(json.dumps({"run": "two"}))

    def add_version(self, number: int) -> PolicyRef:
        """A version whose folder has the weights of the starter."""
        folder = self.home / "policies" / f"{number}-abc"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes([number]))
        trainer_weights.add_weights(self.home, str(number + 1), folder.name)
        return PolicyRef(version=number, path=str(folder), digest=digest_of_folder(folder))


@pytest.fixture
def wire(model_folder: Path) -> Iterator[RouterWire]:
    with RouterWire(model_folder, mode="incremental") as made:
        assert isinstance(made, RouterWire)
        made.push("1")
        yield made


@pytest.fixture
def slime(tmp_path: Path) -> Slime:
    return Slime(tmp_path / "home")


def attach(wire: RouterWire, slime: Slime, body: Callable[[Any], Awaitable[None]]) -> None:
    config = from_flat(SETTINGS | {"engine.url": wire.url, "home": str(slime.home)})

    async def whole() -> None:
        made: EngineLink = registry.connect_engine(config)
        assert isinstance(made, SglangRouterEngine)
        made.update_seconds = 5
        async with closing(made):
            await body(made)

    asyncio.run(asyncio.wait_for(whole(), 300))


def test_a_version_is_served_once_the_trainer_has_loaded_it(
    wire: RouterWire, slime: Slime, reference: Callable[..., np.ndarray]
) -> None:
    slime.begin(None)

    async def body(engine: SglangRouterEngine) -> None:
        ids, logprobs, _ = await reply(engine, call(max_tokens=12))
        np.testing.assert_allclose(logprobs, reference(0, PROMPT, ids, 1.0), atol=1e-4)
        await engine.load([BASE, slime.add_version(1)])
        waiting = asyncio.create_task(reply(engine, call(1)))
        await asyncio.sleep(0.5)
        assert not waiting.done(), "the server still has the base"
        wire.push("2")
        assert (await waiting)[2] == "length"
        with pytest.raises(EngineError, match="serves its newest version alone"):
            await reply(engine, call(0))
        assert (await reply(engine, call(1)))[2] == "length", (
            "a refused version does not stop the others"
        )

    attach(wire, slime, body)


def test_a_reply_is_not_of_two_versions(wire: RouterWire, slime: Slime) -> None:
    slime.begin(None)

    async def body(engine: SglangRouterEngine) -> None:
        await engine.load([BASE, slime.add_version(1)])
        stream = engine.generate(call(max_tokens=200))
        await anext(stream)
        wire.push("2")
        with pytest.raises(EngineGone, match="loaded 1-abc during a reply on the base"):
            async for _ in stream:
                pass
        assert (await reply(engine, call(1)))[2] == "length"

    attach(wire, slime, body)


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"run": "one", "weights": {"1": 5}}'])
def test_a_damaged_record_is_one_line_and_ends_with_the_next_run(
    wire: RouterWire, slime: Slime, damage: str
) -> None:
    slime.begin(None)

    async def body(engine: SglangRouterEngine) -> None:
        record = slime.home / trainer_weights.FILE_NAME
        whole = json.loads(record.read_text())
        given = (
            damage
            if damage in ("{", "[]")
            else json.dumps({**whole, "weights": None, **json.loads(damage)})
        )
        record.write_text(given)
        with pytest.raises(
            EngineError, match=r"trainer_weights.json cannot be read: .* restart it"
        ):
            await reply(engine, call())
        with pytest.raises(ValueError, match="cannot be read"):
            trainer_weights.add_weights(slime.home, "2", "1-abc")
        slime.begin(None)
        assert (await reply(engine, call()))[2] == "length"

    attach(wire, slime, body)


@pytest.fixture(scope="module")
def opened_records() -> list[str]:
    """Grows with each time that the file with the versions of the trainer's weights is opened."""
    found: list[str] = []

    def note_record(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            event == "open"
            and str(arguments[0]).endswith(trainer_weights.FILE_NAME)
            and arguments[1] == "r"
        ):
            found.append(str(arguments[0]))

    sys.addaudithook(note_record)
    return found


def test_the_versions_are_read_twice_a_reply_and_not_for_each_piece(
    wire: RouterWire, slime: Slime, opened_records: list[str]
) -> None:
    slime.begin(None)

    async def body(engine: SglangRouterEngine) -> None:
        await reply(engine, call(0))
        opened_records.clear()
        pieces = [chunk async for chunk in engine.generate(call(0, max_tokens=200))]
        assert len(pieces) > 10
        assert len(opened_records) == 2

    attach(wire, slime, body)


def test_a_new_run_of_the_trainer_during_a_reply_is_noticed_at_its_end(
    wire: RouterWire, slime: Slime
) -> None:
    slime.begin(None)

    async def body(engine: SglangRouterEngine) -> None:
        stream = engine.generate(call(max_tokens=200))
        await anext(stream)
        slime.begin_another()
        with pytest.raises(EngineGone, match="loaded unknown weights during a reply on the base"):
            async for _ in stream:
                pass

    attach(wire, slime, body)


def test_the_tags_of_an_earlier_run_mean_nothing(wire: RouterWire, slime: Slime) -> None:
    slime.begin(None)
    slime.begin_another()

    async def body(engine: SglangRouterEngine) -> None:
        engine.update_seconds = 0.5
        with pytest.raises(EngineGone, match=r"the server has unknown weights\. Is slime"):
            await reply(engine, call(0))
        slime.begin(None)
        assert (await reply(engine, call(0)))[2] == "length"

    attach(wire, slime, body)


def test_settings_that_do_not_fit_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"Set engine\.url to the address.*, train\.finetune to full"
    ):
        from_flat(SETTINGS | {"train.finetune": "lora"})
