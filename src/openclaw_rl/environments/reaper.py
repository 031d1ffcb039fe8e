"""Cleans up after runners that were killed: processes, folders, boxes, leases; their episodes become void.

Each runner starts this module as a process of its own, which waits for the runner's end: `python -m
openclaw_rl.environments.reaper`, with home, run and API key as a JSON line on stdin, which the runner keeps open.
Every `openclaw-rl env run` and `env check` does the same at its start, for the case that both were killed.
"""

from __future__ import annotations

import contextlib
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
from openclaw_rl.environments.leftovers import remove_leftovers
from openclaw_rl.environments.runner_lease import EpisodeLease, LeaseFolder, lease_folder, take_over_leases
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box_lease import sweep_leases

KILLED = "the runner was killed"
_GATEWAY_SECONDS = 60.0  # for a gateway that is restarted meanwhile; after it, the episode expires by itself
_LOCK_SECONDS = 10.0  # a program that is just being started holds the runner's lock until its first instruction
_TIMEOUT = 10.0  # seconds of one request


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


def reap_leases(home: Path, key: str, *, seconds: float = 0.0) -> list[str]:
    """Clean up after every runner that has ended without doing so. Return the ids of its episodes.

    `seconds`: how long a gateway that does not answer is asked again. If it never does, the episodes expire by
    themselves.
    """
    reaped = []
    with take_over_leases(home) as found:
        for leases in found:
            for lease in leases.read_leases():
                if not remove_leftovers(lease.folder):
                    continue  # tried again the next time
                _end_episode(home, key, lease, seconds)
                leases.remove_lease(lease.episode)
                reaped.append(lease.episode)
    return reaped


def _end_episode(home: Path, key: str, lease: EpisodeLease, seconds: float) -> None:
    """Make the episode void, unless it has ended or was never opened."""
    end = time.monotonic() + seconds
    body = json.dumps({"status": "void", "reason": KILLED}).encode()
    while True:
        address = running_address(home)
        if address is not None:
            url = f"{address.url}/v1/episodes/{lease.episode}/outcome"
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            request = urllib.request.Request(url, data=body, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT):
                    return
            except urllib.error.HTTPError as error:
                if error.code < 500:  # 404: never opened; 409: it has an outcome
                    return
            except OSError:
                pass  # it is restarting
        if time.monotonic() >= end:
            return
        time.sleep(0.5)


def main() -> None:
    """Wait until stdin closes, that is, until the runner has ended; then clean up after it and its boxes."""
    given: dict[str, Any] = json.loads(sys.stdin.readline() or "{}")
    if not given:
        return
    while os.read(sys.stdin.fileno(), 1024):
        pass
    home, end = Path(given["home"]), time.monotonic() + _LOCK_SECONDS
    while lease_folder(home, given["run"]).exists() and time.monotonic() < end:
        reap_leases(home, given["key"], seconds=_GATEWAY_SECONDS)
        time.sleep(0.1)
    with contextlib.suppress(SandboxError):  # others can write to the folder of the leases: the next owner says so
        sweep_leases()


if __name__ == "__main__":
    main()
