"""The checker of `make faults` finds every fault that is planted in a store, or in a log of what clients saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults import invariants, soak
from benchmarks.faults.client_log import (
    AcknowledgedFeedback,
    ClientLog,
    ClientRequest,
    DamagedVersion,
    FaultWindow,
)
from benchmarks.faults.invariants import VerdictKey
from sqlalchemy import delete, insert, update
from tests.store import world

from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, digest_of_folder
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import leases, reactions, schema
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import policies
from openclaw_rl.types import Feedback, Use

TURNS = ("t0", "t1", "t2")
START = 1000.0  # seconds; when the first request began


@dataclass
class Run:
    """A run without a fault: three turns with reactions and verdicts, two versions, and what the clients saw."""

    store: Store
    log: ClientLog
    verdicts: dict[VerdictKey, int | None]
    config = from_flat({"practice.replies": 4})

    @property
    def home(self) -> Path:
        return self.store.path.parent

    def change_request(self, index: int, **changes: Any) -> None:
        self.log.requests[index] = replace(self.log.requests[index], **changes)

    def execute(self, *statements: Any) -> None:
        with self.store.write() as conn:
            for statement in statements:
                conn.execute(statement)

    def check(self, served: int | None = 2) -> list[str]:
        with self.store.read() as conn:
            return [
                *invariants.check_store(
                    conn, self.log, self.log.requests, self.verdicts, self.config
                ),
                *invariants.check_reactions(conn, self.log.requests, self.log.damaged_rows),
                *invariants.check_files(conn, self.home),
                *invariants.check_head(conn, served),
                *invariants.check_answers(self.log.requests, self.log.windows),
                *invariants.check_outages(self.log.requests, self.log.windows),
            ]


def request(index: int) -> ClientRequest:
    began = START + index * 10
    previous = TURNS[index - 1] if index else None
    return ClientRequest(
        began=began, ended=began + 1, text=f"words {index}", previous=previous, status=200, id=TURNS[index],
        version=min(index, 2), reply=world.WORDS, tokens=3, finished=True,
    )  # fmt: skip


def publish_version(store: Store, version: int, turn: str) -> None:
    folder = store.path.parent / "policies" / f"v{version}"
    folder.mkdir(parents=True)
    (folder / ADAPTER_CONFIG).write_text("{}")
    (folder / ADAPTER_WEIGHTS).write_bytes(bytes([version] * 100))
    made = replace(
        world.policy(version, version - 1), path=str(folder), digest=digest_of_folder(folder)
    )
    with store.write() as conn:
        lease = leases.acquire(conn, "train", "me", START, 1e9)
        assert lease is not None
        policies.publish(conn, lease, made, [Use(policy=version, turn=turn, number=1)], START)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Store.open(tmp_path / "store.db") as store:
        with store.write() as conn:
            policies.ensure_root(conn, base="base", identity="i", at=1.0)
            for index, turn in enumerate(TURNS):
                world.judged(conn, turn)
                said = [{"role": "user", "content": f"words {index + 1}"}]
                reactions.record_reaction(
                    conn, turn, messages=said, signature=b"s", source="later", how="exact", at=13.0
                )
            given = Feedback(id="fb-0", scope="key", target="t0", score=1, given_at=14.0)
            records.add_feedback(conn, [given])
        publish_version(store, 1, "t0")
        publish_version(store, 2, "t1")
        log = ClientLog()
        for index in range(len(TURNS)):
            log.add_request(request(index))
        log.add_feedback(AcknowledgedFeedback(id="fb-0", target="t0", score=1, at=START))
        with store.read() as conn:
            verdicts = invariants.read_verdicts(conn)
        yield Run(store, log, verdicts)


def window(allows: Any, began: float = START + 9, seconds: float = 5) -> FaultWindow:
    end = began + seconds
    return FaultWindow(name="a fault", began=began, ended=end, recovered=end, allows=allows)


def lose_a_reply(run: Run) -> None:
    run.log.add_request(replace(request(2), id="t9", previous=None))


def lose_a_reaction(run: Run) -> None:
    run.execute(delete(schema.reactions).where(schema.reactions.c.turn == "t1"))


def lose_a_token(run: Run) -> None:
    run.change_request(1, tokens=4)


def change_a_reply(run: Run) -> None:
    run.change_request(1, reply="Other words.")


def forget_a_finish(run: Run) -> None:
    run.execute(
        update(schema.exchanges).where(schema.exchanges.c.id == "t1").values(status="failed")
    )


def lose_feedback(run: Run) -> None:
    run.execute(delete(schema.feedback))


def change_feedback(run: Run) -> None:
    run.execute(update(schema.feedback).values(score=-1))


def lose_a_verdict(run: Run) -> None:
    run.execute(delete(schema.verdicts).where(schema.verdicts.c.turn == "t2"))


def change_a_verdict(run: Run) -> None:
    run.execute(update(schema.verdicts).where(schema.verdicts.c.turn == "t2").values(score=-1))


def use_a_turn_twice(run: Run) -> None:
    run.execute(insert(schema.uses).values(policy=2, turn="t0", number=2))


def damage_an_old_version(run: Run) -> None:
    (run.home / "policies" / "v1" / ADAPTER_WEIGHTS).write_bytes(b"\xff" * 100)


def remove_the_head(run: Run) -> None:
    (run.home / "policies" / "v2" / ADAPTER_WEIGHTS).unlink()


def serve_a_damaged_version(run: Run) -> None:
    run.log.damaged_versions.append(DamagedVersion(version=2, since=START + 15, until=START + 30))


def train_on_a_damaged_version(run: Run) -> None:
    run.log.damaged_versions.append(
        DamagedVersion(version=1, since=19.0, until=21.0)
    )  # versions are made at 20


def fail_a_request(run: Run) -> None:
    run.change_request(2, finished=False, status=500, error="500: oh", id=None)


def fail_while_a_judge_restarts(run: Run) -> None:
    fail_a_request(run)
    run.log.add_window(window("nothing", began=START + 19))


def fail_without_a_pause_to_wait(run: Run) -> None:
    run.change_request(2, finished=False, status=503, error="503: full", id=None, retry_after=None)
    run.log.add_window(window("unavailable", began=START + 19))


def break_a_stream(run: Run) -> None:
    run.change_request(2, finished=False, error="a stream ended without a finish")


def go_silent(run: Run) -> None:
    run.change_request(2, began=START + 60, ended=START + 61)


def hang_a_request(run: Run) -> None:
    run.change_request(2, began=START + 11, ended=START + 40)


PLANTED: dict[Callable[[Run], None], str] = {
    lose_a_reply: "reply t9 came whole and is 0 times in the store",
    lose_a_reaction: "to t1 was accepted and is not recorded",
    lose_a_token: "reply t1 came with 4 tokens and has 3 in the store",
    change_a_reply: "reply t1 has another text",
    forget_a_finish: "reply t1 came whole and is not finished",
    lose_feedback: "feedback fb-0 on t0 was acknowledged",
    change_feedback: "feedback fb-0 on t0 was acknowledged",
    lose_a_verdict: "the verdict of rules on t2, revision 1, is lost",
    change_a_verdict: "the verdict of rules on t2, revision 1, was 1 and is -1",
    use_a_turn_twice: "turn t0 is used 2 times by version 2 and its ancestors",
    damage_an_old_version: "the files of version 1 do not match its digest",
    remove_the_head: "the head is version 2, and its files are not there",
    serve_a_damaged_version: "version 2 was damaged and answered 1 requests",
    train_on_a_damaged_version: "version 1 was damaged, and versions [2] were trained on it",
    fail_a_request: "a request failed without a fault (500): 500: oh",
    fail_while_a_judge_restarts: "a request failed during a fault (500): 500: oh",
    fail_without_a_pause_to_wait: "a request failed during a fault (503): 503: full",
    break_a_stream: "a request failed without a fault (200): a stream ended without a finish",
    go_silent: "no request was answered for 50.0 s, and no fault explains it",
    hang_a_request: "a request took 29.0 s without a fault that explains it",
}


def test_a_run_without_a_fault_has_no_violation(run: Run) -> None:
    assert run.check() == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(run: Run, plant: Callable[[Run], None]) -> None:
    plant(run)
    found = run.check()
    assert any(PLANTED[plant] in line for line in found), found


def test_a_version_that_is_not_the_head_is_found(run: Run) -> None:
    assert run.check(served=1) == ["the gateway serves version 1, and the head of the store is 2"]


def test_failures_that_a_fault_allows_are_no_violations(run: Run) -> None:
    run.change_request(1, finished=False, status=0, error="ClientOSError", id=None)
    run.change_request(2, finished=False, status=503, error="503: full", id=None, retry_after="1")
    run.log.add_window(window("errors", began=START + 9))
    run.log.add_window(window("unavailable", began=START + 19))
    assert run.check() == []


def test_a_system_that_outgrows_its_bounds_is_found() -> None:
    small = soak.SoakSample(
        at=0.0, memory={"gateway": 100.0}, descriptors={"gateway": 20}, store_kb=100.0, versions_mb=1.0, replies=10,
        head=1,
    )  # fmt: skip
    well = replace(small, store_kb=1000.0, replies=100, head=9)
    assert soak.find_violations([small, small, well]) == []
    large = replace(
        well, memory={"gateway": 200.0}, descriptors={"gateway": 99}, store_kb=1e5, versions_mb=1e3
    )
    assert len(soak.find_violations([small, small, large])) == 4
