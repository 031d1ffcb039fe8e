"""The queue of writers: who writes next, and what becomes of it when processes are killed or suspended."""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.store.writing import write_queue

LOCKS = Path("/proc/locks")
PATIENCE = 120.0
Work = Callable[[Store, "Process"], None]


class Process:
    """A fork of this process with a store of its own, which says what it does in single bytes."""

    def __init__(self, path: Path, work: Work) -> None:
        from_child, self._to_parent = os.pipe()
        self._from_parent, to_child = os.pipe()
        self._read = from_child
        self._write = to_child
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                store = Store.open(path, create=False)
                work(store, self)
                code = 0
            finally:
                os._exit(code)
        os.close(self._to_parent)
        os.close(self._from_parent)
        self._is_over = False

    def tell(self) -> None:
        """In the fork: report a step to the test."""
        os.write(self._to_parent, b".")

    def wait_for_parent(self) -> None:
        """In the fork: wait until the test lets it continue."""
        os.read(self._from_parent, 1)

    def hear(self) -> bool:
        """In the test: wait for the next report. Return False if the process has ended."""
        return bool(os.read(self._read, 1))

    def allow(self) -> None:
        """In the test: let the process continue."""
        os.write(self._write, b".")

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for the end of the process. Return its exit status."""
        if not self._is_over:
            self._is_over = True
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._read)
            os.close(self._write)
        return self._status

    def discard(self) -> None:
        """End the process if it runs."""
        if not self._is_over:
            self.kill(signal.SIGCONT)
            self.kill()
            self.end()


@contextmanager
def processes(path: Path, works: Sequence[Work]) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        started = []
        for work in works:
            process = Process(path, work)
            stack.callback(process.discard)
            started.append(process)
        yield started


def note(store: Store, name: str) -> None:
    with store.write() as conn:
        events.append(conn, "kind", name, {}, 1.0)


def names(store: Store) -> list[str]:
    with store.read() as conn:
        return [event.ref for event in events.read_after(conn, 0, 10**6)]


def hold(store: Store, process: Process) -> None:
    """Hold the write lock until the test allows the end."""
    with store.write() as conn:
        process.tell()
        process.wait_for_parent()
        events.append(conn, "kind", "holder", {}, 1.0)
    process.tell()


def writer(name: str) -> Work:
    def write(store: Store, process: Process) -> None:
        process.tell()
        note(store, name)
        process.tell()

    return write


def is_waiting(pid: int) -> bool:
    """Return whether the kernel lets a process wait for a lock on a file."""
    return any(
        fields[1] == "->" and fields[2] == "FLOCK" and int(fields[5]) == pid
        for fields in map(str.split, LOCKS.read_text(encoding="ascii").splitlines())
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"still not so: {what}"
        time.sleep(0.002)


needs_lock_list = pytest.mark.skipif(not LOCKS.exists(), reason="this system lists no locks")


@pytest.fixture(autouse=True)
def patient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody leaves the queue because this machine is slow."""
    monkeypatch.setattr(write_queue, "MAX_WAIT", PATIENCE)
    monkeypatch.setattr("openclaw_rl.store.db.BUSY_TIMEOUT", PATIENCE)


@needs_lock_list
def test_writers_of_all_processes_write_in_the_order_of_their_arrival(store: Store) -> None:
    waiting = [f"waiter-{number}" for number in range(6)]
    with processes(store.path, [hold]) as [holder]:
        assert holder.hear()
        with ExitStack() as stack:
            for name in waiting:
                [process] = stack.enter_context(processes(store.path, [writer(name)]))
                assert process.hear()
                wait_until(lambda: is_waiting(process.pid), f"{name} waits")  # noqa: B023
            holder.allow()
            assert holder.end() == 0
            wait_until(lambda: len(names(store)) == 7, "all have written")
    assert names(store) == ["holder", *waiting]


@needs_lock_list
def test_a_writer_that_begins_again_is_behind_those_who_wait(store: Store) -> None:
    def hold_twice(store: Store, process: Process) -> None:
        hold(store, process)
        note(store, "holder again")

    with processes(store.path, [hold_twice]) as [holder]:
        assert holder.hear()
        with processes(store.path, [writer("first"), writer("second")]) as others:
            wait_until(lambda: all(is_waiting(process.pid) for process in others), "both wait")
            holder.allow()
            assert [process.end() for process in [holder, *others]] == [0, 0, 0]
    written = names(store)
    assert written[0] == "holder"
    assert written.index("holder again") > 1, "one that waits comes between"


@needs_lock_list
@pytest.mark.parametrize("victim", ["holder", "at the desk", "at the door"])
def test_the_next_writer_takes_the_place_of_one_that_was_killed(store: Store, victim: str) -> None:
    with processes(store.path, [hold]) as [holder]:
        assert holder.hear()
        with ExitStack() as stack:
            waiting = {}
            for name in ("at the desk", "at the door", "last"):
                [process] = stack.enter_context(processes(store.path, [writer(name)]))
                waiting[name] = process
                wait_until(lambda: is_waiting(process.pid), f"{name} waits")  # noqa: B023
            killed = {"holder": holder, **waiting}.pop(victim)
            killed.kill()
            assert killed.end() == -signal.SIGKILL
            if victim != "holder":
                holder.allow()
            survivors = [name for name in ("at the desk", "at the door", "last") if name != victim]
            assert [waiting[name].end() for name in survivors] == [0] * len(survivors)
    assert names(store) == [*(["holder"] if victim != "holder" else []), *survivors]


def test_writers_that_are_killed_at_random_stop_nobody_and_lose_nothing(store: Store) -> None:
    chance = random.Random(38)

    def write_until_killed(store: Store, process: Process) -> None:
        for number in range(10**6):
            note(store, f"{os.getpid()}-{number}")
            process.tell()

    heard: dict[int, int] = {}
    for _ in range(12):
        with processes(store.path, [write_until_killed] * 3) as started:
            for process in started:
                for _ in range(chance.randrange(1, 6)):
                    assert process.hear()
                    heard[process.pid] = heard.get(process.pid, 0) + 1
            victim = chance.choice(started)
            victim.kill()
            for process in started:
                if process is not victim:
                    assert process.hear(), "the others continue"
                    heard[process.pid] += 1
    note(store, "after")
    written = names(store)
    assert written[-1] == "after"
    for pid, count in heard.items():
        kept = [int(name.split("-")[1]) for name in written if name.startswith(f"{pid}-")]
        assert kept == list(range(len(kept)))
        assert len(kept) >= count, "what was acknowledged is there"


@needs_lock_list
def test_nobody_waits_for_long_behind_a_suspended_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_in_line(store: Store, _process: Process) -> None:
        note(store, "suspended")

    with ExitStack() as stack:
        [holder] = stack.enter_context(processes(store.path, [hold]))
        assert holder.hear()
        [suspended] = stack.enter_context(processes(store.path, [wait_in_line]))
        wait_until(lambda: is_waiting(suspended.pid), "it waits")
        suspended.kill(signal.SIGSTOP)
        holder.allow()
        assert holder.end() == 0
        monkeypatch.setattr(write_queue, "MAX_WAIT", 0.05)
        before = threading.active_count()
        for number in range(20):
            note(store, f"out of turn {number}")
        assert threading.active_count() <= before + 1, "one wait is given up, and not one a write"
        monkeypatch.setattr(write_queue, "MAX_WAIT", PATIENCE)
        suspended.kill(signal.SIGCONT)
        assert suspended.end() == 0
        wait_until(lambda: threading.active_count() == before, "the wait has ended")
    note(store, "in turn")
    expected = ["holder", *(f"out of turn {number}" for number in range(20)), "in turn"]
    assert [name for name in names(store) if name != "suspended"] == expected


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_as_before(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(_file: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(write_queue.fcntl, "flock", refuse)
    with caplog.at_level(logging.INFO):
        for name in ("one", "two"):
            note(store, name)
    assert names(store) == ["one", "two"]
    assert len(caplog.records) == 1, "it is said once"


def test_lock_files_that_were_deleted_exclude_nobody(store: Store) -> None:
    note(store, "before")
    for suffix in (write_queue.DOOR_SUFFIX, write_queue.DESK_SUFFIX):
        store.path.with_name(store.path.name + suffix).unlink()
    with processes(store.path, [writer("other")]) as [other]:
        note(store, "between")
        assert other.end() == 0
    assert sorted(names(store)) == ["before", "between", "other"]


def test_a_fork_does_not_share_the_place_of_its_parent(store: Store) -> None:
    note(store, "parent")

    def work(_own: Store, process: Process) -> None:
        # The queue of the parent, whose files this process has inherited.
        with store._queue.wait_turn():
            process.tell()
            process.wait_for_parent()

    with processes(store.path, [work]) as [fork]:
        assert fork.hear()
        place = write_queue._Place(store.path)
        assert not place.try_now(), "the fork is at the desk"
        fork.allow()
        assert fork.end() == 0
        place.close()
    note(store, "parent again")
    assert names(store) == ["parent", "parent again"]
