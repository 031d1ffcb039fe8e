"""Does an undo take as long as it said? Of a turn of the first of 50 versions, on the starter, with a whole system.

    python -m benchmarks.undo_time [--versions 50]

A system learns from replies that are scored good and bad in turns, two turns a batch. Then the first turn is undone, as
`openclaw-rl undo` does, and all batches are trained on again. Prints the time that was said and the time that it took;
ends with 1 if the latter is outside.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.common.progress import record_progress
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks, retraining
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.train.undo import UndoPlan, apply_undo, check_safe_files
from openclaw_rl.types import Policy

# Turns.
BATCH = 2
SETTINGS = {
    "train.method": "binary",
    "train.batch.min_turns": BATCH,
    "train.batch.max_turns": BATCH,
    "train.batch.max_wait": 1e9,
    # A repeated batch is not examined again.
    "gate.kind": "numbers",
    "gate.watch": False,
    "serve.lessons": "off",
    "practice.enabled": False,
    "run.log_level": "warning",
}
SETTLE_SECONDS = 900.0


def score_replies(system: SubprocessSystem, count: int) -> None:
    """Ask questions, and score the replies good and bad in turns."""
    for number in range(count):
        messages = [{"role": "user", "content": f"What is {number} plus 3?"}]
        body = {"model": system.config.model.name, "messages": messages, "max_tokens": 64}
        reply = post_json(system, "/v1/chat/completions", body)
        post_json(system, "/v1/feedback", {"id": reply["id"], "score": 1 if number % 2 else -1})
        record_progress()


def learn_versions(system: SubprocessSystem, store: Store, count: int) -> list[int]:
    """Train so many versions, while nobody asks. Return the head's lineage without the base, oldest first."""
    line: list[int] = []
    while len(line) < count:
        with store.write() as conn:
            policy_marks.freeze_training(conn, time.time())
        score_replies(system, BATCH * (count - len(line)))
        with store.write() as conn:
            policy_marks.unfreeze_training(conn)
        system.wait_until_settled(SETTLE_SECONDS)
        with store.read() as conn:
            line = policies.lineage(conn, policies.head(conn).version)[-2::-1]
    return line


def undo_first_turn(store: Store, first: int) -> tuple[UndoPlan, float]:
    """Undo a turn of the first version. Return the plan, and the seconds until all batches were trained on again."""
    with store.read() as conn:
        turn = policies.uses_of_version(conn, first)[0].turn
    agreed = check_safe_files(store, [turn])
    began = time.monotonic()
    with store.write() as conn:
        (plan,) = apply_undo(conn, agreed, reason="benchmark")
    while True:
        with store.read() as conn:
            if not retraining.count_batches(conn):
                return plan, time.monotonic() - began
        time.sleep(0.05)
        record_progress()


def batch_seconds(versions: Sequence[Policy]) -> float:
    return sum(policy.metrics["seconds/batch"] for policy in versions)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The time that an undo says, and the time that it takes."
    )
    parser.add_argument("--versions", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = scratch_config(Path(folder) / "home", SETTINGS)
        with (
            SubprocessSystem(config) as system,
            Store.open(config.store_path, create=False) as store,
        ):
            line = learn_versions(system, store, given.versions)
            plan, took = undo_first_turn(store, line[0])
            with store.read() as conn:
                done = policies.lineage(conn, policies.head(conn).version)[:-1]
                first, again = (
                    batch_seconds(policies.get_many(conn, versions)) for versions in (line, done)
                )
    low, high = plan.seconds
    print(
        f"undo of the first of {len(line)} versions, starter, {BATCH} turns a batch: said {low:.1f} to {high:.1f} s, "
        f"took {took:.1f} s. The batches took {first:.1f} s when they were learned, and {again:.1f} s again "
        f"({len(done)} versions)"
    )
    sys.exit(not (low <= took <= high and plan.safe == 0))


if __name__ == "__main__":
    main()
