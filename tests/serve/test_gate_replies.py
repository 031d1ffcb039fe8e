"""The gate gets replies of a candidate from the gateway. Nobody else does, and nobody waits for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from tests.serve.conftest import KEY, USER, Site, Start, wait_for

from openclaw_rl.common.gateway_address import GATE_REPLY_PATH, GatewayAddress, publish_address
from openclaw_rl.common.progress import progress_count
from openclaw_rl.gates import reply_source
from openclaw_rl.gates.reply_source import (
    DelayCode,
    GateReply,
    GatewayReplySource,
    NoGateway,
    RepliesDelayed,
    ReplyOrder,
)
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.serve.gate import reply_handler
from openclaw_rl.store import heartbeats, leases
from openclaw_rl.store.lineage import candidates, policy_marks
from openclaw_rl.types import Policy, PolicyState

ORDER = ReplyOrder(version=1, prompt_ids=[1, 2, 3], max_tokens=64, temperature=0.0, seed=0)


@pytest.fixture
def source(site: Site, tmp_path: Path) -> Iterator[GatewayReplySource]:
    with listening(site, tmp_path):
        yield GatewayReplySource(tmp_path, site.store, 2)


def listening(site: Site, home: Path) -> AbstractContextManager[None]:
    address = GatewayAddress(
        url=site.url, model="openclaw", model_path="starter", key="file", pid=1
    )
    return publish_address(home, address)


def test_a_canary_answers_its_share_of_the_conversations(site: Site, tmp_path: Path) -> None:
    candidate = site.publish(tmp_path / "p", state=PolicyState.CANDIDATE)
    with site.store.write() as conn:
        policy_marks.begin_canary(conn, candidate.name, candidate.version, 0.5, time.time())

    def versions_of(conversations: range) -> list[str]:
        answers = (
            site.client().chat.completions.create(
                model="openclaw", messages=[USER], extra_headers={"X-Session-Id": f"s{n}"}
            )
            for n in conversations
        )
        return [str(answer.system_fingerprint) for answer in answers]

    wait_for(lambda: versions_of(range(20)), lambda found: "v1" in found)
    first = versions_of(range(40))
    assert 10 <= first.count("v1") <= 30
    assert versions_of(range(40)) == first, "a conversation keeps its version"
    decide(site, candidate, promote=False)
    wait_for(lambda: set(versions_of(range(8))), lambda found: found == {"v0"})


def decide(site: Site, candidate: Policy, *, promote: bool) -> None:
    now = time.time()
    with site.store.write() as conn:
        lease = leases.acquire(conn, "train", "test", 30.0, now)
        assert lease is not None
        if promote:
            candidates.promote_candidate(conn, lease, candidate, {}, now)
        else:
            candidates.reject_candidate(
                conn, lease, candidate, Reason(ReasonCode.WORSE, "worse"), {}, now
            )
        leases.release(conn, lease)


def pinned(site: Site, version: int) -> str | None:
    answer = site.client().chat.completions.create(model=f"openclaw@{version}", messages=[USER])
    return answer.system_fingerprint


def loaded(site: Site) -> set[int]:
    return {ref.version for ref in site.engine.loads[-1]}


def test_a_candidate_answers_the_gate_alone(
    site: Site, source: GatewayReplySource, tmp_path: Path
) -> None:
    ids = site.script.say("Paris is the capital.")
    candidate = site.publish(tmp_path / "p", state=PolicyState.CANDIDATE)
    before, after = source.generate([ORDER, ORDER])
    assert before.token_ids.tolist() == after.token_ids.tolist() == ids
    assert (after.finish, len(after.logprobs)) == ("stop", len(ids))
    assert 1 in loaded(site)
    assert site.count() == 0, "nothing of it is stored"
    assert site.http.get("/readyz").json()["candidate"] == 1
    with pytest.raises(openai.NotFoundError, match="candidate that the gate has not decided on"):
        pinned(site, 1)
    assert [model.id for model in site.client().models.list()] == ["openclaw", "openclaw@0"]
    decide(site, candidate, promote=True)
    wait_for(lambda: pinned(site, 1), lambda v: v == "v1")


def test_a_rejected_candidate_is_unloaded(
    site: Site, source: GatewayReplySource, tmp_path: Path
) -> None:
    candidate = site.publish(tmp_path / "p", state=PolicyState.CANDIDATE)
    source.generate([ORDER])
    decide(site, candidate, promote=False)
    wait_for(lambda: loaded(site), lambda versions: versions == {0})
    with pytest.raises(openai.NotFoundError, match="was rejected"):
        pinned(site, 1)
    with pytest.raises(RepliesDelayed, match="was rejected"):
        source.generate([ORDER])


def test_a_client_cannot_ask_for_the_gate(site: Site) -> None:
    body = {"version": 0, "prompt_ids": [1], "max_tokens": 1, "temperature": 0.0, "seed": 0}
    assert site.http.post(GATE_REPLY_PATH, body).status_code == 401


@contextmanager
def reply_for_gate(site: Site, home: Path) -> Iterator[Future[list[GateReply]]]:
    """A reply for the gate that takes half a second, and is being generated."""
    site.script.say("one two three four five six seven eight nine ten eleven twelve")
    source = GatewayReplySource(home, site.store, 1)
    order = ReplyOrder(version=0, prompt_ids=[1], max_tokens=64, temperature=0.0, seed=0)
    with listening(site, home), ThreadPoolExecutor(1) as pool:
        found = pool.submit(source.generate, [order])
        wait_for(lambda: len(site.engine.calls), lambda count: count == 1)
        yield found


def test_people_come_first(start: Start, tmp_path: Path) -> None:
    site = start(delay=0.05)
    with reply_for_gate(site, tmp_path) as gate:
        reply = site.client().chat.completions.create(model="openclaw", messages=[USER])
        with pytest.raises(RepliesDelayed, match="replies to people are running"):
            gate.result(240)
    assert reply.choices[0].finish_reason == "stop"


def test_it_ends_before_the_prompt_of_a_person_is_there(start: Start, tmp_path: Path) -> None:
    """A request whose body is still on its way has the machine for itself."""
    site = start(delay=0.05)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: 100\r\n\r\n"
    )
    address = ("127.0.0.1", int(site.url.rpartition(":")[2]))
    with reply_for_gate(site, tmp_path) as gate, socket.create_connection(address) as connection:
        connection.sendall(head.encode())
        with pytest.raises(RepliesDelayed, match="replies to people are running"):
            gate.result(240)
    assert site.count() == 0


def test_a_reply_beside_people_takes_nothing_from_them(start: Start, tmp_path: Path) -> None:
    """Practice gets one reply at a time while a person's replies run; both are complete."""
    site = start(delay=0.05)
    ids = site.script.say("one two three four five six seven eight nine ten eleven twelve")
    beside = replace(ORDER, version=0, beside=True)
    with listening(site, tmp_path), ThreadPoolExecutor(3) as pool:
        person = pool.submit(
            site.client().chat.completions.create, model="openclaw", messages=[USER]
        )
        wait_for(lambda: len(site.engine.calls), lambda count: count == 1)
        practice = pool.submit(GatewayReplySource(tmp_path, site.store, 1).generate, [beside])
        wait_for(lambda: len(site.engine.calls), lambda count: count == 2)
        with pytest.raises(RepliesDelayed, match="replies to people are running") as refused:
            GatewayReplySource(tmp_path, site.store, 1).generate([beside])
        assert refused.value.code is DelayCode.BUSY
        assert practice.result(240)[0].token_ids.tolist() == ids
        assert person.result(240).choices[0].finish_reason == "stop"
    assert site.count() == 1, "of the reply for practice, nothing is stored"


def test_a_reply_that_takes_long_is_waited_for(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the client waits for a sign of the gateway: each sign is progress."""
    monkeypatch.setattr(reply_source, "REPLY_TIMEOUT", 0.5)
    monkeypatch.setattr(reply_handler, "SIGN_SECONDS", 0.05)
    site = start(delay=0.1)
    ids = site.script.say("one two three four five six seven eight nine ten eleven twelve")
    before = progress_count()
    with listening(site, tmp_path):
        (reply,) = GatewayReplySource(tmp_path, site.store, 1).generate([replace(ORDER, version=0)])
    assert reply.token_ids.tolist() == ids
    assert progress_count() - before > 5


def test_a_reply_that_is_given_up_after_signs_says_why(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_handler, "SIGN_SECONDS", 0.02)
    site = start(delay=0.05)
    with reply_for_gate(site, tmp_path) as gate:
        before = progress_count()
        wait_for(progress_count, lambda count: count > before)
        site.client().chat.completions.create(model="openclaw", messages=[USER])
        with pytest.raises(RepliesDelayed, match="replies to people are running") as delayed:
            gate.result(240)
    assert delayed.value.code is DelayCode.BUSY


def test_without_a_gateway(site: Site, tmp_path: Path) -> None:
    source = GatewayReplySource(tmp_path / "home", site.store, 1)
    with pytest.raises(NoGateway):
        source.generate([ORDER])
    heartbeats.write_heartbeat(site.store, "gateway")
    with pytest.raises(RepliesDelayed, match="cannot be reached"):
        source.generate([ORDER])
