"""`policy.per`: who asks decides which policy answers, and one policy's new version changes nobody else's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import USER, Site, Start, wait_for

from openclaw_rl.store.lineage import policies

ASKS: Mapping[str, Mapping[str, Any]] = {"agent": {"extra_headers": {"X-Agent-Id": "ann"}}, "user": {"user": "ann"}}


def version_for(site: Site, **asked: Any) -> str | None:
    return site.client().chat.completions.create(model="openclaw", messages=[USER], **asked).system_fingerprint


@pytest.mark.parametrize("per", ASKS)
def test_each_is_answered_by_its_own_policy(start: Start, tmp_path: Path, per: str) -> None:
    site = start(settings={"policy.per": per})
    site.publish(tmp_path / "p", name=f"{per}:ann")
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
    site.publish(tmp_path / "p", name="agent:ann")
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
    versions = {name: site.publish(tmp_path / "p", name=f"agent:{name}").version for name in "abcdefghijkl"}

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
    site.publish(tmp_path / "p", name="agent:ann")
    wait_for(lambda: version_for(site, **ASKS["agent"]), lambda v: v == "v1")
    site.publish(tmp_path / "p", name="agent:bob")
    broken = site.publish(tmp_path / "p", name="agent:ann")
    for file in Path(str(broken.path)).iterdir():
        file.write_bytes(b"broken")
    time.sleep(0.5)
    assert version_for(site, **ASKS["agent"]) == "v1"
    with site.store.read() as conn:
        assert policies.head(conn, "agent:ann").version == 1, "the head has moved back"
        assert policies.head(conn, "agent:bob").version == 2
