"""`policy.per`: who asks decides which policy answers, and one policy's new version changes nobody else's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import SCOPE, USER, Site, Start, wait_for

from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.errors import EngineFull
from openclaw_rl.serve.versions.version_manager import VersionManager
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
from openclaw_rl.testing import ScriptedEngine, always_reply
from openclaw_rl.types import PolicyRef

ASKS: Mapping[str, Mapping[str, Any]] = {
    "agent": {"extra_headers": {"X-Agent-Id": "ann"}},
    "user": {"user": "ann"},
}


def own(per: str, name: str, key: str = SCOPE) -> str:
    """Name of the policy of an agent or a user of this key."""
    return f"{per}:{key}:{name}"


def version_for(site: Site, **asked: Any) -> str | None:
    return (
        site.client()
        .chat.completions.create(model="openclaw", messages=[USER], **asked)
        .system_fingerprint
    )


@pytest.mark.parametrize("per", ASKS)
def test_each_is_answered_by_its_own_policy(start: Start, tmp_path: Path, per: str) -> None:
    site = start(settings={"policy.per": per})
    site.publish(tmp_path / "p", name=own(per, "ann"))
    wait_for(lambda: version_for(site, **ASKS[per]), lambda v: v == "v1")
    assert version_for(site) == "v0", "nobody in particular: the default policy"
    assert site.last().request.version == 0
    site.publish(tmp_path / "p")
    wait_for(lambda: version_for(site), lambda v: v == "v2")
    assert version_for(site, **ASKS[per]) == "v1"


def test_each_key_has_its_own_policy(start: Start, tmp_path: Path) -> None:
    site = start(settings={"policy.per": "key"})
    assert version_for(site) == "v0"
    site.publish(tmp_path / "p", name=f"key:{site.last().request.scope}")
    wait_for(lambda: version_for(site), lambda v: v == "v1")


def test_without_the_setting_there_is_one_policy(start: Start, tmp_path: Path) -> None:
    site = start()
    site.publish(tmp_path / "p", name=own("agent", "ann"))
    time.sleep(0.3)
    assert version_for(site, **ASKS["agent"]) == "v0"


def test_a_policy_without_versions_is_the_shared_parent(start: Start, tmp_path: Path) -> None:
    """What the default policy learns later is its own."""
    site = start(settings={"policy.per": "agent"})
    site.publish(tmp_path / "p")
    wait_for(lambda: version_for(site), lambda v: v == "v1")
    assert version_for(site, **ASKS["agent"]) == "v0"


def test_more_policies_than_fit_are_all_answered_by_their_own(start: Start, tmp_path: Path) -> None:
    """The engine holds 4 versions, 12 agents ask at once: some wait for their version, none gets another."""
    site = start(settings={"policy.per": "agent", "engine.max_loaded_versions": 4}, delay=0.01)
    versions = {
        name: site.publish(tmp_path / "p", name=own("agent", name)).version
        for name in "abcdefghijkl"
    }

    async def ask_all() -> list[bool]:
        async with site.async_client() as client:

            async def ask(name: str) -> bool:
                reply = await client.chat.completions.create(
                    model="openclaw", messages=[USER], extra_headers={"X-Agent-Id": name}
                )
                return reply.system_fingerprint == f"v{versions[name]}"

            return await asyncio.gather(*(ask(name) for name in 3 * "abcdefghijkl"))

    wait_for(lambda: version_for(site, extra_headers={"X-Agent-Id": "l"}), lambda v: v == "v12")
    assert all(asyncio.run(ask_all()))
    assert all(len(named) <= 4 for named in site.engine.loads)


def test_a_broken_version_falls_back_to_its_own_parent(start: Start, tmp_path: Path) -> None:
    site = start(settings={"policy.per": "agent"})
    site.publish(tmp_path / "p", name=own("agent", "ann"))
    wait_for(lambda: version_for(site, **ASKS["agent"]), lambda v: v == "v1")
    site.publish(tmp_path / "p", name=own("agent", "bob"))
    broken = site.publish(tmp_path / "p", name=own("agent", "ann"))
    for file in Path(str(broken.path)).iterdir():
        file.write_bytes(b"broken")
    time.sleep(0.5)
    assert version_for(site, **ASKS["agent"]) == "v1"
    with site.store.read() as conn:
        assert policies.head(conn, own("agent", "ann")).version == 1, "the head has moved back"
        assert policies.head(conn, own("agent", "bob")).version == 2


def test_policies_that_never_pause_do_not_keep_another_waiting(
    start: Start, tmp_path: Path
) -> None:
    """Two have the two places, and begin each reply before their last one ends; a third one comes all the same."""
    site = start(settings={"policy.per": "agent"})
    versions = {
        name: site.publish(tmp_path / "p", name=own("agent", name)).version for name in "abc"
    }
    engine = ScriptedEngine(always_reply(1), versions=3)

    async def serve_all() -> None:
        manager = VersionManager(site.store, engine, cap=3, metrics=GatewayMetrics())
        keeper = asyncio.create_task(manager.run())

        async def begin(name: str) -> int:
            deadline = asyncio.get_running_loop().time() + 240
            return await manager.wait_loaded(manager.acquire_current(name), deadline, pinned=False)

        async def never_pause(name: str) -> None:
            version = await begin(name)
            while True:
                following = asyncio.create_task(begin(name))
                await asyncio.wait({following}, timeout=0.3)  # a reply takes no longer
                manager.release(version)
                version = await following
                await asyncio.sleep(0.01)

        manager.release(await begin(DEFAULT_NAME))
        busy = [asyncio.create_task(never_pause(own("agent", name))) for name in "ab"]
        while not {versions["a"], versions["b"]} <= engine.held:
            await asyncio.sleep(0.01)
        for name in "cab":
            version = await asyncio.wait_for(begin(own("agent", name)), 240)
            assert version == versions[name]
            manager.release(version)
        for task in (*busy, keeper):
            assert not task.done()
            task.cancel()
        await asyncio.wait((*busy, keeper))

    asyncio.run(serve_all())


class FullEngine(ScriptedEngine):
    """Refuses version 2 three times, as if it had no place."""

    refusals = 3

    async def load(self, policies: Sequence[PolicyRef]) -> None:
        if self.refusals and any(one.version == 2 for one in policies):
            self.refusals -= 1
            raise EngineFull("a reply still runs")
        await super().load(policies)


def test_while_the_engine_has_no_place_the_shared_parent_does_not_answer(
    start: Start, tmp_path: Path
) -> None:
    site = start(settings={"policy.per": "agent"}, engine_kind=FullEngine)
    for name in ("bob", "ann"):
        site.publish(tmp_path / "p", name=own("agent", name))
    wait_for(lambda: version_for(site, extra_headers={"X-Agent-Id": "bob"}), lambda v: v == "v1")
    assert version_for(site, **ASKS["agent"]) == "v2"
    assert isinstance(site.engine, FullEngine)
    assert not site.engine.refusals
