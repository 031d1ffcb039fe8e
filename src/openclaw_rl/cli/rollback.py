"""`openclaw-rl rollback`: move the head back to an earlier version."""

from __future__ import annotations

from typing import Any

import click

from openclaw_rl.cli.load_config import load_config
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import home_options


@click.command("rollback")
@click.argument("version", type=click.IntRange(min=0), required=False)
@click.option(
    "--policy",
    "name",
    metavar="NAME",
    help="The policy (policy.per), e.g. agent:coder. [default: default]",
)
@click.option(
    "--learn-again", is_flag=True, help="Train on the turns of the rolled-back versions again."
)
@click.option(
    "--reason",
    default="rolled back by hand",
    show_default=True,
    help="Reason for `inspect policy` to show.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@home_options
def run_rollback(
    version: int | None, name: str | None, learn_again: bool, reason: str, yes: bool, **options: Any
) -> None:
    """Roll back to VERSION: undo what was learned after it.

    The default VERSION is the one before the head. 0 is the base model, before any training.

    VERSION answers new requests as soon as the engine has loaded it; no request waits. The turns of the rolled-back
    versions are not trained on again. As long as the files of a version are kept (train.checkpoint.keep_versions), the
    model `openclaw@N` in a request still uses it.
    """
    from openclaw_rl.owner_acts import versions
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store
    from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, require_name
    from openclaw_rl.train.rollback import check_policy_files, plan_rollback

    config = load_config(**options)
    with open_store(config) as store:
        with store.read() as conn:
            agreed = plan_rollback(conn, version, name=require_name(conn, name or DEFAULT_NAME))
        check_policy_files(store, agreed.name, agreed.to)
        undone = ", ".join(map(str, reversed(agreed.undone_versions)))
        fate = "may be trained on again" if learn_again else "are not trained on again"
        echo(
            f"back to version {agreed.to}; rolled back: {undone}; {len(agreed.turns)} turns {fate}"
        )
        if agreed.cancelled_batches:
            echo(
                f"the undo in progress is cancelled: {agreed.cancelled_batches} batches are not trained on again"
            )
        if not yes:
            click.confirm("Continue?", abort=True)
        out = versions.roll_back(
            store, agreed, learn_again=learn_again, reason=reason, origin=ActOrigin()
        )
    of = "" if agreed.name == DEFAULT_NAME else f" of {agreed.name}"
    echo(
        f"done: {config.model.name}{of} is version {agreed.to} again, {out} turns removed from training"
    )
