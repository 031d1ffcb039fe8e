"""Errors of Ray, each as one line that says what happened, what was expected and what to do."""

from __future__ import annotations

import re

from openclaw_rl.errors import OpenClawError, RanksGone, RayUnusable

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Ray leaves out its own files, but not the marks below their lines.
_TRACEBACK_LINE = re.compile(r'File "|[~^]+$')
_MAX_CHARS = 500
_MISMATCH = "Version mismatch"
_START_HEAD = (
    "Start a head there (`ray start --head --port=PORT`); where it requires a token, as newer versions do, set "
    "RAY_AUTH_MODE=token here too"
)


def connect_error(address: str, error: Exception) -> RayUnusable:
    """Return the error for a cluster that cannot be used. `address`: `train.launch.ray`."""
    return RayUnusable(f"train.launch.ray {address}: {error_line(error)}. {_connect_advice(error)}")


def silence_error(address: str, seconds: float) -> RayUnusable:
    """Return the error for a cluster that gives no answer, such as one whose head has ended. `address`: see Ray."""
    return RayUnusable(
        f"train.launch.ray {address}: no head answers within {seconds:g} s. {_START_HEAD}, or give another address. "
        "auto takes RAY_ADDRESS, else the head that was started last on this machine"
    )


def _connect_advice(error: Exception) -> str:
    if _MISMATCH in str(error):
        return "Expected the head's versions of Ray and Python: install them here"
    if isinstance(error, ValueError):
        return "Expected auto, local, or HOST:PORT of the head, as `ray start --head` prints it (not its dashboard)"
    return _START_HEAD


def start_error(error: Exception) -> RayUnusable:
    """Return the error for ranks that have a place in the cluster and do not start there."""
    return RayUnusable(
        f"train.launch.by is ray, and a rank does not start on its machine: {error_line(error)}. Expected this version "
        "of openclaw-rl, and a home that can be written, on every machine of the cluster"
    )


def lost_error(error: Exception) -> RanksGone:
    """Return the error for a rank, or its machine, that Ray lost during a command."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, RanksGone):
        return RanksGone(str(cause))
    return RanksGone(f"Ray has lost a rank: {error_line(error)}")


def find_mismatch(text: str) -> str | None:
    """Return what Ray says of versions that differ, as one line; None if it says nothing of them."""
    _, marker, rest = text.partition(_MISMATCH)
    return _cut_line(marker + rest) if marker else None


def error_line(error: Exception) -> str:
    """Return the error as one line. Of a traceback from another machine, its last line: the error there."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, OpenClawError):
        return str(cause)
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if any(_TRACEBACK_LINE.match(line) for line in lines):
        lines = lines[-1:]
    return _cut_line(" ".join(lines) or type(error).__name__)


def _cut_line(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]} ..."
