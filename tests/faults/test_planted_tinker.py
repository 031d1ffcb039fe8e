"""The checker of `make faults-tinker` finds a step that was taken twice and a checkpoint of another version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.faults.tinker_invariants import check_steps
from tests.store import world

from openclaw_rl.common.policy_digest import TINKER_FILE, digest_of_folder
from openclaw_rl.learner.model.state_files import STATE_FILE
from openclaw_rl.store import leases
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.tinker.version_file import TinkerVersion, encode_version
from openclaw_rl.types import Use

Publish = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as store:
        with store.write() as conn:
            policies.ensure_root(conn, base="base", identity="i", at=1.0)
            for turn in ("t1", "t2"):
                world.judged(conn, turn)
        yield store


@pytest.fixture
def publish(store: Store, tmp_path: Path) -> Publish:
    """Publish a version of so many steps, with its own checkpoints or those of another one."""

    def write(version: int, *, steps: int, checkpoint: int | None = None) -> None:
        folder = tmp_path / f"v{version}"
        folder.mkdir()
        name = version if checkpoint is None else checkpoint
        held = TinkerVersion(
            base="base", rank=8, sampler=f"tinker://run/v-{name}", state=f"tinker://run/s-{name}"
        )
        (folder / TINKER_FILE).write_bytes(encode_version(held))
        (folder / STATE_FILE).write_text(json.dumps({"steps": steps, "samples": 4}))
        made = replace(
            world.policy(version, version - 1), path=str(folder), digest=digest_of_folder(folder)
        )
        with store.write() as conn:
            lease = leases.acquire(conn, "train", "me", 15.0, 1e9)
            assert lease is not None
            policies.publish(
                conn, lease, made, [Use(policy=version, turn=f"t{version}", number=1)], 20.0
            )

    return write


def find_violations(store: Store) -> list[str]:
    with store.read() as conn:
        return list(check_steps(conn, store.path.parent))


def test_versions_of_one_step_each_are_fine(store: Store, publish: Publish) -> None:
    publish(1, steps=1)
    publish(2, steps=2)
    assert find_violations(store) == []


def test_a_step_that_was_taken_twice_or_lost_is_found(store: Store, publish: Publish) -> None:
    publish(1, steps=2)
    publish(2, steps=2)
    assert find_violations(store) == [
        "version 1 has 2 steps instead of 1",
        "version 2 has 2 steps instead of 3",
    ]


def test_a_checkpoint_of_another_version_is_found(store: Store, publish: Publish) -> None:
    publish(1, steps=1)
    publish(2, steps=2, checkpoint=1)
    assert find_violations(store) == ["version 2 has a checkpoint of version 1"] * 2
