"""Checkpoints: `<train.save_dir>/checkpoint-<step>`, a complete policy that another home can continue from.

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

from openclaw_rl.common.atomic_files import linked, point, sync, usable, write_folder
from openclaw_rl.errors import ConfigError, ModelError
from openclaw_rl.settings.load import STARTER, Config, TrainConfig
from openclaw_rl.store import policies
from openclaw_rl.store.db import Store
from openclaw_rl.train.policy_folders import NOTE
from openclaw_rl.types import Policy

log = logging.getLogger(__name__)
LATEST = "checkpoint-latest"
AT_LATEST = "latest"
"""The value of `train.resume` that selects the newest checkpoint of `train.save_dir`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
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
    memory: Mapping[str, Any]  # state of the method: baselines and moving averages
    metrics: Mapping[str, float]
    created_at: float  # seconds since the epoch
    came_of: tuple[str, ...] = field(default=())  # descriptions of the checkpoints before it, newest first


_notes = TypeAdapter(Note)


def read_note(folder: Path) -> Note:
    """Read the metadata of a checkpoint. Raises `ConfigError` when the folder is not a checkpoint."""
    try:
        return _notes.validate_json((folder / NOTE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: {NOTE} is missing, so this is not a checkpoint. Expected a folder checkpoint-<step>, as they "
            "are written to train.save_dir"
        ) from None
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{folder / NOTE}: cannot be read: {error}") from error


def find(train: TrainConfig) -> Path:
    """Return the folder that `train.resume` names. Raises `ConfigError` when it does not exist."""
    assert train.resume is not None
    if train.resume != AT_LATEST:
        folder = Path(train.resume).expanduser()
    elif train.save_dir is None:
        raise ConfigError("train.resume is latest: set train.save_dir too, the folder with the checkpoints")
    else:
        folder = Path(train.save_dir).expanduser() / LATEST
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such checkpoint (train.resume {train.resume})")
    return folder.resolve()


def check(train: TrainConfig) -> Path | None:
    """Return the folder for checkpoints, or None if it is not set. Raises `ConfigError` when it is not writable."""
    return None if train.save_dir is None else usable("train.save_dir", train.save_dir)


def step_of(policy: Policy) -> int:
    """Return the number of optimizer steps of the policy and its ancestors."""
    return int(policy.metrics.get("step", 0))


class Saver:
    """Writes a checkpoint every `train.save_interval` steps."""

    def __init__(self, store: Store, config: Config) -> None:
        """Raises `ConfigError` when `train.save_dir` cannot be written to."""
        train, model = config.train, config.model
        self._store, self._every, self._method = store, train.save_interval, train.method
        self._model, self._tokenizer = _in_full(model.path), model.tokenizer and _in_full(model.tokenizer)
        self._home = str(config.home_dir.resolve())
        assert train.save_dir is not None
        self._root = usable("train.save_dir", train.save_dir)

    def published(self, policy: Policy) -> None:
        """Write a checkpoint if one is due. A failure is logged, and training continues."""
        if step_of(policy) % self._every == 0:
            self._write(policy)

    def last(self) -> None:
        """Write the head's checkpoint, due or not. For the end of a run, when no trainer is running."""
        with self._store.read() as conn:
            head = policies.head(conn)
        if head.path is not None and not (Path(head.path) / NOTE).exists() and not self._has(head):
            self._write(head)

    def _write(self, policy: Policy) -> None:
        try:
            self._save(policy)
        except OSError as error:
            log.error("cannot write the checkpoint of version %d: %s", policy.version, error)
        else:
            log.info("checkpoint: %s", self._root / _name(policy))

    def catch_up(self) -> None:
        """Write the head's checkpoint if one is due and a trainer died before it wrote it."""
        with self._store.read() as conn:
            head = policies.head(conn)
        if head.path is None or (Path(head.path) / NOTE).exists():
            return
        if not self._has(head):
            self.published(head)
        elif step_of(head) % self._every == 0:
            point(self._root / LATEST, _name(head))

    def _has(self, policy: Policy) -> bool:
        folder = self._root / _name(policy)
        return (folder / NOTE).exists() and read_note(folder).digest == policy.digest

    def _ours(self, folder: Path) -> bool:
        return (folder / NOTE).exists() and read_note(folder).home == self._home

    def _save(self, policy: Policy) -> None:
        """Write it, replacing this home's own of the same step. Raises `OSError`, also for a folder of another home."""
        assert policy.path is not None
        source, name = Path(policy.path), _name(policy)
        whole, before, out = self._root / f".{name}.new", self._root / f".{name}.old", self._root / name
        for left in (whole, before):
            shutil.rmtree(left, ignore_errors=True)
        if out.exists() and not self._ours(out):
            raise FileExistsError(f"{out} exists already, of another home or program. Choose another train.save_dir")
        note = json.dumps(asdict(self._note(policy)), indent=2).encode()
        write_folder(whole, {NOTE: note}, lambda folder: linked(source, folder, but=NOTE))
        if out.exists():
            out.rename(before)
        whole.rename(out)
        sync(self._root)
        point(self._root / LATEST, name)
        shutil.rmtree(before, ignore_errors=True)

    def _note(self, policy: Policy) -> Note:
        with self._store.read() as conn:
            lineage = policies.lineage(conn, policy.version)
            first = policies.get(conn, lineage[-2])  # the child of the base
        assert first is not None, f"version {lineage[-2]} is in the lineage"
        return Note(
            step=step_of(policy),
            home=self._home,
            version=policy.version,
            lineage=tuple(lineage),
            method=self._method,
            model=self._model,
            tokenizer=self._tokenizer,
            identity=policy.identity,
            digest=policy.digest,
            memory=policy.memory,
            metrics=policy.metrics,
            created_at=policy.created_at,
            came_of=origin_of(first),
        )


def origin_of(policy: Policy) -> tuple[str, ...]:
    """Describe the checkpoints that a version started from, newest first; empty for a version that was trained here."""
    if policy.path is None or not (Path(policy.path) / NOTE).exists():
        return ()
    note = read_note(Path(policy.path))
    return (in_words(note), *note.came_of)


def in_words(note: Note) -> str:
    """Return a one-line description of a checkpoint for logs."""
    return f"step {note.step} by {note.method} (version {note.version} of its home, weights {note.digest[:12]})"


def _name(policy: Policy) -> str:
    return f"checkpoint-{step_of(policy)}"


def _in_full(path: str) -> str:
    folder = Path(path).expanduser()
    return str(folder.resolve()) if path != STARTER and folder.is_dir() else path


def check_whole(folder: Path, found: str, note: Note) -> None:
    """Raise `ModelError` if the digest of the weights (`found`) differs from the one in the metadata."""
    if found != note.digest:
        raise ModelError(
            f"{folder}: the weights are damaged: their digest is {found[:12]}, expected {note.digest[:12]}"
        )
