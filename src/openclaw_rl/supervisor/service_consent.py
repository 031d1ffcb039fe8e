"""Asks the owner before texts and tokens go to a service for the first time, and records the yes.

What is sent, where and for what is in the specs of the engine, the trainer and the judge (`ServiceConsent`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from openclaw_rl.common.printable import echo
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec, judge_spec, trainer_spec
from openclaw_rl.settings.specs import ServiceConsent
from openclaw_rl.store import consents
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.home_folder import prepare_home


def require_consent(config: Config, workers: Sequence[str], *, yes: bool) -> None:
    """Return if the owner agreed, now or before, to what these workers send.

    Otherwise raise `ConfigError`, or `click.Abort` if he says no.
    `yes`: the owner agrees without a question. What is sent is shown first in any case.
    """
    uses = _service_uses(config, workers)
    for event in dict.fromkeys(use.event for use in uses):
        _ask_once(config, [use for use in uses if use.event == event], yes=yes)


def services_used(config: Config, workers: Sequence[str]) -> list[str]:
    """Return the names of the services to which these workers send texts or tokens."""
    return list(dict.fromkeys(use.service for use in _service_uses(config, workers)))


def _service_uses(config: Config, workers: Sequence[str]) -> list[ServiceConsent]:
    """Return what these workers use services for."""
    uses = [engine_spec(config).consent] if "engine" in workers else []
    uses += [trainer_spec(config).consent] if "train" in workers else []
    uses += [judge_spec(config).consent] if "judge" in workers else []
    return [use for use in uses if use is not None]


def _ask_once(config: Config, uses: Sequence[ServiceConsent], *, yes: bool) -> None:
    """Ask for what one service is used for, unless the owner agreed before. The uses have one event."""
    service = uses[0]
    address = service.address(config)
    purposes = tuple(use.purpose for use in uses)
    prepare_home(config)
    with Store.open(config.store_path) as store:
        with store.read() as conn:
            if set(purposes) <= consents.agreed_purposes(conn, service.event, address):
                return
        confirm_sending(service.describe(config, purposes), service=service.service, yes=yes)
        with store.write() as conn:
            consents.record_consent(conn, service.event, address, purposes, time.time())


def confirm_sending(text: str, *, service: str, yes: bool) -> None:
    """Show what is sent, and ask. Raises `ConfigError` without a terminal, aborts if the owner does not agree."""
    echo(text, err=True)
    if yes:
        return
    # None: started with `<&-`.
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            f"nothing is sent to {service} before you agree. Say --yes, or start it in a terminal"
        )
    click.confirm("Continue?", abort=True, err=True)
