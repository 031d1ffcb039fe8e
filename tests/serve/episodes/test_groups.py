"""When a group trains, what of it, and with which advantages: from HTTP to the samples of a batch."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.serve.conftest import OTHER_KEY, SCOPE, Site, Start
from tests.serve.episodes.conftest import (
    EpisodeRun,
    Open,
    claimable,
    collect,
    collector_of,
    judge,
    put,
)

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.methods.group_relative import GroupRelativeMethod
from openclaw_rl.methods.registry import make_method
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.serve.auth import scope_of
from openclaw_rl.settings.load import train_settings
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.store.lineage.policy_names import owner_filter, waiting_names
from openclaw_rl.train.sample_builder import SampleBatch, SampleBuilder
from openclaw_rl.types import JudgeInput


def batch(
    site: Site, *, max_staleness: int = 64, line: list[int] | None = None, **settings: Any
) -> SampleBatch:
    """The samples of all groups that are ready."""
    method = make_method(train_settings({"method": "groups"} | settings))
    builder = SampleBuilder(
        renderer=site.renderer,
        transient=EphemeralMatcher([]),
        signal=method,
        max_staleness=max_staleness,
    )
    items = [item for group in claimable(site.store) for item in group]
    with site.store.read() as conn:
        head = policies.head(conn)
    return builder.build_batch(items, head, line or [head.version])


def advantages(made: SampleBatch, **weights: Any) -> dict[str, float | None]:
    method = GroupRelativeMethod(**weights)
    return {s.turn: method.advantage(s.episode) for s in made.samples if s.episode}


def settle(site: Site) -> None:
    collect(site.store)
    judge(site.store)


def play(run: EpisodeRun, steps: int) -> list[str]:
    return [
        run.step(f"observation {n}", f"reply {n} of the episode {run.id}") for n in range(steps)
    ]


def test_two_groups_with_void_members_by_hand(site: Site, open_episode: Open) -> None:
    """o: group g has 1, 0, 0.5 and a void one: mean 0.5. Group h has 1, 0 and two void ones: mean 0.5.

    s, of the environment in g alone: at step 0 it is 0.4, 0.2 and nothing, mean 0.3; at step 1 only a has one.
    """
    played: dict[str, list[str]] = {}
    outcomes: dict[str, float | None] = {"g.a": 1.0, "g.b": 0.0, "g.c": 0.5, "g.d": None}
    outcomes |= {"h.a": 1.0, "h.b": None, "h.c": 0.0, "h.d": None}
    steps = {
        "g.a": [{"index": 0, "reward": 0.4}, {"index": 1, "reward": -3.0}],
        "g.b": [{"index": 0, "reward": 0.2}],
    }
    for name, reward in outcomes.items():
        run = open_episode(name, group=name[0], size=4)
        played[name] = play(run, 2)
        run.end(reward, **({"steps": steps[name]} if name in steps else {}))
    settle(site)
    made = batch(site)
    expected = {
        **dict(zip(played["g.a"], [0.5 + 0.1, 0.5], strict=True)),
        **dict(zip(played["g.b"], [-0.5 - 0.1, -0.5], strict=True)),
        **dict(zip(played["g.c"], [0.0, 0.0], strict=True)),
        **dict(zip(played["h.a"], [0.5, 0.5], strict=True)),
        **dict(zip(played["h.c"], [-0.5, -0.5], strict=True)),
    }
    assert advantages(made) == pytest.approx(expected)
    doubled = advantages(made, w_outcome=2.0, w_step=10.0)
    assert doubled[played["g.a"][0]] == pytest.approx(2 * 0.5 + 10 * 0.1)
    voided = [turn for name in ("g.d", "h.b", "h.d") for turn in played[name]]
    shown = [
        t
        for name in ("g.d", "h.b", "h.d")
        for t in site.http.get(f"/v1/episodes/{name}").json()["turns"]
    ]
    assert [t["id"] for t in shown] == voided
    assert {t["untrainable"] for t in shown} == {"its episode is void: the environment failed"}


def test_without_rewards_of_steps_the_verdicts_on_the_observations_count(
    site: Site, open_episode: Open
) -> None:
    """The last step has no observation, so the outcome alone speaks of it."""
    first, second = open_episode("a"), open_episode("b")
    turns = play(first, 3), play(second, 2)
    first.end(1.0), second.end(1.0)
    collect(site.store)

    def opinion(item: JudgeInput) -> int | None:
        return {turns[0][0]: 1, turns[0][1]: -1, turns[1][0]: 0}.get(item.turn)

    judge(site.store, opinion)
    made = batch(site)
    assert advantages(made) == pytest.approx({turns[0][0]: 0.5, turns[1][0]: -0.5})
    silent = [turns[0][1], turns[0][2], turns[1][1]]
    assert {turn: why.code for turn, why in made.dropped.items()} == dict.fromkeys(
        silent, ReasonCode.EQUAL_REWARDS
    )


def test_a_group_that_went_all_alike_trains_nothing(site: Site, open_episode: Open) -> None:
    for name in ("a", "b"):
        run = open_episode(name)
        play(run, 1)
        run.end(1.0)
    settle(site)
    made = batch(site)
    assert made.samples == []
    assert {why.code for why in made.dropped.values()} == {ReasonCode.EQUAL_REWARDS}


def test_an_episode_whose_replies_cannot_train_still_counts_in_the_mean(
    site: Site, open_episode: Open
) -> None:
    """Garbage has no sample, but its reward of 0 is what the others are compared with."""
    good, bad = open_episode("a"), open_episode("b")
    turns = play(good, 1)
    bad.step("go", "ha " * 200)
    assert site.last().reply is not None
    good.end(1.0), bad.end(0.0)
    settle(site)
    assert bad.shown()["turns"][0]["drop_reason"].startswith("degenerate reply")
    assert advantages(batch(site)) == {turns[0]: 0.5}


def test_a_group_waits_for_its_members_and_then_for_its_time(
    site: Site, open_episode: Open
) -> None:
    runs = [open_episode(name, size=3, ttl=60) for name in ("a", "b")]
    for n, run in enumerate(runs):
        play(run, 1)
        run.end(float(n))
    settle(site)
    assert claimable(site.store) == []
    collector = collector_of(site.store)
    assert collector.end_expired_episodes(time.time() + 30) == 0
    assert collector.end_expired_episodes(time.time() + 61) == 1
    assert [len(group) for group in claimable(site.store)] == [2]
    late = put(site, "c", size=3)
    assert late.status_code == 409
    assert "the group g is complete" in late.json()["error"]["message"]


def test_a_running_member_is_waited_for(site: Site, open_episode: Open) -> None:
    """Also above the size of the group: a void episode may have been replaced."""
    runs = [open_episode(name) for name in ("a", "b", "c")]
    for run, reward in zip(runs, (1.0, None), strict=False):
        play(run, 1)
        run.end(reward)
    settle(site)
    assert claimable(site.store) == []
    play(runs[2], 1)
    runs[2].end(0.0)
    settle(site)
    assert [len(group) for group in claimable(site.store)] == [2]


def test_with_fewer_than_two_known_rewards_a_group_is_dropped_with_the_reason(
    site: Site, open_episode: Open
) -> None:
    for name, reward in (("a", 1.0), ("b", None)):
        run = open_episode(name)
        play(run, 1)
        run.end(reward)
    settle(site)
    assert claimable(site.store) == []
    why = "its group g has 1 known rewards of 2, and 2 are compared"
    assert site.http.get("/v1/episodes?group=g").json()["group"]["reason"] == why
    assert site.http.get("/v1/episodes/a").json()["turns"][0]["untrainable"] == why


def test_a_stale_turn_takes_its_whole_group_along(site: Site, open_episode: Open) -> None:
    for name, reward in (("a", 1.0), ("b", 0.0)):
        run = open_episode(name)
        play(run, 2)
        run.end(reward)
    settle(site)
    (group,) = claimable(site.store)
    with site.store.write() as conn:
        conn.exec_driver_sql("UPDATE exchanges SET version = 5 WHERE id != ?", (group[0].turn.id,))
        conn.exec_driver_sql("UPDATE replies SET spans = '[]'")
    line = [5, 4, 3, 2, 1, 0]
    assert len(batch(site, max_staleness=5, line=line).samples) == 4
    made = batch(site, max_staleness=4, line=line)
    assert made.samples == []
    assert {why.detail.partition(";")[0] for why in made.dropped.values()} == {
        "a group is trained on whole or not at all"
    }
    assert all(
        "too stale: answered by version 0, 5 versions ago" in why.detail
        for why in made.dropped.values()
    )


def test_no_conversation_method_ever_sees_an_episode(site: Site, open_episode: Open) -> None:
    for name, reward in (("a", 1.0), ("b", 0.0)):
        run = open_episode(name)
        play(run, 2)
        run.end(reward)
    collect(site.store)
    judge(site.store, lambda item: 1)
    with site.store.read() as conn:
        found = training_queue.trainable_turns(
            conn, limit=9, max_uses=1, need_score=True, need_hint=True
        )
        held = training_queue.held_out_turns(conn, version=0, limit=9)
    assert (found, held) == ([], [])
    assert len(claimable(site.store)[0]) == 4


def test_with_a_policy_for_each_key_a_group_trains_that_of_its_owner(start: Start) -> None:
    site = start(settings={"policy.per": "key"})
    for name, reward in (("a", 1.0), ("b", 0.0)):
        run = EpisodeRun(site, name, put(site, name).json()["api_key"])
        play(run, 1)
        run.end(reward)
    settle(site)
    with site.store.read() as conn:
        assert waiting_names(conn, "key") == [f"key:{SCOPE}"]
        for scope, number in ((SCOPE, 1), (scope_of(OTHER_KEY), 0)):
            owner = owner_filter("key", f"key:{scope}")
            found = training_queue.trainable_groups(conn, limit=9, max_uses=1, owner=owner)
            assert len(found) == number


def test_after_a_restart_tickets_and_counts_go_on(start: Start) -> None:
    first = start()
    run = EpisodeRun(first, "a", put(first, "a", max_steps=2).json()["api_key"])
    run.step("go", "the first reply")
    done = EpisodeRun(first, "b", put(first, "b").json()["api_key"])
    done.end(1.0)
    first.close()
    second = start(store=first.store)
    run.site = done.site = second
    run.step("on", "the second reply")
    assert run.send({"messages": run.messages}).json()["error"]["code"] == "max_steps"
    assert done.send({"messages": run.messages}).json()["error"]["code"] == "episode_ended"
    assert put(second, "a", max_steps=2).json()["api_key"] == run.key


@pytest.mark.parametrize(("outcome", "expected"), [("as_is", 0.5), ("signed", 1.0)])
def test_the_outcome_is_mapped(
    site: Site, open_episode: Open, outcome: str, expected: float
) -> None:
    for name, reward in (("a", 1.0), ("b", 0.0)):
        run = open_episode(name)
        play(run, 1)
        run.end(reward)
    settle(site)
    made = batch(site)
    assert sorted(advantages(made, outcome=outcome).values(), key=str) == pytest.approx(
        [-expected, expected]
    )


def test_a_damaged_episode_is_void_and_holds_nothing_up(site: Site, open_episode: Open) -> None:
    runs = [open_episode(name, size=3) for name in ("a", "b", "c")]
    for n, run in enumerate(runs):
        play(run, 1)
        run.end(float(n))
    with site.store.write() as conn:
        conn.exec_driver_sql("UPDATE episodes SET parts = '{' WHERE id = 'c'")
    settle(site)
    (group,) = claimable(site.store)
    assert {item.episode.episode for item in group if item.episode} == {"a", "b"}
    assert {item.episode.rewards for item in group if item.episode} == {(0.0, 1.0)}
