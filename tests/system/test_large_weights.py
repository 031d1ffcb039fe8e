"""A model whose weights are large: a sparse file of 24 GiB, which takes no space on the disk and a while to hash."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.system.test_words import run

from openclaw_rl.common.assets import STARTER, local_model_folder
from openclaw_rl.store import file_digests, heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
SIZE = 24 * 2**30
"""Bytes of weights: those of a model of 12 billion parameters in 16 bits."""
SMALLER_SIZE = 4 * 2**30
LARGEST_SHARE = 1 / 3
"""Of the weights that are hashed while one small write waits. Hashing under the write lock would be all of them."""


def make_model(folder: Path, size: int) -> Path:
    """Return the starter with a second file of weights. transformers loads only the file that it knows by its name."""
    starter = local_model_folder(STARTER)
    assert starter is not None
    shutil.copytree(starter, folder)
    header = json.dumps(
        {"ballast": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    with (folder / "ballast.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return folder


@dataclass(slots=True)
class WriteRecord:
    """What the writes of another process met while the system started."""

    count: int = 0
    during_hashing: int = 0
    longest_seconds: float = 0.0
    most_hashed: int = 0  # bytes that were hashed while one of them waited
    error: Exception | None = None


class SmallWrites:
    """Writes a row to the store again and again, as the workers do, and watches the hashing and the heartbeats."""

    def __init__(self, store_path: Path) -> None:
        self.record = WriteRecord()
        self.notes: set[str] = set()
        self._hashed = 0
        self._total = 0
        self._path = store_path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="small-writes")

    def __enter__(self) -> SmallWrites:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Store.open(self._path) as store:
                while not self._ended.wait(0.05):
                    self._write_once(store)
                    with store.read() as conn:
                        self.notes |= {beat.note for beat in heartbeats.read_heartbeats(conn)}
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.record.error = error

    def _write_once(self, store: Store) -> None:
        self._read_progress()
        before, began = self._hashed, time.monotonic()
        heartbeats.write_heartbeat(store, "test")
        seconds = time.monotonic() - began
        self._read_progress()
        record = self.record
        record.count += 1
        record.during_hashing += 0 < self._hashed < self._total
        record.most_hashed = max(record.most_hashed, self._hashed - before)
        record.longest_seconds = max(record.longest_seconds, seconds)

    def _read_progress(self) -> None:
        """Read the progress of the hashing, unless there is none or it is just being written."""
        with contextlib.suppress(OSError, ValueError):
            progress = json.loads((self._path.parent / file_digests.LOCK_FILE).read_text())
            self._hashed, self._total = int(progress["done"]), int(progress["total"])


def wait_for_trainer(store: Store, started_at: float) -> None:
    """Wait until the trainer has loaded the model, which it does after the gateway answers."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        with store.read() as conn:
            beat = next(
                (beat for beat in heartbeats.read_heartbeats(conn) if beat.name == "train"), None
            )
        if beat is not None and beat.at > started_at and beat.state == heartbeats.RUNNING:
            return
        time.sleep(0.1)
    raise AssertionError(f"the trainer did not start: {beat}")


def test_a_system_with_large_weights_starts_and_hashes_them_once(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", SIZE)
    config = scratch_config(tmp_path / "home", {"model.path": str(model)})
    prepare_home(config)
    with Store.open(config.store_path) as store:
        began, began_at = time.monotonic(), time.time()
        with SmallWrites(config.store_path) as writes, SubprocessSystem(config) as system:
            first_seconds = time.monotonic() - began
            message = {"role": "user", "content": "What is the capital of France?"}
            reply = post_json(
                system, "/v1/chat/completions", {"model": "openclaw", "messages": [message]}
            )
            assert reply["choices"][0]["message"]["content"]
            wait_for_trainer(store, began_at)
        assert writes.record.error is None
        assert writes.record.during_hashing
        assert writes.record.most_hashed < SIZE * LARGEST_SHARE
        assert any(
            note.startswith("hashing weights: ") and " of 24.0 GiB" in note for note in writes.notes
        )
        log = (config.logs_dir / "up.log").read_text()
        assert log.count("hashing 2 files of weights, once: 24.0 GiB") == 1
        assert "It is killed" not in log
        assert "crash" not in log

        began, began_at = time.monotonic(), time.time()
        with SubprocessSystem(config):
            second_seconds = time.monotonic() - began
            wait_for_trainer(store, began_at)
    log = (config.logs_dir / "up.log").read_text()
    assert log.count("files of weights, once") == 1
    show(f"first start {first_seconds:.1f} s, second {second_seconds:.1f} s; {writes.record}")


def test_an_import_hashes_large_weights_once(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", SMALLER_SIZE)
    config = scratch_config(tmp_path / "home", {"model.path": str(model)})
    prepare_home(config)
    turn = {"type": "main", "prompt": "Hi", "response": "Hello."}
    file = tmp_path / "conversations.jsonl"
    file.write_text(
        "".join(json.dumps({"session_id": f"s{n}", "turns": [turn]}) + "\n" for n in range(3))
    )
    command = (
        "data",
        "import",
        str(file),
        "--home",
        str(config.home_dir),
        "--model-path",
        str(model),
        "--no-score",
    )
    with SmallWrites(config.store_path) as writes:
        first = run(*command, timeout=600)
    assert first.returncode == 0, first.stderr
    assert "hashing weights" in first.stderr
    assert writes.record.error is None
    assert writes.record.most_hashed < SMALLER_SIZE
    second = run(*command, timeout=600)
    assert second.returncode == 0, second.stderr
    assert "hashing weights" not in second.stderr
    show(str(writes.record))


def show(text: str) -> None:
    print(f"\n{text}")  # noqa: T201 - figures for people, with `pytest -s`
