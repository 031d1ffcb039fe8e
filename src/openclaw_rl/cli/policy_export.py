"""`openclaw-rl policies export`: write a version as a model of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openclaw_rl.cli.load_config import load_config
from openclaw_rl.common.printable import echo
from openclaw_rl.errors import IdentityMismatch, OpenClawError
from openclaw_rl.settings.cli_options import home_options

if TYPE_CHECKING:
    from openclaw_rl.model_export.logprob_check import Agreement
    from openclaw_rl.model_export.merged_folder import MergePlan
    from openclaw_rl.render.model_folder import ModelFiles
    from openclaw_rl.settings.load import Config
    from openclaw_rl.store.db import Store
    from openclaw_rl.types import Policy

_MIB = 2**20
_TYPES = ("float32", "bfloat16", "float16")


@click.command("export")
@click.argument("version", type=click.IntRange(min=0))
@click.option(
    "--merged",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="New folder for the model (transformers).",
)
@click.option(
    "--gguf",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="New GGUF file, by the converter of llama.cpp.",
)
@click.option(
    "--dtype",
    type=click.Choice(_TYPES),
    help="Type of the written weights. [default: that of the base]",
)
@click.option(
    "--converter",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="convert_hf_to_gguf.py, or a checkout of llama.cpp. [default: in PATH]",
)
@click.option(
    "--no-check", is_flag=True, help="Do not compare log-probabilities, which loads the model."
)
@home_options
def export_policy(
    version: int,
    merged: Path | None,
    gguf: Path | None,
    dtype: str | None,
    converter: Path | None,
    no_check: bool,
    **options: Any,
) -> None:
    """Write VERSION as a model of its own: the base with the adapter folded in.

    The folder can be served and trained like any model. Its log-probabilities are compared with those of the version
    on a few prompts, and the folder is kept only if they agree.
    """
    from openclaw_rl.cli.evaluate_judge import progress_bar
    from openclaw_rl.model_export.gguf_file import check_gguf_target, convert_folder, find_converter
    from openclaw_rl.model_export.merged_folder import (
        check_space,
        check_target,
        plan_merge,
        write_merged,
    )
    from openclaw_rl.status.report import open_store

    if merged is None and gguf is None:
        raise click.UsageError("give --merged FOLDER, --gguf FILE, or both.")
    if converter is not None and gguf is None:
        raise click.UsageError("--converter has no effect without --gguf.")
    config = load_config(**options)
    folder = None if merged is None else check_target(merged)
    file = None if gguf is None else check_gguf_target(gguf)
    command = [] if file is None else find_converter(converter)
    with open_store(config) as store:
        policy = _require_files(store, version)
        base = _require_base(config, store, policy)
    plan = plan_merge(policy, base, dtype=dtype)
    check_space(dict.fromkeys(_written_paths(folder, file), plan.size))
    with progress_bar() as show, _merged_folder(folder, file) as out:
        agreement = write_merged(plan, out, check=None if no_check else config.model, show=show)
        if file is not None:
            show("converting to GGUF", 0, 1)
            convert_folder(command, out, file)
    _report(plan, agreement, folder, file)


def _require_files(store: Store, version: int) -> Policy:
    """Return a version whose files are here and sound. Raises `OpenClawError`."""
    from openclaw_rl.common.policy_digest import TINKER_FILE, weight_files
    from openclaw_rl.store.lineage import policies
    from openclaw_rl.train.rollback import check_policy_files

    with store.read() as conn:
        policy = policies.require_version(conn, version)
    if policy.version == 0:
        raise OpenClawError(
            f"version 0 is the base itself: {policy.base}. Choose a version that was trained"
        )
    if policy.path is None or policies.is_removed(policy):
        raise OpenClawError(
            f"version {version} has no files here; `openclaw-rl policies list` shows which versions have some"
        )
    check_policy_files(store, policy.name, version)
    if weight_files(policy.path) == (TINKER_FILE,):
        raise OpenClawError(
            f"version {version} is at the Tinker service, and its adapter is not in this home. Download it as "
            "docs/guides/tinker.md says"
        )
    return policy


def _require_base(config: Config, store: Store, policy: Policy) -> ModelFiles:
    """Return the base that the version was trained from. Raises `OpenClawError` if it is missing or has changed."""
    from openclaw_rl.render.model_folder import ModelFiles, compute_identity
    from openclaw_rl.store.file_digests import digest_files

    files = ModelFiles.from_config(config.model.model_copy(update={"path": policy.base}))
    identity = compute_identity(files, digest_files(store, files.weights))
    if identity != policy.identity:
        raise IdentityMismatch(
            f"{files.folder} is not the base of version {policy.version} (identity {identity[:12]}, expected "
            f"{policy.identity[:12]}): tokenizer, template or weights differ. Restore it, or set model.tokenizer as it "
            "was when the version was trained"
        )
    return files


def _written_paths(folder: Path | None, file: Path | None) -> list[Path]:
    """Return the places of the merged model and of the GGUF file, each at most as large as the model."""
    paths = [] if folder is None else [folder]
    if file is not None:
        paths.append(file)
    if folder is None and file is not None:
        paths.append(file.with_suffix(".merged"))
    return paths


@contextmanager
def _merged_folder(folder: Path | None, file: Path | None) -> Iterator[Path]:
    """Yield where the merged model is written. Without a folder of the user, it is removed after the conversion."""
    import tempfile

    if folder is not None:
        yield folder
        return
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as temporary:
        yield Path(temporary) / "merged"


def _report(
    plan: MergePlan, agreement: Agreement | None, folder: Path | None, file: Path | None
) -> None:
    what = (
        f"{len(plan.updates)} matrices folded into the base" if plan.is_adapter else "whole weights"
    )
    where = "" if folder is None else f": {folder}"
    echo(f"version {plan.policy.version}: {what}, {plan.size / _MIB:,.0f} MiB{where}")
    if agreement is None:
        echo("log-probabilities were not compared (--no-check)")
    else:
        echo(
            f"log-probabilities differ from those of the version by at most {agreement.largest:.2g} nats, "
            f"{agreement.mean:.2g} on average ({agreement.values} compared; bound {agreement.bound:g} for "
            f"{agreement.bound_dtype})"
        )
        if agreement.change is not None:
            echo(
                f"the version itself differs from its base by {agreement.change.mean:.2g} nats on average; "
                f"{agreement.change.share:.1%} of that is in the merged model"
            )
        if agreement.hides_change:
            echo(
                f"rounding to {plan.weights_dtype} changes the model half as much as its training did, or more: "
                "--dtype float32 keeps what it learned"
            )
    if file is not None:
        echo(f"GGUF, {file.stat().st_size / _MIB:,.0f} MiB, not compared: {file}")
