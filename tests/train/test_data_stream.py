"""`openclaw-rl data stream` and the `datasets` stream: a turn is never in two acknowledged batches."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.growth import check_linear_growth
from tests.train.external_world import World, connect_when_free, take_step

from openclaw_rl.cli.main import cli
from openclaw_rl.learner.trainer import LocalTrainer
from openclaw_rl.other_trainers.batch_stream import (
    BatchStream,
    StartWeights,
    StreamEnded,
    TurnBatch,
)
from openclaw_rl.other_trainers.dataset_stream import row_features, stream_dataset
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.train.sample_builder import SampleBuilder

pytestmark = pytest.mark.system

Fill = Callable[..., list[str]]
WRONG_ANSWERS: list[tuple[Any, str]] = [
    ({"done": {"id": 7}}, "batch 7 is not the one that waits"),
    ({"done": {"id": 1, "metrics": [0.5]}}, "Expected `object`"),
    ({"done": {"id": [1]}}, "Expected `int`"),
    ({"kept": {"id": 1}}, "Invalid value 'kept'"),
    ({"done": {"id": 1, "dropped": {"none": "why"}}}, "batch 1 has no turn 'none'"),
    ({"done": {"id": 1, "metrics": {"loss/total": 10**400}}}, "Number out of range"),
    ([1], "expected {"),
]

FORKING_READER = """
import sys
from pathlib import Path
from torch.utils.data import DataLoader
from openclaw_rl.other_trainers.batch_stream import BatchStream
from openclaw_rl.other_trainers.dataset_stream import stream_dataset

with BatchStream.connect(Path(sys.argv[1])) as stream:
    try:
        next(iter(DataLoader(stream_dataset(stream), num_workers=1, multiprocessing_context="fork")))
    except RuntimeError as error:
        assert "set dataloader_num_workers to 0" in str(error)
        print(len(stream.current_batch().rows), "rows")
"""


class StreamProgram:
    """A program in another language at the command: it reads and writes lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self.answers, self.progress = process, process.stdin, process.stderr
        self._messages = process.stdout

    def read_message(self, kind: str) -> Any:
        message = json.loads(self._messages.readline())
        assert list(message) == [kind], message
        return message[kind]

    def write_message(self, message: dict[str, Any]) -> None:
        self.answers.write(json.dumps(message).encode() + b"\n")
        self.answers.flush()


@contextmanager
def started_command(world: World) -> Iterator[StreamProgram]:
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "data",
        "stream",
        "--home",
        str(world.config.home_dir),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(os.environ)
    ) as process:
        try:
            yield StreamProgram(process)
        finally:
            process.kill()


def test_the_command_gives_each_turn_once_and_takes_each_answer_once(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    given = fill(world.store, 8)
    with world.in_background(), started_command(world) as program:
        assert program.read_message("welcome")["method"] == "binary"
        load: StartWeights | None = StartWeights(**program.read_message("load"))
        for number in (1, 2):
            batch = TurnBatch(**program.read_message("batch"), load=load, _stream=None)  # type: ignore[arg-type]
            load = None
            for wrong, reason in WRONG_ANSWERS if number == 1 else ():
                program.write_message(wrong)
                assert reason in program.read_message("error")
            take_step(local, batch)
            program.write_message({"done": {"id": number, "metrics": {"loss/total": 0.5}}})
            assert program.read_message("answer") == {"id": number, "kept": True, "reason": None}
        program.answers.write(b'{"done": {"id": 1}}')
        program.answers.close()
        assert program.read_message("answer") == {"id": 1, "kept": True, "reason": None}, (
            "twice changes nothing"
        )
        assert program.process.wait(240) == 0
        progress = program.progress.read().decode().splitlines()
    assert world.used() == {1: given[:4], 2: given[4:]}
    assert progress[-1] == "batch 2: version 2 is kept; 8 turns acknowledged"


@pytest.mark.parametrize(
    "end",
    [lambda p: p.process.kill(), lambda p: p.answers.close()],
    ids=["kill -9", "no more answers"],
)
def test_a_reader_that_ends_without_an_answer_loses_nothing(
    world: World, local: LocalTrainer, fill: Fill, end: Callable[[StreamProgram], None]
) -> None:
    given = fill(world.store, 4)
    with world.in_background():
        with started_command(world) as program:
            program.read_message("welcome")
            program.read_message("load")
            assert [row["turn"] for row in program.read_message("batch")["rows"]] == given
            end(program)
            program.process.wait(240)
        with BatchStream.connect(world.config.home_dir) as stream:
            batch = stream.current_batch()
            take_step(local, batch)
            assert batch.acknowledge()
    assert world.used() == {1: given}


def test_a_reader_that_ends_before_the_batch_frees_its_place(
    world: World,
) -> None:
    """A train worker that waits after it said which weights to begin from, as for space on a disk."""
    with started_command(world) as program:
        program.read_message("welcome")
        while (link := world.trainer._socket.find_trainer()) is None:
            time.sleep(0.01)
        link.send({"load": {"folder": None}}, within=60.0)
        assert link.receive("loaded", within=60.0)
        program.answers.close()
        assert program.process.wait(240) == 0
    with connect_when_free(world.config.home_dir):
        pass


def test_a_batch_can_be_answered_after_the_output_was_read_to_its_end(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    """As with `data stream <answers | head -3 >batch`."""
    given = fill(world.store, 4)
    with world.in_background(), started_command(world) as program:
        program.read_message("welcome")
        load = StartWeights(**program.read_message("load"))
        batch = TurnBatch(**program.read_message("batch"), load=load, _stream=None)  # type: ignore[arg-type]
        program.process.stdout.close()  # type: ignore[union-attr]
        take_step(local, batch)
        program.write_message({"done": {"id": batch.id}})
        assert program.process.wait(240) == 1
    assert world.used() == {1: given}


def wait_for_end(program: StreamProgram) -> list[str]:
    """Return the lines on standard error of a command that ends by itself, while its input stays open."""
    assert program.process.wait(240) == 1
    lines = program.progress.read().decode().splitlines()
    assert not any("Traceback" in line for line in lines), lines
    return lines


def test_a_reader_that_waits_for_answers_notices_the_end_of_the_train_worker(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    """It has a batch and writes nothing. The same turns come when the train worker is back."""
    given = fill(world.store, 4)
    with started_command(world) as program:
        with world.in_background():
            program.read_message("welcome")
            program.read_message("load")
            batch = program.read_message("batch")
            assert [row["turn"] for row in batch["rows"]] == given
            world.trainer.close()
        end = wait_for_end(program)[-1]
    assert "the train worker has ended. Batch 1 is free again" in end
    assert "Run this command again" in end
    world.loop.close()
    world.trainer, world.loop = world.start()
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        again = stream.current_batch()
        assert [row["turn"] for row in again.rows] == given
        take_step(local, again)
        assert again.acknowledge()
    assert list(world.used().values()) == [given]


def test_a_reader_that_waits_for_a_batch_notices_the_end_of_the_train_worker(world: World) -> None:
    with started_command(world) as program:
        program.read_message("welcome")
        world.trainer.close()
        assert "the train worker has ended. Run this command again" in wait_for_end(program)[-1]


def test_a_batch_whose_lease_expired_is_not_acknowledged_and_comes_again(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    given = fill(world.store, 4)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        batch = stream.current_batch()
        take_step(local, batch)
        world.frozen_seconds = world.config.train.safety.lease_ttl + 1
        assert not batch.acknowledge(), "another train worker may have used its turns meanwhile"
        assert not Path(batch.folder).exists()
        again = stream.current_batch()
        assert [row["turn"] for row in again.rows] == given
        assert again.load == StartWeights(None)
        take_step(local, again)
        assert again.acknowledge()
    assert list(world.used().values()) == [given]


def test_a_reader_that_does_not_answer_in_time_loses_its_batch(
    store: Store, builder: SampleBuilder, tmp_path: Path, fill: Fill
) -> None:
    given = fill(store, 4)
    world = World(store, builder, tmp_path, **{"train.answer_within": 0.5})
    with closing(world), world.in_background(), BatchStream.connect(tmp_path) as stream:
        late = stream.current_batch()
        with connect_when_free(tmp_path) as other:
            batch = other.current_batch()
            assert [row["turn"] for row in batch.rows] == given
            assert batch.acknowledge(dropped=dict.fromkeys(given, "taken by the other"))
        with pytest.raises(StreamEnded, match=r"no answer within 0\.5 s \(train\.answer_within\)"):
            late.acknowledge(dropped=dict.fromkeys(given, "taken late"))
    with store.read() as conn:
        found = turns.get(conn, given[0])
    assert found is not None
    assert found.untrainable == "taken by the other"


def test_a_batch_of_long_prompts_is_read_in_linear_time() -> None:
    """A hundred thousand tokens in each of a hundred rows are a line of 60 MB."""

    def lines_of(size: int) -> tuple[bytes, bytes, bytes]:
        body = (
            b'{"batch": {"id": 1, "version": 1, "folder": "f", "rows": [{"turn": "'
            + b"t" * size
            + b'"}]}}\n'
        )
        return b'{"welcome": {}}\n', body, b'{"refused": "the end"}\n'

    def receive(lines: tuple[bytes, bytes, bytes]) -> None:
        here, there = socket.socketpair()
        sender = threading.Thread(target=lambda: [there.sendall(line) for line in lines])
        sender.start()
        with there, BatchStream(here, {"hello": {}}) as stream:
            assert len(stream.current_batch().rows[0]["turn"]) > len(lines[1]) - 100
            with pytest.raises(StreamEnded, match="the end"):
                stream.receive_batch()
            sender.join()

    check_linear_growth(receive, lines_of, 60_000_000)


def test_one_pass_over_the_dataset_is_one_batch(
    world: World, local: LocalTrainer, fill: Fill
) -> None:
    given = fill(world.store, 8)
    with world.in_background(), BatchStream.connect(world.config.home_dir) as stream:
        rows = stream_dataset(stream)
        first = list(rows)
        batch = stream.current_batch()
        assert first == [{"batch": batch.id} | row for row in batch.rows], (
            "the fields and values of the batch"
        )
        assert list(rows) == first, "the batch comes until it is acknowledged"
        assert rows.features == row_features()
        take_step(local, batch)
        assert batch.acknowledge()
        replies = rows.map(lambda row: {"tokens": len(row["response_ids"])}).select_columns(
            ["turn", "tokens"]
        )
        assert [row["turn"] for row in replies] == given[4:], (
            "the next pass waits for the next batch"
        )
    assert world.used() == {1: given[:4]}


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_worker_of_a_data_loader_gets_an_error(world: World, fill: Fill) -> None:
    fill(world.store, 4)
    command = [
        sys.executable,
        "-c",
        FORKING_READER,
        str(world.config.home_dir),
    ]  # a fork beside threads may hang
    with world.in_background():
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "4 rows\n", done.stderr


@pytest.mark.parametrize(("closed", "name"), [("<&-", "input"), (">&-", "output")])
def test_a_closed_standard_input_or_output_is_named(tmp_path: Path, closed: str, name: str) -> None:
    """Without an output, batches would wait for the answer of a program that never gets them."""
    command = [
        "bash",
        "-c",
        f'exec "$@" {closed}',
        "_",
        sys.executable,
        "-m",
        "openclaw_rl",
        "data",
        "stream",
    ]
    done = subprocess.run(
        [*command, "--home", str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1
    assert f"standard {name} is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_progress_without_a_terminal_is_not_shown(world: World) -> None:
    """With `2>&-`, as a service that another program starts."""
    command = [
        "bash",
        "-c",
        'exec "$@" 2>&-',
        "_",
        sys.executable,
        "-m",
        "openclaw_rl",
        "data",
        "stream",
    ]
    command += ["--home", str(world.config.home_dir)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=200)
    assert done.returncode == 0
    assert list(json.loads(done.stdout)) == ["welcome"]


def test_a_reader_with_a_closed_output_frees_its_place(world: World) -> None:
    """As with `| head -1`: its input stays open, and the next batch may come days later."""
    with started_command(world) as program:
        program.read_message("welcome")
        program.process.stdout.close()  # type: ignore[union-attr]
        assert wait_for_end(program) == ["connected; waiting for a batch"]
    with connect_when_free(world.config.home_dir):
        pass


def test_without_a_system_the_command_says_what_to_start(tmp_path: Path) -> None:
    error = CliRunner().invoke(cli, ["data", "stream", "--home", str(tmp_path)]).exception
    assert "Start the system with train.trainer: external" in str(error)
    assert not isinstance(error, StreamEnded), "one line, not a traceback"
