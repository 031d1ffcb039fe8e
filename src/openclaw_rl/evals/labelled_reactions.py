"""Labelled reactions, by which judges are measured: the shipped set, or a file in the same format."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import JudgeInput, Message, Reaction

SHIPPED_SET = ASSETS / "evals" / "reactions.jsonl"
FORMAT_VERSION = 1
_T = TypeVar("_T")


class Half(StrEnum):
    """Half of a set. Judges are fitted to the first one; the labels of the other only measure them."""

    CALIBRATION = "calibration"
    HELD_OUT = "held_out"


class _HeaderLine(msgspec.Struct):
    version: int


class _ReactionLine(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    language: str
    expected: Literal[1, -1] | None
    request: str | list[dict[str, Any]]
    reply: str | dict[str, Any]
    reaction: dict[str, Any]
    kind: str = msgspec.field(name="class")
    half: Half | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledReaction:
    """One reaction with the verdict that it should get.

    `expected`: +1, -1, or None for no evidence. `half`: None for a reaction of a set that is not divided.
    """

    id: str
    language: str
    kind: str
    expected: int | None
    item: JudgeInput
    half: Half | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """The reactions of a file. `name`: the file's name and the first digits of its sha256."""

    name: str
    reactions: Sequence[LabelledReaction]

    def in_languages(self, languages: Sequence[str]) -> LabelledSet:
        """Return the reactions in some languages; all without any. Raises `ConfigError` for one that is not there."""
        known = list(dict.fromkeys(one.language for one in self.reactions))
        unknown = [language for language in languages if language not in known]
        if unknown:
            raise ConfigError(
                f"--language {unknown[0]}: {self.name} has no such reactions, only {', '.join(known)}"
            )
        chosen = [one for one in self.reactions if not languages or one.language in languages]
        return LabelledSet(name=self.name, reactions=chosen)

    def in_half(self, half: Half) -> LabelledSet:
        """Return the reactions of one half, and those without a half. Raises `ConfigError` for an empty half."""
        if all(one.half is None for one in self.reactions):
            return self
        chosen = [one for one in self.reactions if one.half in (half, None)]
        if not chosen:
            raise ConfigError(
                f"{self.name} has no reactions in its half {half}. Choose the other one."
            )
        return replace(self, name=f"{self.name} ({half})", reactions=chosen)


def load_reactions(path: Path | None = None, half: Half | None = Half.CALIBRATION) -> LabelledSet:
    """Load a half of a set, or with `half=None` all of it. `path` None: the shipped set.

    Raises `ConfigError` with the file, the line and what was expected.

    A file has one JSON object a line: first a header with `version: 1`, then the reactions. The header of the shipped
    set explains the fields, the classes and the rule of labelling.
    """
    file = path or SHIPPED_SET
    try:
        raw = file.read_bytes()
        lines = [(number, line) for number, line in enumerate(raw.splitlines(), 1) if line.strip()]
    except OSError as error:
        raise ConfigError(
            f"--reactions {file}: cannot be read ({error.strerror}). Give a file of JSON lines."
        ) from None
    if not lines or _decode_line(file, *lines[0], _HeaderLine).version != FORMAT_VERSION:
        raise ConfigError(
            f'{file}: expected a first line {{"version": {FORMAT_VERSION}}}, the header of the format'
        )
    reactions = [_labelled_reaction(_decode_line(file, *line, _ReactionLine)) for line in lines[1:]]
    if not reactions:
        raise ConfigError(f"{file}: expected at least one reaction after the header, got none")
    if len({one.id for one in reactions}) < len(reactions):
        raise ConfigError(f"{file}: expected distinct ids, got one of them twice")
    loaded = LabelledSet(
        name=f"{file.name}@{hashlib.sha256(raw).hexdigest()[:8]}", reactions=reactions
    )
    return loaded if half is None else loaded.in_half(half)


def _decode_line(file: Path, number: int, line: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}, line {number}: {error}") from None


def _labelled_reaction(entry: _ReactionLine) -> LabelledReaction:
    request: Sequence[Message] = (
        [_as_message("user", entry.request)] if isinstance(entry.request, str) else entry.request
    )
    item = JudgeInput(
        turn=entry.id,
        messages=request,
        reply=_as_message("assistant", entry.reply),
        reaction=Reaction(
            turn=entry.id,
            revision=1,
            messages=(entry.reaction,),
            source=None,
            how="labelled",
            at=0.0,
        ),
    )
    return LabelledReaction(
        id=entry.id,
        language=entry.language,
        kind=entry.kind,
        expected=entry.expected,
        item=item,
        half=entry.half,
    )


def _as_message(role: str, text: str | Mapping[str, Any]) -> Message:
    return {"role": role, "content": text} if isinstance(text, str) else text
