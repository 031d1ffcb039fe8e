"""New requests go to the newest version; replies end where they began; a swap waits, users do not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.conftest import USER, Site, Start, statuses, wait_for

from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.errors import SamplingUnsupported
from openclaw_rl.serve.versions.place_queue import plan_versions
from openclaw_rl.serve.versions.version_manager import VersionManager
from openclaw_rl.store import events
from openclaw_rl.store.lineage import head_moves, policies
from openclaw_rl.types import ExchangeStatus, PolicyState


def fingerprint(site: Site, model: str = "openclaw") -> str | None:
    return site.client().chat.completions.create(model=model, messages=[USER]).system_fingerprint


def test_a_new_head_answers_new_requests(site: Site, tmp_path: Path) -> None:
    assert fingerprint(site) == "v0"
    site.publish(tmp_path / "p")
    wait_for(lambda: fingerprint(site), lambda v: v == "v1")
    assert site.last().request.version == 1
    reply = site.last().reply
    assert reply is not None
    assert [(s.start, s.version) for s in reply.spans] == [(0, 1)]
    with site.store.write() as conn:
        head_moves.roll_back(conn, to=0, reason="worse", at=time.time())
    wait_for(lambda: fingerprint(site), lambda v: v == "v0")
    assert fingerprint(site, "openclaw@1") == "v1", "a pinned version can still be asked"


def test_a_reply_ends_on_the_version_it_began_on(start: Start, tmp_path: Path) -> None:
    site = start(delay=0.01)
    site.script.say("one two three four five six")
    stream = site.client().chat.completions.create(model="openclaw", messages=[USER], stream=True)
    first = next(iter(stream))
    site.publish(tmp_path / "p")
    wait_for(lambda: fingerprint(site), lambda v: v == "v1")
    assert {c.system_fingerprint for c in stream} | {first.system_fingerprint} == {"v0"}
    reply = site.get(first.id).reply
    assert reply is not None
    assert reply.spans[0].version == 0


def test_pinned_versions(site: Site, tmp_path: Path) -> None:
    for _ in range(3):
        site.publish(tmp_path / "p")
    site.publish(tmp_path / "p", state=PolicyState.REJECTED)
    wait_for(lambda: fingerprint(site), lambda v: v == "v3")
    site.engine.held = {3}
    assert fingerprint(site, "openclaw@1") == "v1", "loaded on demand"
    for missing in ("openclaw@4", "openclaw@9"):
        with pytest.raises(openai.NotFoundError):
            fingerprint(site, missing)


def test_any_name_where_the_owner_allows_it(start: Start) -> None:
    site = start(settings={"serve.any_model": True})
    reply = site.client().chat.completions.create(model="gpt-4", messages=[USER])
    assert (reply.model, reply.system_fingerprint) == ("gpt-4", "v0")


def test_at_the_cap_the_swap_waits(start: Start, tmp_path: Path) -> None:
    site = start(settings={"engine.max_loaded_versions": 2}, delay=0.02)
    site.script.say("one two three four five six seven eight")

    async def main() -> None:
        async with site.async_client() as client:

            async def ask() -> str | None:
                answer = await client.chat.completions.create(model="openclaw", messages=[USER])
                return answer.system_fingerprint

            first = asyncio.create_task(ask())
            await asyncio.sleep(0.05)
            site.publish(tmp_path / "p")
            while await client_version(site) != 1:
                await asyncio.sleep(0.01)
            second = asyncio.create_task(ask())
            await asyncio.sleep(0.02)
            site.publish(tmp_path / "p")  # 0 and 1 answer: no room for 2
            third = asyncio.create_task(ask())
            assert await asyncio.gather(first, second, third) == ["v0", "v1", "v1"], (
                "the third waits for no version"
            )

    asyncio.run(main())
    wait_for(lambda: fingerprint(site), lambda v: v == "v2")
    assert all(len(named) <= 2 for named in site.engine.loads)


async def client_version(site: Site) -> int:
    return max(p.version for p in site.engine.loads[-1])


def test_a_broken_head_does_not_stop_the_service(site: Site, tmp_path: Path) -> None:
    policy = site.publish(tmp_path / "p")
    wait_for(lambda: fingerprint(site), lambda v: v == "v1")
    second = site.publish(tmp_path / "p")
    wait_for(lambda: fingerprint(site), lambda v: v == "v2")
    assert second.path is not None
    for file in Path(second.path).iterdir():
        file.write_bytes(b"broken")
    site.engine.revive()  # it must load all it holds again
    assert wait_for(lambda: fingerprint(site), lambda v: v == "v1")
    assert policy.version == 1


def test_a_version_with_a_damaged_file_is_served_to_nobody(site: Site, tmp_path: Path) -> None:
    """Also if the engine would not notice, and if no trainer runs."""
    versions = [site.publish(tmp_path / "p") for _ in range(3)]
    wait_for(lambda: fingerprint(site), lambda v: v == "v3")
    for policy in versions[1:]:
        (Path(str(policy.path)) / "average.state").write_bytes(b"of another version")
    site.engine.revive()
    wait_for(lambda: fingerprint(site), lambda v: v == "v1")
    with pytest.raises(
        openai.InternalServerError, match=r"version 3 cannot be loaded: average\.state was added"
    ):
        fingerprint(site, "openclaw@3")
    ready = site.http.get("/readyz", {}).json()
    assert (ready["ready"], ready["version"], ready["head"]) == (True, 1, 1)
    assert [reason.split(".")[0] for reason in ready["reasons"]] == [
        "version 2 is damaged: average",
        "version 3 is damaged: average",
    ]
    with site.store.read() as conn:
        assert policies.head(conn).version == 1
        states = [policy.state for policy in policies.list_all(conn)]
    assert states == [PolicyState.LIVE] * 2 + [PolicyState.ROLLED_BACK] * 2


def test_a_version_without_files_is_not_offered(site: Site, tmp_path: Path) -> None:
    versions = [site.publish(tmp_path / "p") for _ in range(2)]
    wait_for(lambda: fingerprint(site), lambda v: v == "v2")
    with site.store.write() as conn:
        policies.mark_removed(conn, versions[0], versions[0].files)
    site.engine.revive()
    wait_for(lambda: fingerprint(site), lambda v: v == "v2")
    with pytest.raises(
        openai.NotFoundError, match="version 1 was removed to save space; the newest is 2"
    ):
        fingerprint(site, "openclaw@1")
    assert {model.id for model in site.client().models.list()} == {
        "openclaw",
        "openclaw@0",
        "openclaw@2",
    }


def test_the_serving_version_is_recorded_for_the_trainer(site: Site, tmp_path: Path) -> None:
    site.publish(tmp_path / "p")

    def recorded() -> int:
        with site.store.read() as conn:
            return events.read_cursor(conn, policies.SERVED_CURSOR)

    assert wait_for(recorded, lambda version: version == 1) == 1


# The engine goes away.


def test_a_request_that_has_sent_nothing_waits_for_the_engine(start: Start) -> None:
    site = start(gone_at=0)

    async def main() -> openai.types.chat.ChatCompletion:
        async with site.async_client() as client:
            asked = asyncio.create_task(
                client.chat.completions.create(model="openclaw", messages=[USER])
            )
            await asyncio.sleep(0.3)
            assert not asked.done()
            site.engine.revive()
            return await asked

    assert asyncio.run(main()).choices[0].message.content == "Hello there."
    assert statuses(site) == [ExchangeStatus.DONE]


def test_the_version_stored_is_the_one_that_answered(site: Site, tmp_path: Path) -> None:
    """Between admission and the first token, the engine is lost and cannot load the head again."""
    head = site.publish(tmp_path / "p")
    wait_for(lambda: fingerprint(site), lambda v: v == "v1")
    assert head.path is not None
    for file in Path(head.path).iterdir():
        file.write_bytes(b"broken")

    async def main() -> openai.types.chat.ChatCompletion:
        site.engine.gone_at = 0
        async with site.async_client() as client:
            asked = asyncio.create_task(
                client.chat.completions.create(model="openclaw", messages=[USER])
            )
            await asyncio.sleep(0.2)
            site.engine.revive()
            return await asked

    answer = asyncio.run(main())
    assert answer.system_fingerprint == "v0"
    kept = site.get(answer.id)
    assert kept.reply is not None
    assert [s.version for s in kept.reply.spans] == [0]
    assert kept.request.version == 0
    with site.store.read() as conn:
        sql = "SELECT count(*) FROM exchanges WHERE id = ? AND version = 0"
        assert conn.exec_driver_sql(sql, (answer.id,)).scalar_one() == 1


def test_after_a_while_it_is_a_503(start: Start) -> None:
    site = start(gone_at=0, settings={"serve.engine_wait": 0.2})
    with pytest.raises(openai.InternalServerError) as error:
        site.client().chat.completions.create(model="openclaw", messages=[USER], stream=True)
    assert error.value.status_code == 503
    assert error.value.code == "engine_unavailable"
    kept = site.ended(site.last().request.id).reply
    assert kept is not None
    assert kept.status is ExchangeStatus.FAILED


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_in_the_middle(start: Start, stream: bool) -> None:
    site = start(gone_at=2, delay=0.005)
    ids = site.script.say("one two three four")
    finishes: list[str | None] = []

    def ask() -> None:
        answer = site.client().chat.completions.create(
            model="openclaw", messages=[USER], stream=stream
        )
        finishes.extend(c.choices[0].finish_reason for c in answer if c.choices)

    with pytest.raises(openai.APIError, match="during the reply"):
        ask()
    assert not any(finishes)
    kept = site.ended(site.last().request.id).reply
    assert kept is not None
    assert kept.status is ExchangeStatus.FAILED
    assert kept.response_ids.tolist() == ids[:2]
    site.engine.revive()
    assert fingerprint(site) == "v0"


def test_an_engine_that_refuses(start: Start) -> None:
    site = start(refuse="out of memory")
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        fingerprint(site)
    assert statuses(site) == [ExchangeStatus.FAILED]


def test_a_sampling_parameter_that_the_engine_lacks_is_the_requests_fault(start: Start) -> None:
    site = start(refuse=SamplingUnsupported("no min_p here: leave it out of the request"))
    with pytest.raises(openai.BadRequestError, match="no min_p here") as refused:
        fingerprint(site)
    assert refused.value.code == "unsupported_parameter"
    assert len(site.engine.calls) == 1, "it was not tried again"


# The plan.


@given(
    loaded=st.frozensets(st.integers(0, 6), max_size=4),
    held=st.dictionaries(st.integers(0, 6), st.integers(0, 3), max_size=5),
    head=st.integers(0, 6),
    idle=st.lists(st.integers(0, 6), unique=True, max_size=4),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_the_plan(
    loaded: frozenset[int], held: dict[int, int], head: int, idle: list[int], data: st.DataObject
) -> None:
    serving = data.draw(st.sampled_from(sorted(loaded))) if loaded else head
    wanted = plan_versions(
        loaded=loaded, serving=serving, head=head, in_use=Counter(held), idle=idle, cap=4
    )
    assert len(wanted) == len(set(wanted)) <= 4
    used = {v for v in loaded if held.get(v) or v == serving}
    assert used <= set(wanted), "what answers is never taken away"
    assert head in wanted or len(used) == 4, "the head comes as soon as there is room"


def test_a_cancellation_that_comes_with_a_wake_up_is_not_lost(site: Site) -> None:
    """Else the gateway waits for its version manager at shutdown until it is killed."""

    async def cancel_as_it_wakes() -> bool:
        manager = VersionManager(site.store, site.engine, cap=4, metrics=GatewayMetrics())
        keeper = asyncio.create_task(manager.run())
        await manager.wait_loaded(
            manager.acquire_current(), asyncio.get_running_loop().time() + 240, pinned=False
        )
        await asyncio.sleep(0.05)  # it waits for the next wake-up
        manager._wake_event.set()
        await asyncio.sleep(0)  # the event has ended its wait, which nobody has read yet
        keeper.cancel()
        done, _ = await asyncio.wait({keeper}, timeout=240)
        keeper.cancel()
        return bool(done)

    assert asyncio.run(cancel_as_it_wakes())


def test_a_policy_whose_head_is_loaded_leaves_its_place_to_the_head_of_another() -> None:
    """Both have a newer head, and the engine has room for four versions: each gets its head without a request."""
    loaded = frozenset({0, 8, 9})
    for expected in ({0, 8, 9, 12}, {0, 8, 11, 12}, {0, 11, 12}):
        loaded = frozenset(
            plan_versions(
                loaded=loaded,
                serving=0,
                head=0,
                in_use=Counter(),
                idle=[],
                cap=4,
                others=[(9, 12), (8, 11)],
            )
        )
        assert loaded == expected
