"""The lock of a home."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.supervisor.home_folder import lock_home


def test_a_folder_in_the_place_of_the_lock_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "up.lock").mkdir()
    with (
        pytest.raises(OpenClawError, match=r"up\.lock: expected a file .*Is a directory"),
        lock_home(from_flat({"home": str(tmp_path)})),
    ):
        raise AssertionError("it has no lock")
