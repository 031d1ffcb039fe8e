"""Weights that slime begins with: found among the versions of the home, and an error that leaves no trainer behind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from openclaw_rl.other_trainers.slime.batch_feed import BatchFeed
from openclaw_rl.other_trainers.slime.mailbox import Mailbox
from openclaw_rl.other_trainers.slime.options import SlimeOptions
from openclaw_rl.other_trainers.slime.weight_files import (
    BASE_FILE,
    find_version,
    fingerprint_of,
    read_base,
    record_base,
)
from openclaw_rl.other_trainers.trainer_socket import TrainerSocket


def write_weights(folder: Path, values: bytes) -> Path:
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [len(values) // 4], "data_offsets": [0, len(values)]}}
    ).encode()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values)
    return folder


@pytest.mark.parametrize(
    "damage",
    [b"", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]", (8).to_bytes(8, "little") + b'{"w": 1}'],
    ids=["empty", "garbage", "a list", "a number"],
)
def test_a_damaged_folder_does_not_hide_other_versions(tmp_path: Path, damage: bytes) -> None:
    wanted = write_weights(tmp_path / "policies" / "000001-a", b"\x01\x02\x03\x04")
    torn = tmp_path / "policies" / "000002-b"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(damage)
    assert find_version(tmp_path, fingerprint_of(wanted)) == "000001-a"
    assert find_version(tmp_path, "another") is None


DAMAGES = {
    "half": (b'{"fingerprint": "ab', "Unterminated string"),
    "empty": (b"", "Expecting value"),
    "binary": (b"\xff\x00", "can't decode byte"),
    "deep": (b"[" * 100_000, "recursion"),
    "a list": (b'["ab"]', "it has no fingerprint"),
    "no key": (b'{"finger": "ab"}', "it has no fingerprint"),
    "a number": (b'{"fingerprint": 7}', "it has no fingerprint"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_fingerprint_of_the_base_is_one_line_with_the_path(
    tmp_path: Path, damage: bytes, reason: str
) -> None:
    path = tmp_path / BASE_FILE
    path.write_bytes(damage)
    with pytest.raises(ValueError, match=reason) as caught:
        read_base(tmp_path)
    line = str(caught.value)
    assert line.startswith(f"{path} cannot be read: ")
    assert "\n" not in line
    assert "remove the file: it is written again" in line
    path.unlink()
    assert read_base(tmp_path) is None
    record_base(tmp_path, "ab")
    assert read_base(tmp_path) == "ab"


def test_a_failed_start_leaves_no_trainer() -> None:
    with tempfile.TemporaryDirectory(prefix="ocrl-") as home:  # a Unix socket's path is limited
        _begin_with_a_broken_file(Path(home))


def _begin_with_a_broken_file(home: Path) -> None:
    options = SlimeOptions(
        home=home, mailbox=home / "box", global_batch_size=4, temperature=1.0, teacher_url=None
    )
    Mailbox(options.mailbox).put("start", run="r", fingerprint="f", tag="1")
    (home / BASE_FILE).write_text("{")
    worker = TrainerSocket(home, {"method": "binary", "finetune": "full", "base": "m"})
    try:
        with pytest.raises(
            ValueError, match=f"{BASE_FILE} cannot be read: Expecting property name"
        ):
            BatchFeed(options)
        assert worker.find_trainer() is None
    finally:
        worker.close()
