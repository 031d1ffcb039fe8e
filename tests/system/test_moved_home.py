"""A home is moved and copied: both serve the same head from their own files, and training goes on in both."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.test_words import run

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.types import Policy

pytestmark = pytest.mark.system

SETTINGS = {"train.batch.min_turns": 1, "train.batch.max_turns": 2}


def learn(system: SubprocessSystem) -> int:
    """Send a message and a reaction to its reply, and wait for the version that is trained on it."""
    said = [{"role": "user", "content": "What is the capital of France?"}]
    first = post_json(
        system, "/v1/chat/completions", {"model": "openclaw", "messages": said, "max_tokens": 32}
    )
    said += [first["choices"][0]["message"], {"role": "user", "content": "Perfect, thanks!"}]
    post_json(
        system, "/v1/chat/completions", {"model": "openclaw", "messages": said, "max_tokens": 32}
    )
    return system.wait_until_settled()


def head_of(home: Path) -> Policy:
    with Store.open(home / "store.db", create=False) as store, store.read() as conn:
        return policies.head(conn)


def files_of(home: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file.relative_to(home)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in home.rglob("*")
        if file.is_file()
    }


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for that of a Unix socket below it."""
    with tempfile.TemporaryDirectory(prefix="moved-") as folder:
        yield Path(folder).resolve()


@pytest.mark.timeout(600)
def test_a_moved_home_and_its_copy_serve_the_head_and_learn(short_folder: Path) -> None:
    first, moved, copy = (
        short_folder / "first",
        short_folder / "elsewhere" / "moved home",
        short_folder / "copy",
    )
    with SubprocessSystem(scratch_config(first, SETTINGS)) as system:
        version = learn(system)
        key = system.api_key
    assert version > 0
    learned = head_of(first)
    shutil.copytree(first, copy)
    moved.parent.mkdir()
    first.rename(moved)
    status = json.loads(run("status", "--home", str(copy), "--json").stdout)
    assert (status["gateway"], status["head"]) == (None, version), (
        "the copied gateway.json is of another gateway"
    )

    for home, other in ((moved, copy), (copy, moved)):
        before = files_of(other)
        with SubprocessSystem(scratch_config(home, SETTINGS)) as system:
            assert system.api_key == key
            body = {
                "model": "openclaw",
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": 8,
            }
            assert (
                post_json(system, "/v1/chat/completions", body)["system_fingerprint"]
                == f"v{version}"
            )
            assert learn(system) > version
        assert files_of(other) == before
        head = head_of(home)
        assert head.path is not None
        assert Path(head.path).parent == home / "policies"
        assert digest_of_folder(head.path) == head.digest
        assert head.metrics["step"] > learned.metrics["step"]
    assert not first.exists()
