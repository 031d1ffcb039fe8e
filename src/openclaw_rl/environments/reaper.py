"""Cleans up after runners that were killed: processes, folders, boxes, leases; their episodes become void.

Each runner starts this module as a process of its own, which waits for the runner's end: `python -m
openclaw_rl.environments.reaper`, with home, run and API key as a JSON line on stdin, which the runner keeps open.
Every `openclaw-rl env run` and `env check` does the same at its start, for the case that both were killed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.common.printable import echo_error
from openclaw_rl.environments.leftovers import remove_leftovers
from openclaw_rl.environments.runner_lease import (
    EpisodeLease,
    LeaseFolder,
    lease_folder,
    take_over_leases,
)
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box_lease import sweep_leases

KILLED = "the runner was killed"
# For a gateway that is restarted meanwhile; after it, the next run tries again.
_GATEWAY_SECONDS = 60.0
# A program that is just being started holds the runner's lock until its first instruction.
_LOCK_SECONDS = 10.0
# Seconds of one request.
_TIMEOUT = 10.0


@contextlib.contextmanager
def start_reaper(home: Path, run: str, key: str) -> Iterator[None]:
    """Keep a process that cleans up if this one is killed within the block, or leaves leases at its end.

    It leaves the lease of an episode whose outcome the gateway did not take.
    """
    command = [sys.executable, "-m", "openclaw_rl.environments.reaper"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps({"home": str(home), "run": run, "key": key}) + "\n")
        process.stdin.flush()
        yield
    finally:
        if not LeaseFolder(lease_folder(home, run)).read_leases():
            process.kill()
            process.wait()
        process.stdin.close()


def reap_leases(home: Path, key: str, *, seconds: float = 0.0) -> str:
    """Clean up after every runner that has ended without doing so. Return what could not be done, or an empty text.

    `seconds`: how long a gateway that does not answer is asked again, for all episodes together. What could not be done
    keeps its lease, so that the next call tries again, until the episode has expired.
    """
    end = time.monotonic() + seconds
    left = list[EpisodeLease]()
    busy = list[str]()
    problem = ""
    with take_over_leases(home) as folders:
        for leases in folders:
            for lease in leases.read_leases():
                if not remove_leftovers(lease.folder):
                    busy.append(lease.folder)
                    continue
                refusal = _end_episode(home, key, lease, end)
                if refusal:
                    left.append(lease)
                    problem = refusal
                else:
                    leases.remove_lease(lease.episode)
    notes = []
    if busy:
        notes.append(f"processes or files of killed runners cannot be removed: {', '.join(busy)}")
    if left:
        last_expiry = max(lease.expires_at for lease in left)
        last = time.strftime("%Y-%m-%d %H:%M", time.localtime(last_expiry))
        notes.append(
            f"{len(left)} episodes of killed runners are still open, because {problem}. The next `openclaw-rl env run` "
            f"or `env check` ends them; without it they expire by {last}"
        )
    return "; ".join(notes)


def _end_episode(home: Path, key: str, lease: EpisodeLease, end: float) -> str:
    """Make the episode void, unless it has ended or was never opened. Return why that is not possible, or nothing.

    `end`: monotonic time of the last attempt.
    """
    while time.time() < lease.expires_at:
        problem = _post_void(home, key, lease.episode)
        if not problem or time.monotonic() >= end:
            return problem
        time.sleep(0.5)
    return ""


def _post_void(home: Path, key: str, episode: str) -> str:
    """Post that the episode is void. Return why the gateway did not take it, or an empty text."""
    address = running_address(home)
    if address is None:
        return f"no gateway runs on {home}"
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = json.dumps({"status": "void", "reason": KILLED}).encode()
    request = urllib.request.Request(
        f"{address.url}/v1/episodes/{episode}/outcome", data=body, headers=headers
    )
    try:
        with open_url(request, timeout=_TIMEOUT):
            return ""
    except urllib.error.HTTPError as error:
        # 404: never opened; 409: it has an outcome.
        return "" if error.code in (404, 409) else f"the gateway at {address.url} refused: {error}"
    except (OSError, http.client.HTTPException) as error:
        return f"the gateway at {address.url} does not answer: {error}"


def main() -> None:
    """Wait until stdin closes, that is, until the runner has ended; then clean up after it and its boxes."""
    request: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if not request:
        return
    while os.read(sys.stdin.fileno(), 1024):
        pass
    home = Path(request["home"])
    end = time.monotonic() + _LOCK_SECONDS
    while lease_folder(home, request["run"]).exists() and time.monotonic() < end:
        note = reap_leases(home, request["key"], seconds=_GATEWAY_SECONDS)
        if note:
            # The terminal of the runner may be closed.
            with contextlib.suppress(OSError):
                echo_error(f"openclaw-rl: {note}")
        time.sleep(0.1)
    # Others can write to the folder of the leases: the next owner says so.
    with contextlib.suppress(SandboxError):
        sweep_leases()


if __name__ == "__main__":
    main()
