"""`openclaw-rl rollback`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.settings.cli_options import option

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def command(common: Decorator, load: Callable[..., Config]) -> click.Command:
    """`common`: the shared options; `load`: from what they give to the settings."""

    @click.command("rollback")
    @click.argument("version", type=click.IntRange(min=0), required=False)
    @option("--learn-again", is_flag=True, help="Let the turns that are taken back train once more.")
    @option("--reason", default="taken back by hand", show_default=True, help="What `inspect policy` says later.")
    @option("--yes", is_flag=True, help="Do not ask.")
    @common
    def rollback(version: int | None, learn_again: bool, reason: str, yes: bool, file: str | None, **rest: Any) -> None:
        """Take back what was learned since VERSION.

        VERSION is the one before the head if none is given; 0 is the base, before anything was learned.

        VERSION answers new requests as soon as the engine has it, and nobody waits. The turns behind what is taken back
        never train again. The versions stay: `openclaw@N` in a request's model still asks them.
        """
        from openclaw_rl.status.report import opened
        from openclaw_rl.store import policies
        from openclaw_rl.train.rollback import check, plan, take_back

        config = load(file, **rest)
        store = opened(config)
        try:
            with store.read() as conn:
                agreed = plan(conn, version)
                target = policies.get(conn, agreed.to)
            assert target is not None, f"version {agreed.to} is in the lineage"
            check(target)
            versions = ", ".join(map(str, reversed(agreed.undone)))
            fate = "may train again" if learn_again else "never train again"
            click.echo(f"version {agreed.to} answers again; taken back: {versions}; {len(agreed.turns)} turns {fate}")
            if not yes:
                click.confirm("Go on?", abort=True)
            with store.write() as conn:
                out = take_back(conn, agreed, learn_again=learn_again, reason=reason)
        finally:
            store.close()
        click.echo(f"done: {config.model.name} is version {agreed.to} again, {out} turns taken out")

    return rollback
