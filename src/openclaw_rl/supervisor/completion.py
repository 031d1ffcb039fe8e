"""Detects when `openclaw-rl train` has finished, so that scripts that train on data end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy import Connection

from openclaw_rl.common.progress import Wait
from openclaw_rl.settings.load import Config
from openclaw_rl.store import events, heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import is_owned, read_heads
from openclaw_rl.train.checkpoints import CheckpointWriter, is_last_version
from openclaw_rl.trajectories.sync_worker import is_import_done

log = logging.getLogger("openclaw_rl.run")
# Seconds between two checks.
CHECK_INTERVAL = 1.0
# Consecutive checks without anything left to do.
IDLE_CHECKS = 5
_IDLE_WAITS = frozenset({Wait.TURNS, Wait.MAX_STEPS})
"""What a trainer without work waits for: turns, which only the import and the judge can bring, or nothing."""


def ends_by_itself(config: Config, workers: Sequence[str]) -> bool:
    """Return whether these workers may end by themselves. With a gateway they never do, as people talk to it."""
    train = config.train
    if "train" not in workers or "gateway" in workers or train.exit_when_done is False:
        return False
    return bool(train.exit_when_done or train.max_steps or config.data.path)


async def stop_when_finished(config: Config, stop: asyncio.Event) -> None:
    """Set `stop` when training is finished.

    Consumes: the store. Produces: `stop`. Waits for: `train.max_steps`, or importer, judge and trainer without work.
    Unblocked by: either of these, or `stop`.
    """
    with await asyncio.to_thread(Store.open, config.store_path) as store:
        checker = CompletionChecker(config, store)
        while not stop.is_set():
            reason = await asyncio.to_thread(checker.finished_reason)
            if reason is not None:
                log.info("training is finished: %s", reason)
                stop.set()
            await asyncio.sleep(CHECK_INTERVAL)


def save_last_checkpoint(config: Config) -> None:
    """Save a checkpoint of the newest version, the result of the run, regardless of `train.checkpoint.save_interval`.

    Call it after the workers have ended. Raises `ConfigError` if `train.checkpoint.save_dir` cannot be written.
    """
    if config.train.checkpoint.save_dir is None:
        return
    with Store.open(config.store_path) as store:
        with store.read() as conn:
            begun = policies.get(conn, 0) is not None
        if begun:
            CheckpointWriter(store, config).write_final()


class CompletionChecker:
    """Decides from the store whether training is finished; polled about once a second."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config = config
        self._store = store
        with store.read() as conn:
            # Of an earlier run.
            self._earlier_beat = _trainer_beat(conn)
        self._ends_when_idle = bool(
            config.train.exit_when_done or (config.data.path and not config.data.watch_dir)
        )
        self._idle_checks = 0
        self._last_event = -1

    def finished_reason(self) -> str | None:
        """Return why training is finished, or None while it is not."""
        with self._store.read() as conn:
            if policies.get(conn, 0) is None:
                return None
            head = policies.head(conn)
            last_event = events.last_seq(conn)
            has_unjudged = bool(turns.closed_turns(conn, 1))
            is_last = self._are_last_versions(conn)
            beat = _trainer_beat(conn)
        if is_last:
            return f"train.max_steps {self._config.train.max_steps} is reached; version {head.version} is the last"
        if not self._ends_when_idle or beat is None:
            return None
        is_same_state = last_event == self._last_event
        self._last_event = last_event
        is_idle = is_same_state and not has_unjudged and self._trainer_is_idle(beat)
        is_done = is_idle and is_import_done(self._config, self._store)
        self._idle_checks = self._idle_checks + 1 if is_done else 0
        if self._idle_checks < IDLE_CHECKS:
            return None
        return f"nothing is left to import, judge or train on ({beat.note}); version {head.version} is the last"

    def _are_last_versions(self, conn: Connection) -> bool:
        """Return whether all policies of this run have reached `train.max_steps`."""
        per = self._config.policy.per
        names = [name for name in read_heads(conn) if is_owned(per, name)]
        return all(is_last_version(policies.head(conn, name), self._config.train) for name in names)

    def _trainer_is_idle(self, beat: heartbeats.Heartbeat) -> bool:
        """Return whether the trainer of this run has nothing to train on."""
        if beat == self._earlier_beat:
            return False
        return bool(beat.waits) and beat.waits <= _IDLE_WAITS


def _trainer_beat(conn: Connection) -> heartbeats.Heartbeat | None:
    return next((beat for beat in heartbeats.read_heartbeats(conn) if beat.name == "train"), None)
