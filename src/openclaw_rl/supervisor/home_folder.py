"""The home folder: private to its owner, and locked by the system that runs on it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

from openclaw_rl.common.atomic_files import ensure_folder
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config

LOCK_FILE = "up.lock"


def prepare_home(config: Config) -> None:
    """Create the home folder, private to this user. Raises `OpenClawError` if that fails."""
    for folder in (config.home_dir, config.policies_dir, config.logs_dir):
        ensure_folder("home", folder)
    try:
        # It may exist already, with access for others.
        config.home_dir.chmod(0o700)
    except OSError as error:
        reason = (
            f"cannot be made private ({error.strerror}). Choose a folder that you own with --home."
        )
        raise OpenClawError(f"home {config.home_dir}: {reason}") from error


@contextlib.contextmanager
def lock_home(config: Config) -> Iterator[None]:
    """Hold the home folder's lock, since two systems on one home would conflict over the socket and the lease."""
    path = config.home_dir / LOCK_FILE
    try:
        file = path.open("a")
    except OSError as error:
        reason = error.strerror or error
        raise OpenClawError(
            f"{path}: expected a file that this user may write ({reason}). Remove what is there: it holds nothing."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OpenClawError(
                f"{config.home_dir}: another openclaw-rl is running on this home. Stop it, or use another --home."
            ) from None
        yield


def is_home_locked(config: Config) -> bool:
    """Return whether a system with a gateway runs on the home, or starts there."""
    try:
        with lock_home(config):
            return False
    except OpenClawError:
        return True
