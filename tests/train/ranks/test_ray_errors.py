"""Errors of Ray as one line. The texts are those of Ray 2.60; `make test-ray` has them from Ray itself."""

from __future__ import annotations

import pytest

from openclaw_rl.errors import ConfigError, OpenClawError, RanksGone
from openclaw_rl.train.ranks import ray_errors

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.11.7
This process on Ray Client was started with:
    Ray: 2.40.0
    Python: 3.11.7
"""
TRACEBACK = """The actor died because of an error raised in its creation task, \x1b[36mray::RankActor.__init__()\x1b[39m
  File "/lib/ray/_private/serialization.py", line 1, in load
    from openclaw_rl.train import ranks
ModuleNotFoundError: No module named 'openclaw_rl.train'
"""
TRACEBACK_WITHOUT_FILES = """The actor died because of an error raised in its creation task, ray::RankActor.__init__()
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: The actor with name RankActor failed to import on the worker.

ray::RankActor.__init__() (pid=20187, ip=192.0.2.2)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'openclaw_rl.train'
"""
CONNECT_ERRORS: list[tuple[Exception, str]] = [
    (
        RuntimeError(MISMATCH),
        "Ray: 2.40.0 Python: 3.11.7. Expected the head's versions of Ray and Python",
    ),
    (
        ValueError("Invalid Ray address: 'http://HEAD:8265'."),
        "'http://HEAD:8265'. Expected auto, local, or HOST:PORT",
    ),
    (
        ConnectionError("Failed to connect to Ray cluster at HEAD:6379."),
        "at HEAD:6379. Start a head there",
    ),
    (
        Exception("The current node timed out during startup."),
        "timed out during startup. Start a head there",
    ),
    (RuntimeError(), "train.launch.ray HEAD: RuntimeError. Start a head there"),
]


class TaskError(Exception):
    """An error as Ray wraps it: with the one of the other machine as `cause`."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.cause = cause


@pytest.mark.parametrize(("error", "words"), CONNECT_ERRORS, ids=lambda value: type(value).__name__)
def test_an_unusable_cluster_is_reported_in_one_line(error: Exception, words: str) -> None:
    found = ray_errors.connect_error("HEAD", error)
    assert isinstance(found, ConfigError)
    assert words in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize("text", [TRACEBACK, TRACEBACK_WITHOUT_FILES])
def test_the_last_line_of_a_remote_traceback_is_kept(text: str) -> None:
    line = str(ray_errors.start_error(RuntimeError(text)))
    assert (
        "does not start on its machine: ModuleNotFoundError: No module named 'openclaw_rl.train'. Expected"
        in line
    )
    assert "\n" not in line
    assert "\x1b" not in line


def test_an_error_of_openclaw_keeps_its_message() -> None:
    ours: OpenClawError = ConfigError("home /x: read-only file system. Choose another home")
    assert f"{ours}. Expected" in str(ray_errors.start_error(TaskError(TRACEBACK, ours)))
    assert (
        str(ray_errors.lost_error(TaskError(TRACEBACK, RanksGone("a rank is gone"))))
        == "a rank is gone"
    )
    assert str(ray_errors.lost_error(RuntimeError("a\n\tb"))) == "Ray has lost a rank: a b"


def test_a_long_error_is_cut() -> None:
    assert len(ray_errors.error_line(ValueError("x" * 9999))) < 600


def test_versions_that_differ_are_found_in_the_output_of_another_process() -> None:
    found = ray_errors.find_mismatch(f"Traceback ...\nRuntimeError: {MISMATCH}")
    assert found is not None
    assert found.startswith("Version mismatch: The cluster was started with: Ray: 2.60.0")
    assert ray_errors.find_mismatch("Traceback ...") is None
