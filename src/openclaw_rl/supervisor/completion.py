"""Detects when `openclaw-rl train` has finished, so that scripts that train on data end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from openclaw_rl.settings.load import Config
from openclaw_rl.store import events, heartbeats, policies, turns
from openclaw_rl.store.db import Store
from openclaw_rl.train.checkpoints import Saver
from openclaw_rl.train.orchestrator import WAITING, is_last
from openclaw_rl.trajectories.sync_worker import imported

log = logging.getLogger("openclaw_rl.run")
LOOK = 1.0  # seconds between two checks
QUIET = 5  # consecutive checks without anything left to do


def wanted(config: Config, rooms: Sequence[str]) -> bool:
    """Return whether these workers may end by themselves. With a gateway they never do, as people talk to it."""
    train = config.train
    if "train" not in rooms or "gateway" in rooms or train.once is False:
        return False
    return bool(train.once or train.max_steps or config.data.path)


async def come(config: Config, stop: asyncio.Event) -> None:
    """Set `stop` when training is finished.

    Consumes: the store. Produces: `stop`. Waits for: `train.max_steps`, or importer, judge and trainer without work.
    Unblocked by: either of these, or `stop`.
    """
    store = await asyncio.to_thread(Store.open, config.store_path)
    try:
        ending = Ending(config, store)
        while not stop.is_set():
            if why := await asyncio.to_thread(ending.look):
                log.info("training is finished: %s", why)
                stop.set()
            await asyncio.sleep(LOOK)
    finally:
        store.close()


def keep_last(config: Config) -> None:
    """Save a checkpoint of the newest version, the result of the run, regardless of `train.save_interval`.

    Call it after the workers have ended. Raises `ConfigError` if `train.save_dir` cannot be written.
    """
    if config.train.save_dir is None:
        return
    store = Store.open(config.store_path)
    try:
        with store.read() as conn:
            begun = policies.get(conn, 0) is not None
        if begun:
            Saver(store, config).last()
    finally:
        store.close()


class Ending:
    """Decides from the store whether training is finished; polled about once a second."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config, self._store = config, store
        self._since = time.time()
        self._used_up = bool(config.train.once or (config.data.path and not config.data.rollout_dir))
        self._quiet, self._seen = 0, -1

    def look(self) -> str | None:
        """Return why training is finished, or None while it is not."""
        with self._store.read() as conn:
            if policies.get(conn, 0) is None:
                return None
            head, seen, waiting = policies.head(conn), events.last(conn), bool(turns.closed(conn, 1))
            beat = next((b for b in heartbeats.beats(conn) if b.name == "train"), None)
        if is_last(head, self._config.train):
            return f"train.max_steps {self._config.train.max_steps} is reached; version {head.version} is the last"
        if not self._used_up or beat is None:
            return None
        idle = not waiting and beat.at > self._since and beat.note.startswith(WAITING)
        idle = idle and seen == self._seen and imported(self._config, self._store)
        self._quiet, self._seen = self._quiet + 1 if idle else 0, seen
        if self._quiet < QUIET:
            return None
        return f"nothing is left to import, judge or train on ({beat.note}); version {head.version} is the last"
