"""`--check` (`run.check_only`): say what a command would start and what speaks against it, and start nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from openclaw_rl.common.printable import echo

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config, LoadedSettings


def check_start(
    loaded: LoadedSettings,
    workers: Sequence[str],
    *,
    config: Config,
    check_more: Callable[[], None] = lambda: None,
) -> None:
    """Print the settings that were given, then check everything that a start of `workers` would check.

    `config`: the settings with which they would run. `check_more`: what the command checks besides. stdout is a
    settings file. Nothing is sent, no model is loaded, and no home is made. Raises `OpenClawError` with what speaks
    against the start.
    """
    from openclaw_rl.settings.reference import given_lines
    from openclaw_rl.supervisor.preflight import check_before_start
    from openclaw_rl.supervisor.service_consent import services_used
    from openclaw_rl.supervisor.supervisor import check_home_free, check_port_free
    from openclaw_rl.train import resume

    for line in given_lines(replace(loaded, config=config)):
        echo(line)
    check_before_start(config, workers)
    if {"train", "gateway"} & set(workers):
        resume.check_checkpoint(config, train="train" in workers)
    if "gateway" in workers:
        check_home_free(config)
        check_port_free(config)
    check_more()
    for service in services_used(config, workers):
        echo(f"a start asks you before anything is sent to {service}", err=True)
    echo(
        f"check: nothing speaks against a start of {', '.join(workers)}. Nothing was started",
        err=True,
    )
