"""The HTTP protocol of episodes: opening, the ticket, the outcome."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.serve.conftest import OTHER_KEY, TOOLS, USER, Site, Start, statuses, wait_for
from tests.serve.episodes.conftest import (
    EpisodeRun,
    Open,
    claimable,
    collect,
    collector_of,
    judge,
    put,
)

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.episodes.open_episodes import OpenEpisodes
from openclaw_rl.serve.episodes.ticket import Ticket, make_ticket, read_ticket
from openclaw_rl.store.episodes.episodes import running_episodes
from openclaw_rl.store.episodes.records import Episode
from openclaw_rl.types import ExchangeStatus

ANY = {"messages": [USER]}


def episode(id: str, *, expires_at: float) -> Episode:
    whole = {
        "scope": "s",
        "task": "t",
        "group": "g",
        "size": 2,
        "split": "train",
        "started_at": 0.0,
    }
    return Episode(id=id, expires_at=expires_at, **whole)  # type: ignore[arg-type]


def test_a_group_of_equal_prompts_is_never_crossed(site: Site, open_episode: Open) -> None:
    """Eight programs send the same, at temperature 0 and without headers, and get the same replies."""
    runs = [open_episode(f"e{n}", size=8) for n in range(8)]
    turns: dict[str, list[str]] = {run.id: [] for run in runs}
    for text in ("what now?", "and now?", "again"):
        for run in runs:
            turns[run.id].append(run.step(text, temperature=0))
    collect(site.store)
    for n, run in enumerate(runs):
        assert run.end(float(n % 2)).status_code == 200
    collect(site.store)
    assert {run.id: run.steps() for run in runs} == {
        run.id: {turn: step for step, turn in enumerate(turns[run.id])} for run in runs
    }
    assert claimable(site.store) == [], "the judge has not seen the observations"
    judge(site.store)
    (group,) = claimable(site.store)
    assert {
        item.turn.id: (item.episode.episode, item.episode.reward) for item in group if item.episode
    } == {turn: (f"e{n}", float(n % 2)) for n in range(8) for turn in turns[f"e{n}"]}


def test_opening_is_idempotent(site: Site) -> None:
    first, again = put(site, "e", max_steps=3, ttl=60), put(site, "e", max_steps=3, ttl=60)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    for other in ({"max_steps": 4}, {"ttl": 61}, {"task": "u"}, {"group": "h"}):
        answer = put(site, "e", **({"max_steps": 3, "ttl": 60} | other))
        assert answer.status_code == 409, other
        assert "was opened with another" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ttl": 0}, "ttl: expected 1 to 604800, got 0"),
        ({"size": 0}, "group.size: expected 1 to 256"),
        ({"max_steps": 0}, "max_steps: expected 1 to"),
        ({"split": "test"}, "split: "),
        ({"lessons": True}, "unknown field"),
        ({"sampling": {"temperature": 0}}, "could not be trained on: greedy sampling"),
        ({"sampling": {"top_p": 0.9}}, "could not be trained on: top_p 0.9 cuts"),
        ({"sampling": {"temperature": 3}}, "sampling.temperature: expected 0 to 2, got 3"),
        ({"sampling": {"top_k": 2**70}, "split": "held_out"}, "sampling.top_k: expected 0 to "),
        ({"sampling": {"max_tokens": 2**70}}, "sampling.max_tokens: expected 1 to "),
    ],
)
def test_what_cannot_be_opened(site: Site, change: dict[str, Any], words: str) -> None:
    answer = put(site, "e", **change)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_members_of_a_group_agree(site: Site) -> None:
    put(site, "a")
    answer = put(site, "b", size=3)
    assert answer.status_code == 409
    assert (
        "the group g has size 2. All its episodes must have the same"
        in answer.json()["error"]["message"]
    )


def test_the_ticket_gets_replies_in_every_dialect_and_models_and_nothing_else(
    site: Site, open_episode: Open
) -> None:
    run = open_episode("e")
    key = {"Authorization": f"Bearer {run.key}"}
    assert site.http.post("/v1/chat/completions", ANY, key).status_code == 200
    response = site.http.post("/v1/responses", {"input": "hi"}, key)
    assert response.status_code == 200
    messages = {"model": "openclaw", "max_tokens": 9, "messages": [USER]}
    assert site.http.post("/v1/messages", messages, {"x-api-key": run.key}).status_code == 200
    assert (
        site.http.post("/v1/completions", {"prompt": "hi", "model": "openclaw"}, key).status_code
        == 200
    )
    assert site.http.get("/v1/models", key).status_code == 200
    put(site, "other")
    refused = [
        site.http.post("/v1/feedback", {"id": site.last().request.id, "score": 1}, key),
        site.http.post("/v1/episodes/e/outcome", {"status": "done", "reward": 1}, key),
        site.http.send("PUT", "/v1/episodes/x", b"{}", key),
        site.http.get("/v1/episodes/e", key),
        site.http.get("/v1/episodes?group=g", key),
        site.http.get(f"/v1/responses/{response.json()['id']}", key),
        site.http.post("/v1/messages/count_tokens", messages, key),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    assert (
        "this key is for the replies of the episode e alone"
        in refused[0].json()["error"]["message"]
    )
    assert {turn["id"] for turn in run.shown()["turns"]} == {
        site.get(t["id"]).request.id
        for t in run.shown()["turns"]
        if site.get(t["id"]).request.episode == "e"
    }
    assert len(run.shown()["turns"]) == 4


def test_other_conversations_cannot_be_continued(site: Site, open_episode: Open) -> None:
    owned = site.http.post("/v1/responses", {"input": "a secret"}).json()["id"]
    other = open_episode("other")
    theirs = site.http.post(
        "/v1/responses", {"input": "hi"}, {"Authorization": f"Bearer {other.key}"}
    ).json()["id"]
    key = {"Authorization": f"Bearer {open_episode('e').key}"}
    for id_ in (owned, theirs):
        assert (
            site.http.post(
                "/v1/responses", {"input": "on", "previous_response_id": id_}, key
            ).status_code
            == 400
        )
    own = site.http.post("/v1/responses", {"input": "hi"}, key).json()["id"]
    assert (
        site.http.post(
            "/v1/responses", {"input": "on", "previous_response_id": own}, key
        ).status_code
        == 200
    )


def test_whatever_a_program_names_it_stays_in_its_episode(site: Site, open_episode: Open) -> None:
    run = open_episode("e", agent="coder")
    answer = run.send(
        ANY | {"user": "bob"}, X_Session_Id="mine", X_Agent_Id="root", X_Session_Done="1"
    )
    request = site.last().request
    assert (request.session, request.agent, request.user, request.session_done) == (
        "e",
        "coder",
        "",
        False,
    )
    for name in ("session", "user", "agent", "session_done"):
        assert f"{name} (the key is for the episode e)" in answer.headers["X-OpenClaw-Ignored"]


@pytest.mark.parametrize("key", ["sk-ep-e.9999999999.00", "sk-ep-e", "sk-ep-..", "sk-ep-e.x.y"])
def test_a_forged_ticket_is_an_unknown_key(site: Site, open_episode: Open, key: str) -> None:
    open_episode("e")
    assert (
        site.http.post("/v1/chat/completions", ANY, {"Authorization": f"Bearer {key}"}).status_code
        == 401
    )


def test_a_ticket_is_bound_to_episode_expiry_owner_and_store() -> None:
    ticket = Ticket(episode="a.b", owner="ann", expires_at=99)
    key = make_ticket(b"s" * 32, ticket)
    assert key.startswith("sk-ep-a.b.99.")
    assert read_ticket(b"s" * 32, key, ["bob", "ann"]) == ticket
    changed = (
        key.replace("a.b", "a.c"),
        key.replace(".99.", ".98."),
        key[:-1] + ("0" if key[-1] != "0" else "1"),
    )
    assert [read_ticket(b"s" * 32, other, ["ann"]) for other in changed] == [None] * 3
    assert read_ticket(b"s" * 32, key, ["bob"]) is None
    assert read_ticket(b"t" * 32, key, ["ann"]) is None


def test_after_the_outcome_the_ticket_is_gone(site: Site, open_episode: Open) -> None:
    run = open_episode("e")
    run.step("go")
    assert run.end(0.5, parts={"tests": 0.5}).status_code == 200
    answer = run.send(ANY)
    assert answer.status_code == 410
    assert answer.headers["X-Should-Retry"] == "false"
    assert answer.json()["error"]["message"] == "the episode e has ended."
    assert site.http.get("/v1/models", {"Authorization": f"Bearer {run.key}"}).status_code == 410


def test_an_outcome_is_given_once(site: Site, open_episode: Open) -> None:
    run = open_episode("e")
    first, again = run.end(0.5, reason="half"), run.end(0.5, reason="half")
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    assert (first.json()["status"], first.json()["reward"], first.json()["reason"]) == (
        "done",
        0.5,
        "half",
    )
    for other in (
        run.end(0.6, reason="half"),
        run.end(None),
        run.end(0.5, parts={"a": 1.0}, reason="half"),
    ):
        assert other.status_code == 409
        assert (
            "has ended with another outcome: done, reward 0.5 (half)"
            in other.json()["error"]["message"]
        )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"status": "done"}, 400),
        ({"status": "void", "reward": 0}, 400),
        ({"status": "lost"}, 400),
        ({"status": "done", "reward": 1, "steps": [{"reward": 1}]}, 400),
        ({"status": "done", "reward": 1, "steps": [{"reward": 1, "turn": "chatcmpl-other"}]}, 400),
        ({"status": "done", "reward": 1, "steps": [{"reward": 1, "index": -1}]}, 400),
        ({"status": "done", "reward": 1.7e308}, 400),
        ({"status": "done", "reward": 1, "steps": [{"reward": -1e300, "index": 0}]}, 400),
    ],
)
def test_what_is_no_outcome(
    site: Site, open_episode: Open, body: dict[str, Any], status: int
) -> None:
    run = open_episode("e")
    assert site.http.post("/v1/episodes/e/outcome", body).status_code == status
    assert run.shown()["status"] == "running"


def test_an_episode_belongs_to_its_owner(site: Site, open_episode: Open) -> None:
    open_episode("e")
    other = {"Authorization": f"Bearer {OTHER_KEY}"}
    assert site.http.get("/v1/episodes/e", other).status_code == 404
    assert site.http.post("/v1/episodes/e/outcome", {"status": "void"}, other).status_code == 404
    assert site.http.get("/v1/episodes?group=g", other).status_code == 404
    body = b'{"task": "t", "group": {"id": "h", "size": 2}}'
    assert site.http.send("PUT", "/v1/episodes/e", body, other).status_code == 409


def test_the_limit_on_the_replies_holds_and_failures_do_not_count(
    site: Site, open_episode: Open
) -> None:
    run = open_episode("e", max_steps=2)
    site.engine.refuse = "broken"
    assert run.send(ANY).status_code == 500
    site.engine.refuse = None
    assert run.send(ANY | {"n": 3}).status_code == 410
    assert [run.send(ANY).status_code for _ in range(3)] == [200, 200, 410]
    assert "has had 2 of 2 replies (max_steps)" in run.send(ANY).json()["error"]["message"]
    assert run.shown()["status"] == "running"


def test_replies_of_a_request_that_was_refused_or_failed_do_not_count(start: Start) -> None:
    """Neither does the store count them, which a gateway reads at its start."""
    site = start(delay=0.001)
    answer = put(site, "e", max_steps=2)
    run = EpisodeRun(site, "e", answer.json()["api_key"])
    key = {"Authorization": f"Bearer {run.key}"}
    for prompts, status in ((["one", "word " * 5000], 400), (["one", "two", "three"], 410)):
        assert (
            site.http.post(
                "/v1/completions", {"model": "openclaw", "prompt": prompts}, key
            ).status_code
            == status
        )
    site.script.say("one two three four " * 20)
    for is_stream in (False, True):
        site.engine.gone_at = 3
        assert "the engine disconnected" in run.send(ANY | {"n": 2, "stream": is_stream}).text
        site.engine.revive()
        wait_for(lambda: site.engine.running[0], lambda n: n == 0)
    assert run.send(ANY).status_code == 200
    wait_for(lambda: statuses(site), lambda found: ExchangeStatus.RUNNING not in found)
    assert len(statuses(site)) == 8
    with site.store.read() as conn:
        assert [number for _, number in running_episodes(conn)] == [1]
    assert [run.send(ANY).status_code for _ in range(2)] == [200, 410]


def test_replies_that_a_program_cuts_off_count_from_their_first_token(start: Start) -> None:
    site = start(delay=0.02)
    site.script.say("one two three " * 20)
    run = EpisodeRun(site, "e", put(site, "e", max_steps=1).json()["api_key"])

    async def leave() -> None:
        async with site.async_client(run.key) as client:
            answer = await client.chat.completions.create(
                model="openclaw", messages=[USER], stream=True
            )
            async for chunk in answer:
                if chunk.choices[0].delta.content:
                    break
            await answer.close()

    asyncio.run(leave())
    wait_for(lambda: statuses(site), lambda found: found == [ExchangeStatus.CANCELLED])
    assert run.send(ANY).status_code == 410
    with site.store.read() as conn:
        assert [number for _, number in running_episodes(conn)] == [1]


def test_after_its_expiry_an_episode_gets_no_replies() -> None:
    """The gateway's clock decides, before the collector ends the episode as void."""
    now = 1000.0
    known = OpenEpisodes([(episode("e", expires_at=1060.0), 0)], clock=lambda: now)
    now = 1059.0
    known.reserve_replies("e", 1)
    now = 1060.0
    with pytest.raises(
        RequestError, match="the episode e has ended: it expired without an outcome"
    ) as raised:
        known.get_running("e")
    assert raised.value.status == 410


def test_expired_episodes_do_not_pile_up() -> None:
    now = 0.0
    known = OpenEpisodes(clock=lambda: now)
    for number in range(5000):
        now = float(number)
        known.add_episode(episode(f"e{number}", expires_at=number + 10.0))
    assert len(known) < 2000
    assert known.get_running("e4999").id == "e4999"


def test_an_expired_episode_is_void(site: Site, open_episode: Open) -> None:
    run = open_episode("e", ttl=60)
    run.step("go")
    collector_of(site.store).end_expired_episodes(time.time() + 61)
    collect(site.store)
    shown = run.shown()
    assert (shown["status"], shown["reason"]) == ("void", "it expired without an outcome")
    answer = run.end(1.0)
    assert answer.status_code == 409
    assert "it expired without an outcome" in answer.json()["error"]["message"]


def test_an_outcome_after_the_expiry_is_too_late(site: Site, open_episode: Open) -> None:
    """Also before the collector has seen it: the last requests of the program may have been refused."""
    run = open_episode("e", ttl=1)
    time.sleep(1.1)
    assert run.send(ANY).status_code == 410
    answer = run.end(1.0)
    assert answer.status_code == 409
    assert (
        answer.json()["error"]["message"] == "episode e has ended: it expired without an outcome."
    )
    assert run.end(None).status_code == 200
    assert run.shown()["status"] == "void"


def test_sampling_that_spoils_a_turn_is_replaced_and_named(site: Site, open_episode: Open) -> None:
    run = open_episode("e", sampling={"max_tokens": 7})
    spoiled = {
        "temperature": 0,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "logit_bias": {"5": 2},
    }
    spoiled |= {"seed": 17}  # spoils the group: equal prompts would have equal replies
    answer = run.send(ANY | spoiled)
    sampling = site.last().request.sampling
    assert sampling.untrainable_reason() is None
    assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (1.0, 7, None)
    for name in spoiled:
        assert f"{name} (the episode e samples with" in answer.headers["X-OpenClaw-Ignored"]
    assert "X-OpenClaw-Ignored" not in run.send(ANY | {"temperature": 0.7}).headers
    assert site.last().request.sampling.temperature == 0.7


def test_a_forced_call_is_obeyed_and_shown(site: Site, open_episode: Open) -> None:
    run = open_episode("e")
    site.script.say(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    )
    assert run.send(ANY | {"tools": TOOLS, "tool_choice": "required"}).status_code == 200
    assert "forced format or tool call" in run.shown()["turns"][0]["untrainable"]


def test_held_out_episodes_keep_their_sampling_and_never_train(
    site: Site, open_episode: Open
) -> None:
    runs = [open_episode(f"e{n}", split="held_out") for n in range(2)]
    for n, run in enumerate(runs):
        run.step("go", temperature=0, seed=17)
        assert (site.last().request.sampling.temperature, site.last().request.sampling.seed) == (
            0,
            17,
        )
        run.end(float(n))
    collect(site.store)
    assert claimable(site.store) == []
    assert [run.shown()["turns"][0]["untrainable"] for run in runs] == ["its task is held out"] * 2
    assert site.http.get("/v1/episodes?group=g").json()["group"]["reason"] == "its task is held out"
