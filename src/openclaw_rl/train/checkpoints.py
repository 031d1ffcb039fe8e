"""Checkpoints: `<train.checkpoint.save_dir>/checkpoint-<step>`, a complete policy that another home can continue from.

A checkpoint has the files of the policy's folder and a metadata file. The files are hard links where the file system
supports them, so pruning the home does not affect a checkpoint. `checkpoint-latest` points to the newest one. A folder
gets its name only when it is complete, even if the trainer is killed.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from openclaw_rl.common.atomic_files import (
    ensure_folder,
    link_files,
    replace_symlink,
    sync_path,
    write_folder,
)
from openclaw_rl.common.packaged_models import PACKAGED_MODELS
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import STARTER, Config, TrainConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, version_files
from openclaw_rl.train.policy_folders import META_FILE, has_metadata
from openclaw_rl.types import Policy

log = logging.getLogger(__name__)
LATEST_LINK = "checkpoint-latest"
RESUME_LATEST = "latest"
"""The value of `train.checkpoint.resume` that selects the newest checkpoint of `train.checkpoint.save_dir`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMeta:
    """Metadata of a checkpoint (`checkpoint.json`)."""

    step: int  # steps of its whole lineage, those before a resumed checkpoint included
    home: str  # the home that wrote it
    version: int  # its version in that home
    lineage: tuple[int, ...]  # version, parent, ..., 0
    method: str
    model: str  # model.path and model.tokenizer of the settings; folders as absolute paths
    tokenizer: str | None
    identity: str  # of base, tokenizer and template
    digest: str  # of the weight files
    # SHA-256 of each other file, by name; empty: not known.
    files: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, Any]  # state of the method: baselines and moving averages
    metrics: Mapping[str, float]
    created_at: float  # seconds since the epoch
    # Descriptions of the checkpoints before it, newest first.
    came_of: tuple[str, ...] = field(default=())


_meta_adapter = TypeAdapter(CheckpointMeta)


def read_meta(folder: Path) -> CheckpointMeta:
    """Read the metadata of a checkpoint. Raises `ConfigError` when the folder is not a checkpoint."""
    try:
        return _meta_adapter.validate_json((folder / META_FILE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: {META_FILE} is missing, so this is not a checkpoint. Expected a folder checkpoint-<step>, as "
            "they are written to train.checkpoint.save_dir"
        ) from None
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{folder / META_FILE}: cannot be read: {error}") from error


def find_checkpoint(train: TrainConfig) -> Path:
    """Return the folder that `train.checkpoint.resume` names. Raises `ConfigError` when it does not exist."""
    assert train.checkpoint.resume is not None
    if train.checkpoint.resume != RESUME_LATEST:
        folder = Path(train.checkpoint.resume).expanduser()
    elif train.checkpoint.save_dir is None:
        raise ConfigError(
            "train.checkpoint.resume is latest: set train.checkpoint.save_dir too, the folder with the checkpoints"
        )
    else:
        folder = Path(train.checkpoint.save_dir).expanduser() / LATEST_LINK
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such checkpoint (train.checkpoint.resume {train.checkpoint.resume})"
        )
    return folder.resolve()


def check_save_dir(train: TrainConfig) -> None:
    """Raise `ConfigError` if checkpoints are to be written to a folder that is not writable."""
    if train.checkpoint.save_dir is not None:
        ensure_folder("train.checkpoint.save_dir", train.checkpoint.save_dir)


def is_last_version(head: Policy, train: TrainConfig) -> bool:
    """Return True if `train.max_steps` allows no further step."""
    return train.max_steps is not None and steps_taken(head) >= train.max_steps


def steps_taken(policy: Policy) -> int:
    """Return the number of optimizer steps of the policy and its ancestors."""
    return int(policy.metrics.get("step", 0))


class CheckpointWriter:
    """Writes a checkpoint every `train.checkpoint.save_interval` steps."""

    def __init__(self, store: Store, config: Config) -> None:
        """Raises `ConfigError` when `train.checkpoint.save_dir` cannot be written to."""
        train = config.train
        model = config.model
        self._store = store
        self._interval = train.checkpoint.save_interval
        self._method = train.method
        self._model = _absolute_path(model.path)
        self._tokenizer = model.tokenizer and _absolute_path(model.tokenizer)
        self._home = str(config.home_dir.resolve())
        assert train.checkpoint.save_dir is not None
        self._root = ensure_folder("train.checkpoint.save_dir", train.checkpoint.save_dir)

    def write_if_due(self, policy: Policy) -> None:
        """Write a checkpoint if one is due. A failure is logged, and training continues."""
        if steps_taken(policy) % self._interval == 0:
            self._write_or_log(policy)

    def write_final(self) -> None:
        """Write the head's checkpoint, due or not. For the end of a run, when no trainer is running."""
        head = self._sound_head()
        if head.path is not None and not has_metadata(head) and not self._is_written(head):
            self._write_or_log(head)

    def _write_or_log(self, policy: Policy) -> None:
        try:
            self._write_checkpoint(policy)
        except OSError as error:
            log.error("cannot write the checkpoint of version %d: %s", policy.version, error)
        else:
            log.info("checkpoint: %s", self._root / _folder_name(policy))

    def catch_up(self) -> None:
        """Write the head's checkpoint if one is due and a trainer died before it wrote it."""
        head = self._sound_head()
        if head.path is None or has_metadata(head):
            return
        if not self._is_written(head):
            self.write_if_due(head)
        elif steps_taken(head) % self._interval == 0:
            replace_symlink(self._root / LATEST_LINK, _folder_name(head))

    def _sound_head(self) -> Policy:
        """Return the head, after it has moved back if its files are damaged."""
        while True:
            with self._store.read() as conn:
                head = policies.head(conn)
            if version_files.examine_files(self._store, head.version) is None:
                return head

    def _is_written(self, policy: Policy) -> bool:
        folder = self._root / _folder_name(policy)
        return (folder / META_FILE).exists() and read_meta(folder).digest == policy.digest

    def _write_checkpoint(self, policy: Policy) -> None:
        """Write it, replacing this home's own of the same step. Raises `OSError`, also for a folder of another home."""
        assert policy.path is not None
        source = Path(policy.path)
        name = _folder_name(policy)
        whole = self._root / f".{name}.new"
        before = self._root / f".{name}.old"
        out = self._root / name
        for left in (whole, before):
            shutil.rmtree(left, ignore_errors=True)
        if out.exists() and not ((out / META_FILE).exists() and read_meta(out).home == self._home):
            raise FileExistsError(
                f"{out} exists already, of another home or program. Choose another train.checkpoint.save_dir"
            )
        note = json.dumps(asdict(self._build_meta(policy)), indent=2).encode()
        write_folder(
            whole, {META_FILE: note}, lambda folder: link_files(source, folder, but=META_FILE)
        )
        if out.exists():
            out.rename(before)
        whole.rename(out)
        sync_path(self._root)
        replace_symlink(self._root / LATEST_LINK, name)
        shutil.rmtree(before, ignore_errors=True)

    def _build_meta(self, policy: Policy) -> CheckpointMeta:
        with self._store.read() as conn:
            lineage = policies.lineage(conn, policy.version)
            # The child of the base.
            first = policies.get(conn, lineage[-2])
        assert first is not None, f"version {lineage[-2]} is in the lineage"
        same = ("version", "identity", "digest", "memory", "metrics", "created_at")
        return CheckpointMeta(
            step=steps_taken(policy),
            home=self._home,
            lineage=tuple(lineage),
            method=self._method,
            model=self._model,
            tokenizer=self._tokenizer,
            files={
                name: digest
                for name, digest in policy.files.items()
                if digest and name != META_FILE
            },
            came_of=checkpoint_ancestry(first),
            **{name: getattr(policy, name) for name in same},
        )


def checkpoint_ancestry(policy: Policy) -> tuple[str, ...]:
    """Describe the checkpoints that a version started from, newest first; empty for a version that was trained here."""
    if policy.path is None or not has_metadata(policy):
        return ()
    note = read_meta(Path(policy.path))
    return (describe_checkpoint(note), *note.came_of)


def describe_checkpoint(note: CheckpointMeta) -> str:
    """Return a one-line description of a checkpoint for logs."""
    return f"step {note.step} by {note.method} (version {note.version} of its home, weights {note.digest[:12]})"


def _folder_name(policy: Policy) -> str:
    return f"checkpoint-{steps_taken(policy)}"


def _absolute_path(path: str) -> str:
    if path == STARTER or path in PACKAGED_MODELS:
        return path
    folder = Path(path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else path
