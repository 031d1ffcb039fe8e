"""`policy.per` of a home: a system with a gateway sets it, and every other command uses what is stored."""

from __future__ import annotations

import logging

from openclaw_rl.settings.load import Config, with_policy_owner
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policy_names

log = logging.getLogger("openclaw_rl.run")


def set_owner(config: Config) -> None:
    """Store `policy.per` of a system that starts, for other commands on the home. Call it with the home locked."""
    per = config.policy.per
    with Store.open(config.store_path) as store, store.write() as conn:
        before = policy_names.read_owner(conn)
        policy_names.record_owner(conn, per)
    if before not in (None, per):
        log.warning("policy.per was %s on this home, and is %s from now on", before, per)


def with_stored_owner(config: Config) -> Config:
    """Return the settings with the home's `policy.per`. Raises `ConfigError` if another value was given."""
    with Store.open(config.store_path) as store, store.read() as conn:
        return with_policy_owner(config, policy_names.require_owner(conn, config.policy.given))
