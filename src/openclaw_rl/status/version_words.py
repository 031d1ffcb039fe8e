"""Words for what became of a version, as the page says them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store.lineage.version_list import ListedVersion
from openclaw_rl.types import Policy, PolicyState


class VersionPlace(StrEnum):
    """State of a version now; the value is a word for people."""

    IN_USE = "in use"
    EARLIER = "earlier"
    ON_TRIAL = "on trial"
    EXAMINED = "being examined"
    REFUSED = "refused"
    ROLLED_BACK = "rolled back"
    LEFT = "not in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLine:
    """The line of descent of a policy: its head, with all ancestors, and the candidate on trial."""

    name: str
    head: int
    lineage: Collection[int]
    canary: int | None = None


def version_place(version: ListedVersion | Policy, line: PolicyLine) -> VersionPlace:
    """Return the current use of a version."""
    if version.version == line.head:
        return VersionPlace.IN_USE
    if version.version in line.lineage:
        return VersionPlace.EARLIER
    if version.version == line.canary:
        return VersionPlace.ON_TRIAL
    places = {
        PolicyState.CANDIDATE: VersionPlace.EXAMINED,
        PolicyState.REJECTED: VersionPlace.REFUSED,
        PolicyState.ROLLED_BACK: VersionPlace.ROLLED_BACK,
        PolicyState.LIVE: VersionPlace.LEFT,
    }
    return places[version.state]


def version_sentence(version: ListedVersion | Policy, line: PolicyLine) -> str:
    """Return whether a version is in use, and if not, why."""
    name = f"Version {version.version}"
    reason = version.reason or "no reason was recorded"
    match version_place(version, line):
        case VersionPlace.IN_USE:
            return f"{name} is in use: it answers new requests."
        case VersionPlace.EARLIER:
            return f"{name} is not in use any more: version {line.head} is, which has learned on from it."
        case VersionPlace.ON_TRIAL:
            return f"{name} is on trial: a share of the conversations gets it, to compare it with version {line.head}."
        case VersionPlace.EXAMINED:
            return f"{name} is not in use yet: the gate is comparing it with version {line.head}."
        case VersionPlace.REFUSED:
            return f"{name} is not in use: {_refusal(version.reason_code)}, because {reason}."
        case VersionPlace.ROLLED_BACK:
            return f"{name} is not in use: {_departure(version.reason_code, reason)}."
        case VersionPlace.LEFT:
            return f"{name} is not in use: the line of descent of version {line.head} does not contain it."


def _refusal(code: ReasonCode | None) -> str:
    """Return who refused a version."""
    if code is ReasonCode.CANNOT_TRAIN:
        return "its training failed"
    if code is ReasonCode.OUTDATED:
        return "it came too late"
    if code is ReasonCode.TAKEN_BACK:
        return "what it learned from was taken back"
    return "the gate refused it"


def _departure(code: ReasonCode | None, reason: str) -> str:
    if code is ReasonCode.TAKEN_BACK:
        return "you took back replies that it, or a version before it, had learned from"
    if code is ReasonCode.PROMOTED:
        return f"another version was promoted in its place ({reason})"
    if code is ReasonCode.SATISFACTION:
        return f"it was rolled back automatically ({reason})"
    return f"it was rolled back ({reason})"
