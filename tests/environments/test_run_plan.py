"""What may not change between the begin of a run and its continuation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.environments.commands import _settings_of
from openclaw_rl.environments.registry import SourceRequest
from openclaw_rl.environments.run_plan import RunPlan, record_run
from openclaw_rl.environments.types import EnvironmentTask
from openclaw_rl.errors import ConfigError

PLAN = RunPlan(name="r", tasks=[EnvironmentTask(id="t", digest="0", split="train")], group_size=2)


def record(home: Path, **given: Any) -> bool:
    request = SourceRequest(**({"source": "tools", "search_path": "/usr/bin"} | given))
    return record_run(home, PLAN, _settings_of(request))


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"argument": "a.json"}, {"argument": "b.json"}, r"argument: .*a\.json, now .*b\.json; tools_config"),
        ({"argument": "a.json", "python": "envs/a"}, {"argument": "a.json"}, "python: envs/a, now none"),
        ({"argument": "a.json", "agent": "text"}, {"argument": "a.json"}, "agent: text, now none"),
        ({"tools_config": Path("a.json")}, {"tools_config": Path("b.json")}, r"\(tools_config\)"),
        ({"source": "verifiers", "argument": "sums?n=1"}, {"source": "verifiers", "argument": "sums?n=2"},
         r"argument: sums\?n=1, now sums\?n=2"),
    ],
)  # fmt: skip
def test_a_run_is_not_continued_with_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, now: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(f'{{"characters": {ord(name)}}}')
    assert not record(tmp_path / "home", **before)
    with pytest.raises(ConfigError, match=f"begun with other settings .*{words}"):
        record(tmp_path / "home", **now)
    assert record(tmp_path / "home", **before)


def test_a_path_is_the_same_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sums.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert not record(tmp_path / "home", source="verifiers", argument="sums.py?n=1")
    monkeypatch.chdir("/")
    assert record(tmp_path / "home", source="verifiers", argument=f"{tmp_path}/sums.py?n=1")
