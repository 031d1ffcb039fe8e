"""A fresh home begins on a checkpoint: it becomes a version of its own, whose parent is the base.

So nothing else needs to know: the engine loads it, the trainer stands on it with its optimizer, its schedule and its
memory, and all turns of the home are still fresh. The method may be another one; what that one needs of the memory is
there or starts anew.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from pathlib import Path

from openclaw_rl.common.atomic_files import linked, write_folder
from openclaw_rl.common.policy_digest import ADAPTER_CONFIG, digest_of
from openclaw_rl.errors import ConfigError, IdentityMismatch, ModelError, StaleLease
from openclaw_rl.render.model_folder import ModelFiles, identity
from openclaw_rl.settings.load import Config, TrainConfig
from openclaw_rl.store import events, policies
from openclaw_rl.store.db import Store
from openclaw_rl.train import checkpoints, policy_folders
from openclaw_rl.train.checkpoints import Note
from openclaw_rl.train.lease_keeper import LEASE, LeaseKeeper
from openclaw_rl.types import Lease, Policy, PolicyState

log = logging.getLogger("openclaw_rl.train")
_LOOK = 0.2  # seconds


def with_base(config: Config) -> Config:
    """Where `model.path` is the checkpoint of an adapter: its base, on which the home is to begin with the checkpoint.

    A checkpoint of full weights is a model by itself. Raises `ConfigError`.
    """
    folder = Path(config.model.path).expanduser()
    if not (folder / policy_folders.NOTE).exists() or not (folder / ADAPTER_CONFIG).exists():
        return config
    note = checkpoints.read_note(folder)
    if config.train.resume is not None and checkpoints.find(config.train) != folder.resolve():
        raise ConfigError(
            f"model.path {config.model.path} is a checkpoint, and train.resume {config.train.resume} another one. "
            "Leave one of them out"
        )
    rank, alpha = _shape(folder)
    lora = config.train.lora.model_copy(update={"rank": rank, "alpha": alpha})
    train = {"resume": str(folder.resolve()), "lora": lora, "weights": "lora"}
    model = {"path": note.model, "tokenizer": config.model.tokenizer or note.tokenizer}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "train": config.train.model_copy(update=train),
        }
    )


def begin(config: Config, *, train: bool) -> None:
    """Let the home stand on the checkpoint in `train.resume`. `train`: it is to be trained from, too.

    A home that stands on it or came of it goes on from where it is, so the same command may be given again. Raises
    `ConfigError` when the home has learned something else or the checkpoint does not fit the settings,
    `IdentityMismatch` for another base, `ModelError` for a damaged checkpoint.
    """
    if config.train.resume is None:
        return
    folder = checkpoints.find(config.train)
    note = checkpoints.read_note(folder)
    if train:
        _check_fits(folder, config.train)
    store = Store.open(config.store_path)
    try:
        if not _goes_on(store, folder, note):
            _adopt(config, store, folder, note)
    finally:
        store.close()


def _goes_on(store: Store, folder: Path, note: Note) -> bool:
    """The home knows the checkpoint already."""
    with store.read() as conn:
        learned = [p for p in policies.all(conn) if p.version and p.state is not PolicyState.REJECTED]
        if not learned:
            return False
        head = policies.head(conn).version
    if not any(p.digest == note.digest for p in learned):
        raise ConfigError(
            f"{folder}: a checkpoint is where a fresh home begins, and this one has learned already (version {head}). "
            "Leave --resume-from-checkpoint out to go on from there, or give another --home"
        )
    log.info("the home knows %s already: it goes on from version %d", folder, head)
    return True


def _adopt(config: Config, store: Store, folder: Path, note: Note) -> None:
    name = identity(ModelFiles.of(config.model))
    if name != note.identity:
        raise IdentityMismatch(
            f"{folder} was trained from {note.model} (identity {note.identity[:12]}), and the model is "
            f"{config.model.path} (identity {name[:12]}): tokenizer, template or weights differ, so it does not fit. "
            f"Set model.path {note.model}"
        )
    with store.write() as conn:
        policies.ensure_root(conn, base=config.model.path, identity=name, at=time.time())
    keeper = _keeper(store, config.train)
    try:
        _publish(config, store, _lease(keeper, config.train), folder, note)
    finally:
        keeper.close()


def _publish(config: Config, store: Store, lease: Lease, folder: Path, note: Note) -> None:
    with store.read() as conn:
        head, version = policies.head(conn), policies.next_version(conn)
    out = policy_folders.fresh(config.policies_dir.resolve(), version)
    write_folder(out, {}, lambda into: linked(folder, into))
    try:
        checkpoints.check_whole(folder, _digest(out), note)
        policy = Policy(
            version=version,
            parent=head.version,
            state=PolicyState.LIVE,
            path=str(out),
            digest=note.digest,
            base=head.base,
            identity=head.identity,
            memory=note.memory,
            metrics={"step": float(note.step)},
            created_at=time.time(),
        )
        with store.write() as conn:
            policies.publish(conn, lease, policy, [], time.time())
            data = {"checkpoint": str(folder), "step": note.step, "method": note.method, "digest": note.digest}
            events.append(conn, "policy.resumed", str(version), data, policy.created_at)
    except (ModelError, StaleLease):  # after other failures it stays: the commit may have been done
        policy_folders.remove(out)
        raise
    log.info("version %d is the checkpoint %s: %s", version, folder, checkpoints.in_words(note))


def _digest(out: Path) -> str:
    try:
        return digest_of(out)
    except FileNotFoundError as error:
        raise ModelError(f"the checkpoint is not whole: {error.filename} is missing") from None


def _check_fits(folder: Path, train: TrainConfig) -> None:
    """What the trainer would say later, before anything is published. Raises `ConfigError`."""
    theirs: dict[str, object] = {"train.weights": "lora" if (folder / ADAPTER_CONFIG).exists() else "full"}
    ours: dict[str, object] = {"train.weights": train.weights}
    if train.weights == theirs["train.weights"] == "lora":
        theirs["train.lora.rank"], theirs["train.lora.alpha"] = _shape(folder)
        ours |= {"train.lora.rank": train.lora.rank, "train.lora.alpha": train.lora.alpha}
    for key, value in theirs.items():
        if ours[key] != value:
            raise ConfigError(
                f"{folder}: the policy was trained with {key} {value}, the settings say {ours[key]}. Set {key} "
                f"{value}, or start from the base"
            )


def _shape(folder: Path) -> tuple[int, float]:
    """Rank and alpha of an adapter."""
    try:
        said = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        return int(said["r"]), float(said["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / ADAPTER_CONFIG}: cannot be read: {error!r}") from error


def _keeper(store: Store, train: TrainConfig) -> LeaseKeeper:
    holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
    return LeaseKeeper(store, LEASE, holder, ttl=train.lease)


def _lease(keeper: LeaseKeeper, train: TrainConfig) -> Lease:
    """Waits for one that died to lose it. Raises `ConfigError` when another trainer is at work."""
    give_up = time.monotonic() + train.lease + 1
    while (lease := keeper.acquire()) is None:
        if time.monotonic() > give_up:
            raise ConfigError("another trainer is at work on this home. Stop it, or give another --home")
        time.sleep(_LOOK)
    return lease
