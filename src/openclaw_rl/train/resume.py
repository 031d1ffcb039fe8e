"""Start a new home from a checkpoint, which becomes a version of that home with the base as its parent.

Other code needs no special case: the engine loads the version, the trainer continues from it with its optimizer,
schedule and method state, and all turns of the home are still unused. The method may differ from the checkpoint's; the
state that it needs is taken from the checkpoint, or starts empty.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

from openclaw_rl.common.atomic_files import link_files, write_folder
from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, hash_folder
from openclaw_rl.errors import ConfigError, IdentityMismatch, ModelError, StaleLease
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.settings.load import Config, TrainConfig
from openclaw_rl.store import events, file_digests
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.train import checkpoints, policy_folders
from openclaw_rl.train.checkpoints import CheckpointMeta
from openclaw_rl.train.lease_keeper import LeaseKeeper
from openclaw_rl.types import Lease, PolicyState

log = logging.getLogger("openclaw_rl.train")
# Seconds beyond the lease's lifetime.
_LEASE_MARGIN = 2.0
# Seconds.
_POLL_SECONDS = 0.2


def resolve_base(config: Config) -> Config:
    """Replace a `model.path` that is an adapter checkpoint by the checkpoint's base, and resume from the checkpoint.

    A checkpoint of full weights is a model by itself and is left as it is. Raises `ConfigError`.
    """
    folder = Path(config.model.path).expanduser()
    if not (folder / policy_folders.META_FILE).exists() or not (folder / ADAPTER_CONFIG).exists():
        return config
    note = checkpoints.read_meta(folder)
    if (
        config.train.checkpoint.resume is not None
        and checkpoints.find_checkpoint(config.train) != folder.resolve()
    ):
        raise ConfigError(
            f"model.path {config.model.path} is a checkpoint, and train.checkpoint.resume "
            f"{config.train.checkpoint.resume} is another one. "
            "Set only one of them"
        )
    rank, alpha = _lora_shape(folder)
    lora = config.train.lora.model_copy(update={"rank": rank, "alpha": alpha})
    checkpoint = config.train.checkpoint.model_copy(update={"resume": str(folder.resolve())})
    train = {"checkpoint": checkpoint, "lora": lora, "finetune": "lora"}
    model = {"path": note.model, "tokenizer": config.model.tokenizer or note.tokenizer}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "train": config.train.model_copy(update=train),
        }
    )


def check_checkpoint(config: Config, *, train: bool) -> None:
    """Raise `ConfigError` or `ModelError` if a home cannot start from the checkpoint in `train.checkpoint.resume`."""
    if config.train.checkpoint.resume is None:
        return
    folder = checkpoints.find_checkpoint(config.train)
    checkpoints.read_meta(folder)
    if train:
        _check_settings(folder, config.train)


def start_from_checkpoint(config: Config, *, train: bool) -> None:
    """Start the home from the checkpoint in `train.checkpoint.resume`. `train`: check that training can continue.

    Idempotent: a home already started from this checkpoint continues from its own head. Raises `ConfigError` when the
    home has other versions or the checkpoint does not fit the settings, `IdentityMismatch` for another base,
    `ModelError` for a damaged checkpoint.
    """
    if config.train.checkpoint.resume is None:
        return
    folder = checkpoints.find_checkpoint(config.train)
    note = checkpoints.read_meta(folder)
    if train:
        _check_settings(folder, config.train)
    store = Store.open(config.store_path)
    try:
        if not _is_started(store, folder, note):
            _adopt_checkpoint(config, store, folder, note)
    finally:
        store.close()


def _is_started(store: Store, folder: Path, note: CheckpointMeta) -> bool:
    """Return True if the home was already started from the checkpoint. Raises `ConfigError` for other versions."""
    with store.read() as conn:
        learned = [
            p for p in policies.list_all(conn) if p.version and p.state is not PolicyState.REJECTED
        ]
        if not learned:
            return False
        head = policies.head(conn).version
    if not any(p.digest == note.digest for p in learned):
        raise ConfigError(
            f"{folder}: only a new home can start from a checkpoint, and this one is trained already (version {head}). "
            "Omit --resume-from-checkpoint to continue from that version, or use another --home"
        )
    log.info("the home was already started from %s: it continues from version %d", folder, head)
    return True


def _adopt_checkpoint(config: Config, store: Store, folder: Path, note: CheckpointMeta) -> None:
    model_files = ModelFiles.from_config(config.model)
    identity = compute_identity(model_files, file_digests.digest_files(store, model_files.weights))
    if identity != note.identity:
        raise IdentityMismatch(
            f"{folder} was trained from {note.model} (identity {note.identity[:12]}), and the model is "
            f"{config.model.path} (identity {identity[:12]}): tokenizer, template or weights differ, so it cannot be "
            f"used. Set model.path {note.model}"
        )
    with store.write() as conn:
        policies.ensure_root(conn, base=config.model.path, identity=identity, at=time.time())
    keeper = LeaseKeeper(store, ttl=config.train.safety.lease_ttl)
    try:
        _publish_checkpoint(config, store, keeper, folder, note)
    finally:
        keeper.close()


def _publish_checkpoint(
    config: Config, store: Store, keeper: LeaseKeeper, folder: Path, note: CheckpointMeta
) -> None:
    lease = _wait_for_lease(keeper, config.train)
    with store.read() as conn:
        head = policies.head(conn)
        version = policies.next_version(conn)
    out = policy_folders.new_folder(config.policies_dir.resolve(), version)
    write_folder(out, {}, lambda into: link_files(folder, into))
    try:
        files = _check_files(folder, out, note)
        policy = replace(
            head,
            version=version,
            parent=head.version,
            state=PolicyState.LIVE,
            path=str(out),
            digest=note.digest,
            files=files,
            damage=None,
            memory=note.memory,
            metrics={"step": float(note.step)},
            created_at=time.time(),
        )
        with store.write() as conn:
            policies.publish(conn, lease, policy, [], time.time(), lease_now=keeper.clock())
            data = {
                "checkpoint": str(folder),
                "step": note.step,
                "method": note.method,
                "digest": note.digest,
            }
            events.append(conn, "policy.resumed", str(version), data, policy.created_at)
    except (ModelError, StaleLease):
        # After other errors it is kept: the commit may have succeeded.
        policy_folders.remove_folder(out)
        raise
    log.info(
        "version %d is the checkpoint %s: %s",
        version,
        folder,
        checkpoints.describe_checkpoint(note),
    )


def _check_files(folder: Path, copy: Path, note: CheckpointMeta) -> dict[str, str]:
    """Return the digests of the files. Raises `ModelError` if they differ from those in the metadata."""
    digest, files = hash_folder(copy)
    if digest != note.digest:
        raise ModelError(
            f"{folder}: the weights are damaged: their digest is {digest[:12]}, expected {note.digest[:12]}"
        )
    for name, expected in note.files.items():
        if files.get(name) != expected:
            difference = (
                f"its sha256 is {files[name][:12]}, expected {expected[:12]}"
                if name in files
                else "it is missing"
            )
            raise ModelError(
                f"{folder / name}: the checkpoint is damaged: {difference}. Restore the file"
            )
    return files


def _check_settings(folder: Path, train: TrainConfig) -> None:
    """Raise `ConfigError` for settings that the trainer would refuse later, before anything is published."""
    theirs: dict[str, object] = {
        "train.finetune": "lora" if (folder / ADAPTER_CONFIG).exists() else "full"
    }
    ours: dict[str, object] = {"train.finetune": train.finetune}
    if train.finetune == theirs["train.finetune"] == "lora":
        theirs["train.lora.rank"], theirs["train.lora.alpha"] = _lora_shape(folder)
        ours |= {"train.lora.rank": train.lora.rank, "train.lora.alpha": train.lora.alpha}
    for key, value in theirs.items():
        if ours[key] != value:
            raise ConfigError(
                f"{folder}: the policy was trained with {key} {value}, but the settings say {ours[key]}. Set {key} "
                f"{value}, or start from the base"
            )


def _lora_shape(folder: Path) -> tuple[int, float]:
    """Return rank and alpha of an adapter."""
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        return int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / ADAPTER_CONFIG}: cannot be read: {error!r}") from error


def _wait_for_lease(keeper: LeaseKeeper, train: TrainConfig) -> Lease:
    """Acquire the lease, waiting for a dead holder's to expire. Raises `ConfigError` if another trainer is running."""
    give_up = time.monotonic() + train.safety.lease_ttl + _LEASE_MARGIN
    lease = keeper.acquire()
    while lease is None:
        if time.monotonic() > give_up:
            raise ConfigError(
                "another trainer is running on this home. Stop it, or use another --home"
            )
        time.sleep(_POLL_SECONDS)
        lease = keeper.acquire()
    return lease
