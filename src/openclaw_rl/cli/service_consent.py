"""Asks the owner before texts and tokens go to Tinker or Fireworks for the first time, and records the yes."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence

import click

from openclaw_rl.common.printable import echo
from openclaw_rl.errors import ConfigError
from openclaw_rl.fireworks import consent as fireworks_consent
from openclaw_rl.settings.load import Config
from openclaw_rl.store import consents
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.supervisor import SERVING_WORKERS, is_home_locked, prepare_home
from openclaw_rl.tinker.consent import EVENT, consent_text, service_address, tinker_purposes


def require_consent(config: Config, workers: Sequence[str], *, yes: bool) -> None:
    """Return if the owner agreed, now or before, to what these workers send; else raise `ConfigError` or abort.

    `yes`: the owner agrees without a question. What is sent is shown first in any case.
    """
    if purposes := tinker_purposes(config, tuple(workers)):
        text = consent_text(config, purposes)
        _ask_once(
            config, EVENT, service_address(config), purposes, text=text, service="Tinker", yes=yes
        )
    if "engine" in workers and config.engine.backend == "fireworks":
        kind = fireworks_consent.EVENT
        text = fireworks_consent.serving_text(config)
        _ask_once(
            config, kind, config.fireworks.url, ["serve"], text=text, service="Fireworks", yes=yes
        )


def require_serving_consent(config: Config, *, yes: bool) -> None:
    """As `require_consent`, for a gateway that is started only if no system runs on the home."""
    is_service = config.engine.backend in ("tinker", "fireworks")
    if is_service and not (config.home_dir.exists() and is_home_locked(config)):
        require_consent(config, SERVING_WORKERS, yes=yes)


def _ask_once(
    config: Config,
    kind: str,
    address: str,
    purposes: Collection[str],
    *,
    text: str,
    service: str,
    yes: bool,
) -> None:
    prepare_home(config)
    with Store.open(config.store_path) as store:
        with store.read() as conn:
            if set(purposes) <= consents.agreed_purposes(conn, kind, address):
                return
        confirm_sending(text, service=service, yes=yes)
        with store.write() as conn:
            consents.record_consent(conn, kind, address, purposes, time.time())


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
