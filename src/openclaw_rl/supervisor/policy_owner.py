"""`policy.per` of a home: a system with a gateway sets it, and every other command uses what is stored."""

from __future__ import annotations

import logging
import time

from sqlalchemy import Connection

from openclaw_rl.common.process_guard import process_exists
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import Config, with_policy_owner
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import owners
from openclaw_rl.store.lineage import policy_names

log = logging.getLogger("openclaw_rl.run")


def set_owner(config: Config) -> None:
    """Store `policy.per` of a system that starts, for other commands on the home. Call it with the home locked.

    If it changes, each lesson goes to the policy of its prompts from now on. Raises `ConfigError` if a judge or a
    trainer that another command started runs with another value.
    """
    per = config.policy.per
    with Store.open(config.store_path) as store, store.write() as conn:
        before = policy_names.read_owner(conn)
        if before not in (None, per):
            _refuse_while_others_run(conn, f"policy.per is {per}, but it is {before}")
            log.warning("policy.per was %s on this home, and is %s from now on", before, per)
            owners.move_lessons(conn, per, at=time.time())
        policy_names.record_owner(conn, per)


def _refuse_while_others_run(conn: Connection, conflict: str) -> None:
    for beat in heartbeats.read_heartbeats(conn):
        is_running = beat.is_alive(time.time()) and process_exists(beat.pid)
        if beat.name in ("judge", "train") and is_running:
            raise ConfigError(
                f"{conflict} in the {beat.name} worker that runs on this home. Stop `{beat.name}` first"
            )


def with_stored_owner(config: Config) -> Config:
    """Return the settings with the home's `policy.per`. Raises `ConfigError` if another value was given."""
    with Store.open(config.store_path) as store, store.read() as conn:
        return with_policy_owner(config, policy_names.require_owner(conn, config.policy.given))
