"""A program that keeps to no rule at the socket of the trainer: no turn is used twice or blamed, no worker ends."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.external_world import World, connect_when_free, take_step

from openclaw_rl.common.progress import progress_count
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.other_trainers import batch_stream
from openclaw_rl.other_trainers.batch_stream import (
    PROTOCOL,
    BatchStream,
    StartWeights,
    StreamEnded,
    TurnBatch,
)
from openclaw_rl.other_trainers.trainer_socket import TrainerGone, TrainerLink, TrainerSocket
from openclaw_rl.store import turns
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.workers.attempts import AttemptLog
from openclaw_rl.train.rollback import apply_rollback, plan_rollback
from openclaw_rl.train.undo import apply_undo, plan_undo

Fill = Callable[..., list[str]]


class RawProgram:
    """A program in another language: it speaks the messages of docs/guides/other_trainers.md over the socket."""

    def __init__(self, home: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(home / "trainer.sock"))
        self._lines = self._socket.makefile("rb")
        self.write({"hello": {"protocol": 1, "name": "raw", "pid": 1}})
        self.read("welcome")

    def write(self, *messages: dict[str, Any] | bytes) -> None:
        """Send messages in one piece, or bytes as they are."""
        lines = [
            line if isinstance(line, bytes) else json.dumps(line).encode() for line in messages
        ]
        self._socket.sendall(b"".join(line + b"\n" for line in lines))

    def read(self, kind: str) -> Any:
        message = json.loads(self._lines.readline())
        assert list(message) == [kind], message
        return message[kind]

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture
def program(world: World) -> Iterator[RawProgram]:
    with closing(RawProgram(world.config.home_dir)) as made:
        yield made


@pytest.mark.timeout(60)
def test_an_answer_that_is_sent_twice_counts_once(
    world: World, local: LocalTrainer, fill: Fill, program: RawProgram
) -> None:
    """Also where the second one arrives with the next batch, whose turns are not blamed for it."""
    given = fill(world.store, 8)
    with world.in_background():
        load = StartWeights(program.read("load")["folder"])
        program.write({"loaded": True})
        for number in (1, 2):
            batch = TurnBatch(**program.read("batch"), load=load, _stream=None)  # type: ignore[arg-type]
            take_step(local, batch)
            program.write(*[{"done": {"id": number}}] * 2)
            assert program.read("kept") == {"id": number}
    assert world.used() == {1: given[:4], 2: given[4:]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"done": {"id": 7}}, "it answered for batch 7; expected 1"),
        ({"done": {"id": None}}, "it answered for batch None; expected 1"),
        (
            {"done": {"id": 1, "dropped": {"none": "why"}}},
            "batch 1 has no turn 'none'; expected ids of its rows",
        ),
        ({"loaded": True}, "unexpected message 'loaded'; expected done or failed"),
        (b"[" * 60000, None),
        (b'["done"]', None),
        (b"{", None),
        (b"\xff\xfe", None),
    ],
)
@pytest.mark.timeout(60)
def test_an_invalid_answer_frees_the_batch(
    world: World,
    local: LocalTrainer,
    fill: Fill,
    program: RawProgram,
    answer: dict[str, Any] | bytes,
    reason: str,
) -> None:
    given = fill(world.store, 4)
    with world.in_background():
        program.read("load")
        program.write({"loaded": True})
        program.read("batch")
        program.write(answer)
        if reason is not None:
            assert program.read("refused") == reason
        with connect_when_free(world.config.home_dir) as stream:
            batch = stream.current_batch()
            take_step(local, batch)
            assert batch.acknowledge()
    assert world.used() == {1: given}, "no turn was blamed"


@pytest.mark.timeout(60)
def test_an_invalid_greeting_keeps_the_socket_open(world: World) -> None:
    for words in (
        b"[" * 60000,
        b"7",
        b"[]",
        b'{"hello": 1}',
        b'{"hello": {"protocol": 9}}',
        b"\xff",
    ):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(world.config.home_dir / "trainer.sock"))
            stranger.sendall(words + b"\n")
            stranger.recv(1 << 16)
    with BatchStream.connect(world.config.home_dir) as stream:
        assert stream.welcome["method"] == "binary"


def test_a_trainer_that_connects_during_shutdown_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcomed, go_on, welcome = threading.Event(), threading.Event(), TrainerSocket._welcome_trainer

    def slow_welcome(self: TrainerSocket, connection: socket.socket) -> str | None:
        name = welcome(self, connection)
        welcomed.set()
        go_on.wait(240)
        return name

    monkeypatch.setattr(TrainerSocket, "_welcome_trainer", slow_welcome)
    listening = TrainerSocket(tmp_path, {})
    with closing(socket.socket(socket.AF_UNIX)) as trainer:
        trainer.connect(str(listening.path))
        trainer.sendall(b'{"hello": {"protocol": %d}}\n' % PROTOCOL)
        assert welcomed.wait(240)
        ending = threading.Thread(target=listening.close)
        ending.start()
        while not listening._is_closed:
            time.sleep(0.01)
        go_on.set()
        ending.join()
        trainer.settimeout(60)
        assert b"welcome" in trainer.recv(1 << 16)
        assert trainer.recv(1) == b"", "the connection has ended"


@pytest.mark.timeout(60)
def test_a_frozen_train_worker_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the connection, and nobody answers."""
    monkeypatch.setattr(batch_stream, "DESCRIBE_SECONDS", 0.2)
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(tmp_path / "trainer.sock"))
        listening.listen(1)
        with pytest.raises(StreamEnded, match=r"the train worker does not answer within 0\.2 s"):
            BatchStream.describe_worker(tmp_path)


@contextmanager
def connected_link(home: Path) -> Iterator[tuple[TrainerLink, socket.socket]]:
    """The worker's end of a connection, and the trainer's."""
    with (
        closing(TrainerSocket(home, {})) as listening,
        closing(socket.socket(socket.AF_UNIX)) as trainer,
    ):
        trainer.connect(str(listening.path))
        trainer.sendall(b'{"hello": {"protocol": %d, "name": "busy"}}\n' % PROTOCOL)
        assert b"welcome" in trainer.recv(1 << 16)
        while (link := listening.find_trainer()) is None:
            time.sleep(0.01)
        yield link, trainer


@pytest.mark.timeout(60)
def test_a_trainer_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    """Its batch does not fit into the connection. Meanwhile this process makes progress, so that it is not restarted"""
    with connected_link(tmp_path) as (link, _):
        before = progress_count()
        with pytest.raises(TrainerGone, match=r"'busy' has not read what was sent within 0\.5 s"):
            link.send({"batch": "x" * 4_000_000}, within=0.5)
        assert progress_count() > before
        assert not link.is_open()
        with pytest.raises(TrainerGone, match="has ended"):
            link.send({"kept": {"id": 1}}, within=0.5)


@pytest.mark.timeout(60)
def test_a_trainer_that_ends_after_a_second_answer_frees_its_place(tmp_path: Path) -> None:
    """Nobody reads the answer before there is a next batch, which may be days later."""
    with connected_link(tmp_path) as (link, trainer):
        trainer.sendall(b'{"done": {"id": 1}}\n')
        assert link.is_open()
        trainer.close()
        assert not link.is_open()
        with BatchStream.connect(tmp_path):
            pass


@pytest.mark.timeout(60)
def test_a_slow_reader_gets_its_whole_batch(tmp_path: Path) -> None:
    with connected_link(tmp_path) as (link, trainer):
        sending = threading.Thread(
            target=link.send, args=({"batch": "x" * 4_000_000},), kwargs={"within": 60.0}
        )
        sending.start()
        time.sleep(0.5)
        with trainer.makefile("rb") as lines:
            assert json.loads(lines.readline()) == {"batch": "x" * 4_000_000}
        sending.join()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (shutil.rmtree, "the folder of the batch is gone"),
        (lambda folder: (Path(folder) / ".cache").mkdir(), "wrote no weights"),
    ],
)
@pytest.mark.timeout(60)
def test_a_missing_folder_or_hidden_files_do_not_end_the_worker(
    world: World, fill: Fill, spoil: Callable[[str], object], named: str
) -> None:
    given = fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        spoil(batch.folder)
        assert not batch.acknowledge()
        assert named in str(batch.rejection)
        batch = stream.current_batch()
        spoil(batch.folder)
        batch.acknowledge(dropped={row["turn"]: "all alike" for row in batch.rows})
        assert batch.is_answered
        assert {row["turn"] for row in batch.rows} <= set(given)
        stream.current_batch().refuse("enough")


@pytest.mark.timeout(60)
def test_an_acknowledgement_must_have_numbers_and_turns_of_the_batch(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        take_step(local, batch)
        with pytest.raises(
            ValueError, match="batch 1 has no turn 'none': expected ids of its rows"
        ):
            batch.acknowledge(dropped={"none": "why"})
        with pytest.raises(TypeError):
            batch.acknowledge({"loss/total": None})  # type: ignore[dict-item]
        assert not batch.is_answered
        assert batch.acknowledge({"loss/total": np.float32(0.5)})  # type: ignore[dict-item]
    with world.store.read() as conn:
        assert policies.head(conn).metrics["loss/total"] == 0.5


@pytest.mark.timeout(60)
def test_a_reason_with_a_lone_surrogate_is_recorded(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    """As of a program in JavaScript that cut its text inside an emoji."""
    given = fill(world.store, 8)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        take_step(local, batch)
        assert batch.acknowledge({"\ud83d": 0.5}, dropped={given[0]: "cut \ud83d"})
        batch = stream.current_batch()
        batch.refuse("cut \ud83d")
        assert str(batch.rejection).endswith("cut ?")
    with world.store.read() as conn:
        found = turns.get(conn, given[0])
    assert found is not None
    assert found.untrainable == "cut ?"


@pytest.mark.timeout(60)
def test_a_delivered_batch_is_not_blamed_for_the_end_of_the_train_worker(
    world: World, fill: Fill
) -> None:
    """A program may take hours, in which the machine is started again more than once."""
    fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        stream.current_batch()
        assert AttemptLog(world.store, "train").deaths() == {}


def undo_turn(world: World, turn: str) -> None:
    with world.store.write() as conn:
        apply_undo(conn, [plan_undo(conn, [turn])], reason="a test")


@pytest.mark.timeout(60)
def test_a_batch_with_a_turn_that_was_undone_meanwhile_is_not_kept(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    given = fill(world.store, 5)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        take_step(local, batch)
        undo_turn(world, given[1])
        assert not batch.acknowledge()
        assert f"taken back during the step: {given[1]}" in str(batch.rejection)
        again = stream.current_batch()
        assert again.load == StartWeights(None)
        assert [row["turn"] for row in again.rows] == [given[0], *given[2:]]
        take_step(local, again)
        assert again.acknowledge()
    assert list(world.used().values()) == [[given[0], *given[2:]]]


@pytest.mark.timeout(60)
def test_a_batch_whose_head_was_rolled_back_meanwhile_is_not_kept(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    given = fill(world.store, 8)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        for batch in (stream.current_batch() for _ in range(2)):
            take_step(local, batch)
            if batch.version == 2:
                with world.store.write() as conn:
                    apply_rollback(conn, plan_rollback(conn, 0), learn_again=False, reason="a test")
            assert batch.acknowledge() == (batch.version == 1)
        assert "but the head is now 0" in str(batch.rejection)
        again = stream.current_batch()
        assert again.load == StartWeights(None), "the weights of the version gone back to"
        assert [row["turn"] for row in again.rows] == given[4:]
        take_step(local, again)
        assert again.acknowledge()
    assert list(world.used().values()) == [given[4:]]
