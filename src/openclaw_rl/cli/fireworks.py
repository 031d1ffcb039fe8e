"""`openclaw-rl fireworks`: export a version for the Fireworks service, and upload it there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.load_config import load_settings
from openclaw_rl.common.printable import echo, echo_error
from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.settings.cli_options import Seconds, home_options

if TYPE_CHECKING:
    from openclaw_rl.fireworks.adapter_export import AdapterExport
    from openclaw_rl.settings.load import Config
    from openclaw_rl.types import Policy

_policy_option = click.option(
    "--policy", "version", type=click.IntRange(min=0), help="Version. [default: the head]"
)


@click.group("fireworks")
def fireworks_commands() -> None:
    """Export a version for the Fireworks service, or upload it there."""


@fireworks_commands.command("export")
@click.argument("folder", type=click.Path(path_type=Path))
@_policy_option
@home_options
def export_version(folder: Path, version: int | None, **options: Any) -> None:
    """Write a version to FOLDER in the layout that Fireworks takes. Nothing is sent."""
    from openclaw_rl.fireworks.adapter_export import write_export

    policy, export = _export_policy(_load_config(**options), version)
    write_export(export, folder)
    echo(
        f"version {policy.version} of {policy.base}, rank {export.rank}, {', '.join(export.targets)}: {folder}"
    )


@fireworks_commands.command("deploy")
@_policy_option
@click.option(
    "--gpus",
    type=click.IntRange(min=1),
    help="Create fireworks.deployment, with this number of GPUs.",
)
# Refused: this command trains nothing.
@click.option("--method", hidden=True)
@click.option(
    "--wait", type=Seconds(), default=600.0, show_default=True, help="Limit of the validation."
)
@click.option("--yes", is_flag=True, help="Agree to what is sent without a question.")
@home_options
def deploy_version(
    version: int | None,
    gpus: int | None,
    method: str | None,
    wait: float,
    yes: bool,
    **options: Any,
) -> None:
    """Upload a version to Fireworks, and load it on fireworks.deployment if that is set.

    Set fireworks.account, fireworks.base_model and FIREWORKS_API_KEY. The same command again continues an upload that
    was interrupted.
    """
    from openclaw_rl.engines.remote.loaded_versions import adapter_name
    from openclaw_rl.fireworks.consent import upload_text
    from openclaw_rl.fireworks.service import FireworksService
    from openclaw_rl.supervisor.service_consent import confirm_sending

    config = _load_config(**options)
    _check_deploy(config, gpus, method)
    policy, export = _export_policy(config, version)
    base = str(config.fireworks.base_model)
    deployment = config.fireworks.deployment
    confirm_sending(
        upload_text(config, policy.version, export.files, gpus), service="Fireworks", yes=yes
    )
    service = FireworksService(config.fireworks)
    service.check_base(base, policy.base)
    name = service.upload_adapter(adapter_name(policy.ref), base, export, within=wait, seen=echo)
    echo(f"version {policy.version} is {name}")
    if deployment is None:
        echo(
            "No deployment serves it yet: set fireworks.deployment, and run this again (docs/guides/fireworks.md)"
        )
        return
    if gpus is not None:
        is_created = service.create_deployment(base, deployment, gpus)
        if is_created:
            echo(
                f"created the deployment {deployment} with {gpus} GPUs; it starts with the first request"
            )
        else:
            echo(f"created the deployment {deployment} before: --gpus has no effect")
    service.load_on_deployment(name, deployment)
    echo(f"loaded on {deployment}; `openclaw-rl serve --backend fireworks` serves it")


def _load_config(**options: Any) -> Config:
    """Return the settings, with the notices that concern this command."""
    # These settings need no engine here.
    loaded = load_settings(**options, used_sections=("fireworks",))
    for notice in loaded.notices:
        echo_error(f"note: {notice}")
    return loaded.config


def _check_deploy(config: Config, gpus: int | None, method: str | None) -> None:
    """Raise `ConfigError` for settings that are missing, and for what Fireworks does not do."""
    if method is not None:
        raise ConfigError(
            f"--method {method}: nothing is trained at Fireworks; it serves what was trained here. Train with "
            "recipes/openclaw-combine/run_combine_training.sh, then run this without --method"
        )
    needed = {
        name: getattr(config.fireworks, name) for name in ("api_key", "account", "base_model")
    }
    missing = [f"fireworks.{name}" for name, value in needed.items() if not value]
    if missing:
        raise ConfigError(
            f"not set: {', '.join(missing)}. Give FIREWORKS_API_KEY, FIREWORKS_ACCOUNT_ID, and "
            "--set fireworks.base_model=accounts/fireworks/models/NAME"
        )
    if gpus is not None and config.fireworks.deployment is None:
        raise ConfigError(
            "--gpus creates a deployment: give it a name with --set fireworks.deployment=NAME"
        )


def _export_policy(config: Config, version: int | None) -> tuple[Policy, AdapterExport]:
    """Return a version of the home and its export. Raises `OpenClawError` if Fireworks cannot take it."""
    from openclaw_rl.common.policy_digest import TINKER_FILE, weight_files
    from openclaw_rl.engines.adapter_file import has_full_weights, read_adapter
    from openclaw_rl.fireworks.adapter_export import export_adapter
    from openclaw_rl.render.model_folder import ModelFiles
    from openclaw_rl.status.report import open_store
    from openclaw_rl.store.lineage import policies
    from openclaw_rl.types import PolicyState

    with open_store(config) as store, store.read() as conn:
        policy = policies.head(conn) if version is None else policies.require_version(conn, version)
    if policy.path is None and policy.state is not PolicyState.LIVE:
        raise OpenClawError(
            f"version {policy.version} is {policy.state.value} ({policy.reason}), and its weights are not kept. Choose "
            "another one with --policy"
        )
    if policy.path is None:
        raise OpenClawError(
            f"version {policy.version} is the base: there is no adapter to export. Train first"
        )
    if policies.is_removed(policy):
        raise OpenClawError(f"version {policy.version}: {policies.REMOVED_REASON}")
    if weight_files(policy.path) == (TINKER_FILE,):
        raise OpenClawError(
            f"version {policy.version} is at the Tinker service, and its adapter is not in this home. Download it as "
            "docs/guides/tinker.md says, and upload it with `firectl model create`"
        )
    if has_full_weights(policy.path):
        raise OpenClawError(
            f"version {policy.version} is no LoRA adapter of this home. Fireworks takes whole weights as a "
            "base of your own, with `firectl model create`"
        )
    model = config.model.model_copy(update={"path": policy.base})
    template = ModelFiles.from_config(model).templates.get("default")
    return policy, export_adapter(read_adapter(policy.ref), base=policy.base, template=template)
