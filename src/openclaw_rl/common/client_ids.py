"""Read the ids of conversation and person that front ends and proxies send, by `assets/client_ids.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.common.assets import read_yaml_asset

_SHIPPED = read_yaml_asset("client_ids.yaml")
_NO_IDS = frozenset(_SHIPPED["no_ids"])
_PLACEHOLDER = "{{"


@dataclass(frozen=True, slots=True)
class _IdNames:
    """The names of one kind of id, in the order in which they count."""

    headers: tuple[str, ...]
    metadata: tuple[str, ...]

    @classmethod
    def of_kind(cls, kind: str) -> _IdNames:
        entries = _SHIPPED[kind]
        return cls(
            headers=tuple(name for entry in entries for name in entry.get("headers", ())),
            metadata=tuple(name for entry in entries for name in entry.get("metadata", ())),
        )


_SESSION = _IdNames.of_kind("session")
_USER = _IdNames.of_kind("user")
_METADATA_NAMES = frozenset((*_SESSION.metadata, *_USER.metadata))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientId:
    """An id with the name of the header or field that had it; empty if there was none."""

    value: str = ""
    name: str = ""


_NO_ID = ClientId()


def read_session(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> ClientId:
    """Return the id of the conversation that a front end sent. `headers`: names in any case."""
    return _read_id(_SESSION, headers, metadata)


def read_user(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> ClientId:
    """Return the id of the person that a front end sent. `headers`: names in any case."""
    return _read_id(_USER, headers, metadata)


def may_have_id(metadata: Any) -> bool:
    """Return whether a body's `metadata` has a field in which clients send an id."""
    return isinstance(metadata, Mapping) and not _METADATA_NAMES.isdisjoint(metadata)


def _read_id(names: _IdNames, headers: Mapping[str, str], metadata: Mapping[str, Any]) -> ClientId:
    for name in names.headers:
        if _is_id(headers.get(name)):
            return ClientId(value=headers[name].strip(), name=name)
    for name in names.metadata:
        if _is_id(metadata.get(name)):
            return ClientId(value=str(metadata[name]).strip(), name=f"metadata.{name}")
    return _NO_ID


def _is_id(value: Any) -> bool:
    """Return whether a value names something. Numbers are ids, too."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return False
    text = str(value).strip()
    return text.casefold() not in _NO_IDS and _PLACEHOLDER not in text
