"""Asks the owner before texts and tokens go to the Tinker service for the first time, and records the yes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from openclaw_rl.common.printable import echo
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import Config
from openclaw_rl.store import consents
from openclaw_rl.store.db import Store
from openclaw_rl.tinker.consent import EVENT, consent_text, service_address, tinker_purposes


def require_consent(config: Config, workers: Sequence[str], *, yes: bool) -> None:
    """Return if the owner agreed, now or before, to what these workers send; else raise `ConfigError` or abort.

    `yes`: the owner agrees without a question. What is sent is shown first in any case.
    """
    if not (purposes := tinker_purposes(config, tuple(workers))):
        return
    address = service_address(config)
    with Store.open(config.store_path) as store:
        with store.read() as conn:
            if set(purposes) <= consents.agreed_purposes(conn, EVENT, address):
                return
        echo(consent_text(config, purposes), err=True)
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError("nothing is sent to Tinker before you agree. Say --yes, or start it in a terminal")
            click.confirm("Continue?", abort=True, err=True)
        with store.write() as conn:
            consents.record_consent(conn, EVENT, address, purposes, time.time())
