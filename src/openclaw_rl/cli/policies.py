"""`openclaw-rl policies`: list, compare and move policy versions."""

from __future__ import annotations

from typing import Any

import click

from openclaw_rl.cli.help_sections import ListingGroup
from openclaw_rl.cli.load_config import load_config
from openclaw_rl.cli.policy_export import export_policy
from openclaw_rl.cli.rollback import run_rollback
from openclaw_rl.common.printable import echo
from openclaw_rl.settings.cli_options import home_options

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_version_argument = click.argument("version", type=click.IntRange(min=0))


@click.group("policies", cls=ListingGroup, default="list")
def policy_commands() -> None:
    """List, compare and move policy versions. Without a command: list."""


policy_commands.add_command(run_rollback)
policy_commands.add_command(export_policy)


@policy_commands.command("list")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    default=30,
    show_default=True,
    help="Versions at most.",
)
@click.option(
    "--policy",
    "name",
    metavar="NAME",
    help="Only versions of this policy (policy.per), e.g. agent:coder.",
)
@_json_option
@home_options
def list_policies(limit: int, name: str | None, as_json: bool, **options: Any) -> None:
    """List the newest versions. Prints state, time, turns, and how satisfied people were with each."""
    from openclaw_rl.status.policy_report import show_policies

    show_policies(load_config(**options), limit, name=name, as_json=as_json)


@policy_commands.command("show")
@_version_argument
@_json_option
@home_options
def show_version(version: int, as_json: bool, **options: Any) -> None:
    """Show one version. Prints its parent, its metrics, and the turns that it was trained on."""
    from openclaw_rl.status.inspect import show_policy

    show_policy(load_config(**options), version, as_json=as_json)


@policy_commands.command("diff")
@_version_argument
@click.argument("other", type=click.IntRange(min=0))
@_json_option
@home_options
def diff_versions(version: int, other: int, as_json: bool, **options: Any) -> None:
    """Compare two versions. Prints metrics and changed answers to the probes of the gate side by side."""
    from openclaw_rl.status.policy_report import show_difference

    show_difference(load_config(**options), version, other, as_json=as_json)


@policy_commands.command("promote")
@_version_argument
@click.option(
    "--learn-again", is_flag=True, help="Train on the turns of the versions that are left again."
)
@click.option(
    "--reason",
    help="Reason for `policies list` to show. [default: version VERSION was promoted by hand]",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@home_options
def promote_version(
    version: int, learn_again: bool, reason: str | None, yes: bool, **options: Any
) -> None:
    """Make VERSION the head, although it was rolled back.

    It answers new requests as soon as the engine has loaded it, and training continues from it. Versions that VERSION
    does not descend from are rolled back; they stay in the store, so that they can be promoted, too.
    """
    from openclaw_rl.owner_acts import versions
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store
    from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME
    from openclaw_rl.train.rollback import check_policy_files, plan_promotion

    config = load_config(**options)
    with open_store(config) as store:
        with store.read() as conn:
            agreed = plan_promotion(conn, version)
        check_policy_files(store, agreed.name, version)
        left = ", ".join(map(str, reversed(agreed.left_versions))) or "none"
        fate = "may be trained on again" if learn_again else "are not trained on again"
        echo(
            f"version {version} becomes the head; rolled back: {left}; {len(agreed.turns)} turns {fate}"
        )
        if not yes:
            click.confirm("Continue?", abort=True)
        full_reason = reason or f"version {version} was promoted by hand"
        out = versions.promote_version(
            store, agreed, learn_again=learn_again, reason=full_reason, origin=ActOrigin()
        )
    of = "" if agreed.name == DEFAULT_NAME else f" of {agreed.name}"
    echo(f"done: {config.model.name}{of} is version {version}, {out} turns removed from training")


@policy_commands.command("pin")
@_version_argument
@home_options
def pin_policy(version: int, **options: Any) -> None:
    """Keep the files of VERSION, whatever train.checkpoint says."""
    from openclaw_rl.owner_acts import versions
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        versions.pin_version(store, version, ActOrigin())
    echo(
        f"version {version} is pinned: its files are kept until `openclaw-rl policies unpin {version}`"
    )


@policy_commands.command("unpin")
@_version_argument
@home_options
def unpin_policy(version: int, **options: Any) -> None:
    """Let the files of VERSION be removed as train.checkpoint says."""
    from openclaw_rl.owner_acts import versions
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        versions.unpin_version(store, version, ActOrigin())
    echo(f"version {version} is no longer pinned")


@policy_commands.command("freeze")
@home_options
def freeze_training(**options: Any) -> None:
    """Take no training step and no automatic rollback until `unfreeze`. Serving and judging continue."""
    from openclaw_rl.owner_acts import versions
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        frozen = versions.freeze_training(store, ActOrigin())
    echo(
        f"training is frozen at version {frozen.head}; `openclaw-rl policies unfreeze` continues it"
    )
    if frozen.waiting_batches:
        echo(f"an undo waits, too: batches to train on again: {frozen.waiting_batches}")


@policy_commands.command("unfreeze")
@home_options
def unfreeze_training(**options: Any) -> None:
    """Continue training after `freeze`, on the turns that were judged meanwhile, too."""
    from openclaw_rl.owner_acts import versions
    from openclaw_rl.owner_acts.origin import ActOrigin
    from openclaw_rl.status.report import open_store

    with open_store(load_config(**options)) as store:
        versions.unfreeze_training(store, ActOrigin())
    echo("training continues")
