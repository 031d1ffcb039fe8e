"""Checkpoints: `<train.save_dir>/checkpoint-<step>`, a whole policy with all that is needed to go on from it elsewhere.

The files of the policy's folder (as hard links where the file system has them, so that thinning out the home takes
nothing away from a checkpoint), and a note. `checkpoint-latest` points to the newest. A folder appears under its name
when it is whole, whenever the trainer is killed.
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
"""What `train.resume` may say instead of a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a checkpoint says of itself (`checkpoint.json`)."""

    step: int  # of its line; those before a checkpoint that this one came of included
    home: str  # where it was made
    version: int  # there
    lineage: tuple[int, ...]  # version, parent, ..., 0
    method: str
    model: str  # model.path and model.tokenizer as in the settings; folders in full
    tokenizer: str | None
    identity: str  # of base, tokenizer and template
    digest: str  # of the weight files
    memory: Mapping[str, Any]  # baselines and slow averages
    metrics: Mapping[str, float]
    created_at: float  # seconds since the epoch
    came_of: tuple[str, ...] = field(default=())  # the checkpoints before it, newest first, in words


_notes = TypeAdapter(Note)


def read_note(folder: Path) -> Note:
    """Raises `ConfigError` when the folder is no checkpoint."""
    try:
        return _notes.validate_json((folder / NOTE).read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: no {NOTE} there, so it is no checkpoint. Expected a folder checkpoint-<step>, as they "
            "are put into train.save_dir"
        ) from None
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{folder / NOTE}: cannot be read: {error}") from error


def find(train: TrainConfig) -> Path:
    """The folder that `train.resume` names. Raises `ConfigError` when there is none."""
    assert train.resume is not None
    if train.resume != AT_LATEST:
        folder = Path(train.resume).expanduser()
    elif train.save_dir is None:
        raise ConfigError("train.resume is latest: train.save_dir is needed too, where the checkpoints lie")
    else:
        folder = Path(train.save_dir).expanduser() / LATEST
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such checkpoint (train.resume {train.resume})")
    return folder.resolve()


def check(train: TrainConfig) -> Path | None:
    """The folder of the checkpoints, if there are to be any. Raises `ConfigError` when it cannot be written to."""
    return None if train.save_dir is None else usable("train.save_dir", train.save_dir)


def step_of(policy: Policy) -> int:
    """Steps of its line."""
    return int(policy.metrics.get("step", 0))


class Saver:
    """Makes a checkpoint of every `train.save_interval`-th version of a line."""

    def __init__(self, store: Store, config: Config) -> None:
        """Raises `ConfigError` when `train.save_dir` cannot be written to."""
        train, model = config.train, config.model
        self._store, self._every, self._method = store, train.save_interval, train.method
        self._model, self._tokenizer = _in_full(model.path), model.tokenizer and _in_full(model.tokenizer)
        self._home = str(config.home_dir.resolve())
        assert train.save_dir is not None
        self._root = usable("train.save_dir", train.save_dir)

    def published(self, policy: Policy) -> None:
        """A checkpoint, if one is due. When it cannot be written the log says so; learning goes on."""
        if step_of(policy) % self._every == 0:
            self._write(policy)

    def last(self) -> None:
        """The head's checkpoint, due or not: for the end of a run, with no trainer beside it."""
        with self._store.read() as conn:
            head = policies.head(conn)
        if head.path is not None and not (Path(head.path) / NOTE).exists() and not self._has(head):
            self._write(head)

    def _write(self, policy: Policy) -> None:
        try:
            self._save(policy)
        except OSError as error:
            log.error("no checkpoint of version %d: %s", policy.version, error)
        else:
            log.info("checkpoint: %s", self._root / _name(policy))

    def catch_up(self) -> None:
        """The head's checkpoint, where a trainer died before it was written."""
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
        """Another line's checkpoint of the same step gives way; what is not this home's stays. Raises `OSError`."""
        assert policy.path is not None
        source, name = Path(policy.path), _name(policy)
        whole, before, out = self._root / f".{name}.new", self._root / f".{name}.old", self._root / name
        for left in (whole, before):
            shutil.rmtree(left, ignore_errors=True)
        if out.exists() and not self._ours(out):
            raise FileExistsError(f"{out} is there already, of another home or program. Choose another train.save_dir")
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
    """The checkpoints that a version began as, newest first, in words; none for one that was trained here."""
    if policy.path is None or not (Path(policy.path) / NOTE).exists():
        return ()
    note = read_note(Path(policy.path))
    return (in_words(note), *note.came_of)


def in_words(note: Note) -> str:
    """For a person."""
    return f"step {note.step} by {note.method} (version {note.version} of its home, weights {note.digest[:12]})"


def _name(policy: Policy) -> str:
    return f"checkpoint-{step_of(policy)}"


def _in_full(path: str) -> str:
    folder = Path(path).expanduser()
    return str(folder.resolve()) if path != STARTER and folder.is_dir() else path


def check_whole(folder: Path, found: str, note: Note) -> None:
    """Raises `ModelError` when the weights are not those that the note was written for (`found`: their digest)."""
    if found != note.digest:
        raise ModelError(
            f"{folder}: its weights are damaged: their digest is {found[:12]}, expected {note.digest[:12]}"
        )
