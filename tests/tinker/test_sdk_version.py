"""The range of SDK versions, as it is checked and as it is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from openclaw_rl.errors import ConfigError, EngineError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.tinker import sdk_version
from openclaw_rl.tinker.sdk_version import REQUIREMENT, version_problem
from openclaw_rl.tinker.start_check import check_tinker

SETTINGS = {"engine.backend": "tinker", "home": "/tmp/h"}


@pytest.mark.parametrize("version", ["0.24.1", "0.24.2", "0.25.0", "0.25.9.post1"])
def test_supported_sdk_versions_are_accepted(version: str) -> None:
    assert version_problem(version) is None


@pytest.mark.parametrize("version", ["0.24.0", "0.18.2", "0.26.0", "0.38.0", "1.0"])
def test_another_sdk_version_is_reported_in_one_line(version: str) -> None:
    assert (
        version_problem(version)
        == f"the Tinker SDK installed here is {version}; expected {REQUIREMENT}"
    )


def test_the_extra_installs_the_checked_version() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["tinker"] == [REQUIREMENT]


def test_sdk_and_key_are_checked_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk_version.metadata, "version", lambda name: "0.38.0")
    with pytest.raises(
        ConfigError, match=re.escape(f"is 0.38.0; expected {REQUIREMENT}. Install it with")
    ):
        check_tinker(from_flat(SETTINGS))
    monkeypatch.setattr(sdk_version.metadata, "version", lambda name: "0.24.1")
    with pytest.raises(EngineError, match="Set TINKER_API_KEY"):
        check_tinker(from_flat(SETTINGS))
    check_tinker(from_flat(SETTINGS | {"tinker.api_key": "tml-x"}))
