"""The checker of `make faults` finds every fault of episodes that is planted in a store or on this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults.client_log import EpisodeCut
from benchmarks.faults.environment_invariants import check_all_ended, check_episodes
from benchmarks.faults.environment_load import write_tracks
from benchmarks.faults.leftovers import find_leftovers
from benchmarks.faults.live_system import wait_until
from benchmarks.faults.small_disk import SmallDisk
from sqlalchemy import delete, insert, update
from tests.store import world

from openclaw_rl.environments.runner_lease import EpisodeLease, LeaseFolder, lease_folder
from openclaw_rl.sandbox.box_lease import LOCK_FILE
from openclaw_rl.sandbox.control_groups import find_parents, plan_groups
from openclaw_rl.store import events, leases, schema
from openclaw_rl.store.db import Store
from openclaw_rl.store.episodes import episodes
from openclaw_rl.store.episodes.records import Episode, EpisodeEnd
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Use

STARTED, REPLIED, ENDED = 9.0, 10.0, 12.0  # seconds; of every episode, and of its reply
NAME = "5eedab1e5eedab1e"  # of a box


def open_episode(store: Store, id: str, split: Any = "train") -> None:
    made = Episode(
        id=id,
        scope="key",
        task="a",
        group=f"g-{split}",
        size=8,
        split=split,
        started_at=STARTED,
        expires_at=1e9,
    )
    with store.write() as conn:
        episodes.open_episode(conn, made)


def end_episode(store: Store, id: str, reward: float | None) -> None:
    outcome: Any = "void" if reward is None else "done"
    with store.write() as conn:
        episodes.end_episode(
            conn, EpisodeEnd(id=id, scope="key", outcome=outcome, reward=reward, at=ENDED)
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The runs `r0` and `r1` with a done and a void episode each, and a held-out one; version 1 is of the done ones."""
    with Store.open(tmp_path / "store.db") as store:
        with store.write() as conn:
            policies.ensure_root(conn, base="base", identity="i", at=1.0)
        for run in ("r0", "r1"):
            for name, reward in (("done", 1.0), ("void", None)):
                open_episode(store, f"{run}-{name}")
                with store.write() as conn:
                    world.serve(conn, f"t-{run}-{name}")
                end_episode(store, f"{run}-{name}", reward)
        open_episode(store, "held", "held_out")
        with store.write() as conn:
            world.serve(conn, "t-held")
            for id_ in ("r0-done", "r0-void", "r1-done", "r1-void", "held"):
                where = schema.exchanges.c.id == f"t-{id_}"
                conn.execute(update(schema.exchanges).where(where).values(episode=id_))
            lease = leases.acquire(conn, "train", "me", 15.0, 1e9)
            assert lease is not None
            uses = [Use(policy=1, turn=f"t-{run}-done", number=1) for run in ("r0", "r1")]
            policies.publish(conn, lease, world.policy(1, 0), uses, 20.0)
        end_episode(store, "held", 0.5)
        yield store


def execute(store: Store, *statements: Any) -> None:
    with store.write() as conn:
        for statement in statements:
            conn.execute(statement)


def change_episode(store: Store, id: str, **values: Any) -> None:
    execute(store, update(schema.episodes).where(schema.episodes.c.id == id).values(**values))


def check(store: Store, *cuts: EpisodeCut) -> list[str]:
    with store.read() as conn:
        return [*check_episodes(conn, cuts), *check_all_ended(conn)]


def train_on_a_void_episode(store: Store) -> None:
    execute(store, insert(schema.uses).values(policy=1, turn="t-r0-void", number=1))


def train_on_a_held_out_episode(store: Store) -> None:
    execute(store, insert(schema.uses).values(policy=1, turn="t-held", number=1))


def train_on_a_running_episode(store: Store) -> None:
    change_episode(store, "r0-done", outcome=None, reward=None)


def count_an_outcome_twice(store: Store) -> None:
    with store.write() as conn:
        events.append(conn, episodes.ENDED_EVENT, "r0-done", {}, 13.0)


def lose_an_end(store: Store) -> None:
    execute(store, delete(schema.events).where(schema.events.c.ref == "r1-void"))


def reward_a_void_episode(store: Store) -> None:
    change_episode(store, "r0-void", reward=0.0)


def leave_an_episode(store: Store) -> None:
    open_episode(store, "r1-late")


PLANTED: dict[Callable[[Store], None], str] = {
    train_on_a_void_episode: "version 1 was trained on the turn t-r0-void of the void episode r0-void",
    train_on_a_held_out_episode: "version 1 was trained on the turn t-held of the held-out episode held",
    train_on_a_running_episode: "version 1 was trained on the turn t-r0-done of the running episode r0-done",
    count_an_outcome_twice: "the episode r0-done has ended 2 times instead of 1",
    lose_an_end: "the episode r1-void has ended 0 times instead of 1",
    reward_a_void_episode: "the episode r0-void is void with the reward 0.0",
    leave_an_episode: "the episode r1-late has no outcome, and no runner plays it",
}


def test_episodes_without_a_fault_have_no_violation(store: Store) -> None:
    cut = EpisodeCut(process="runner", run="r0", at=ENDED)
    assert check(store, cut, EpisodeCut(process="gateway", run="r1", at=REPLIED)) == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(store: Store, plant: Callable[[Store], None]) -> None:
    plant(store)
    found = check(store)
    assert any(PLANTED[plant] in line for line in found), found


def test_an_episode_that_outlives_its_runner_is_found(store: Store) -> None:
    cut = EpisodeCut(process="runner", run="r0", at=STARTED + 1)
    assert check(store, cut) == ["the episode r0-done is done 2.0 s after its runner was killed"]
    open_episode(store, "r0-left")
    found = check(store, cut)
    assert "the episode r0-left has no outcome, and its runner was killed" in found


def test_an_episode_with_replies_of_two_gateways_is_found(store: Store) -> None:
    found = sorted(check(store, EpisodeCut(process="gateway", run="r1", at=REPLIED - 0.5)))
    assert found == [
        f"the episode {id_} got replies before and after the gateway was killed, and is done"
        for id_ in ("held", "r0-done", "r1-done")
    ]


def test_everything_that_is_left_is_found(tmp_path: Path) -> None:
    scratch, home = tmp_path / "scratch", tmp_path / "home"
    boxes = scratch / "openclaw-rl-boxes-0"
    (boxes / "begun").mkdir(parents=True)
    assert find_leftovers(scratch, home, {NAME}) == [], "nobody locked it"
    (boxes / NAME).mkdir()
    (boxes / NAME / LOCK_FILE).touch()
    (scratch / "openclaw-episode").mkdir()
    runs = lease_folder(home, "run-0")
    runs.mkdir(parents=True)
    LeaseFolder(runs).add_lease(EpisodeLease(episode="e", folder="/tmp/e"))
    left = [
        "the folder openclaw-episode",
        f"the lease of the box {NAME}",
        "the lease of the run run-0",
    ]
    assert find_leftovers(scratch, home, {NAME}) == left


@pytest.mark.parametrize("of_box", [False, True])
def test_a_process_that_is_left_is_found(tmp_path: Path, *, of_box: bool) -> None:
    """Of a runner, by its folder for temporary files; of a box, by its name."""
    mark = NAME if of_box else str(tmp_path)
    with subprocess.Popen(
        ["sleep", "300"], env={"MARK": mark, "PATH": os.environ["PATH"]}
    ) as process:
        try:
            seen = lambda: find_leftovers(tmp_path, tmp_path / "home", {NAME})  # noqa: E731
            assert asyncio.run(wait_until(seen, 5)) == ["the process 'sleep 300'"]
        finally:
            process.kill()
    assert find_leftovers(tmp_path, tmp_path / "home", {NAME}) == []


def test_a_control_group_that_is_left_is_found(tmp_path: Path) -> None:
    groups = plan_groups(find_parents(), NAME)
    if not groups:
        pytest.skip("no control group can be made here")
    groups[0].mkdir()
    try:
        found = find_leftovers(tmp_path, tmp_path / "home", {NAME})
        assert found == [f"the control group {groups[0].parent.name}/openclaw-rl-box-{NAME}"]
    finally:
        groups[0].rmdir()


def test_a_mount_that_is_left_is_found(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    at = scratch / "openclaw-rl-boxes-0"
    try:
        disk = SmallDisk(at, 2**20)
    except (PermissionError, FileNotFoundError):
        pytest.skip("no filesystem can be mounted here")
    try:
        assert find_leftovers(scratch, tmp_path / "home", set()) == [f"a mount of {at}"]
    finally:
        disk.unmount()


def test_the_load_plays_every_task_of_the_track(tmp_path: Path) -> None:
    sources = write_tracks(tmp_path)
    folders = [Path(source.removeprefix("harbor:")) for source, *_ in sources]
    assert all((task / "task.toml").exists() for folder in folders for task in folder.iterdir())
    assert sum(len(list(folder.iterdir())) for folder in folders) > 30
    assert sorted(tmp_path.iterdir()) == sorted(folders)
