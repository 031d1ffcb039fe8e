"""A judge and a source of tasks of an installed package are found by their entry points."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.echo_package import run_python

MODULE = """
from openclaw_rl.settings.specs import JudgeSpec, ServiceConsent
from openclaw_rl.testing import ScriptedJudge

JUDGE = JudgeSpec(
    name="coin",
    summary="always satisfied",
    create=lambda config: ScriptedJudge(1),
    consent=ServiceConsent(
        service="Coin",
        event="consent.coin",
        purpose="judge",
        address=lambda config: "http://coin:1",
        describe=lambda config, purposes: "The Coin service gets all turns.",
    ),
)

def __getattr__(name):
    if name != "SOURCE":
        raise AttributeError(name)
    from openclaw_rl.environments.registry import SOURCES, SourceKind
    command = SOURCES["command"]
    return SourceKind(
        summary="tasks of mine",
        takes=command.takes,
        make_source=command.make_source,
        make_runner=command.make_runner,
    )
"""
ENTRY_POINTS = """
[openclaw_rl.judges]
coin = coin_package:JUDGE
[openclaw_rl.sources]
mine = coin_package:SOURCE
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "coin_package.py").write_text(MODULE)
    metadata = tmp_path / "coin_package-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: coin-package\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def test_the_judge_is_a_choice_and_is_created(site: Path) -> None:
    script = (
        "from openclaw_rl.judge.worker import make_judge\n"
        "from openclaw_rl.settings.load import from_flat\n"
        "from openclaw_rl.settings.registry import describe_choices\n"
        "print(describe_choices('judge.kind'))\n"
        "print(type(make_judge(from_flat({'judge.kind': 'coin'}))).__name__)"
    )
    done = run_python(site, "-c", script)
    assert done.returncode == 0, done.stderr
    choices, kind = done.stdout.splitlines()
    assert "coin (of the package coin-package): always satisfied" in choices
    assert kind == "ScriptedJudge"


def test_the_source_is_listed_and_known(site: Path) -> None:
    done = run_python(site, "-m", "openclaw_rl", "env", "list")
    assert "mine: tasks of mine" in done.stdout.splitlines()
    done = run_python(
        site, "-m", "openclaw_rl", "env", "check", "mine", "--home", str(site / "home")
    )
    assert "no tasks: set --tasks FILE" in done.stderr
    done = run_python(
        site, "-m", "openclaw_rl", "env", "check", "yours", "--home", str(site / "home")
    )
    assert "unknown source 'yours'" in done.stderr
    assert "openenv, mine (`openclaw-rl env list`)" in done.stderr


def test_its_consent_is_asked_before_its_worker_starts(site: Path) -> None:
    words = ("judge", "--home", str(site / "home"), "--set", "judge.kind=coin")
    done = run_python(site, "-m", "openclaw_rl", *words)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "The Coin service gets all turns.",
        "openclaw-rl: nothing is sent to Coin before you agree. Say --yes, or start it in a terminal",
    ]
