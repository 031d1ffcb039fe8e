"""Which box the settings give, and what the doctor says about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import SandboxError
from openclaw_rl.sandbox.box import BoxRoot
from openclaw_rl.sandbox.box_kinds import make_box
from openclaw_rl.sandbox.bubblewrap import BubblewrapBox
from openclaw_rl.sandbox.container import ContainerBox
from openclaw_rl.settings.load import from_flat

CHANGES: dict[str, tuple[dict[str, Any], str, object]] = {
    "sandbox.memory": (
        {"sandbox.memory": 64},
        "head -c 200M /dev/zero | tail -c 150M | wc -c",
        b"0\n",
    ),
    "sandbox.processes": (
        {"sandbox.processes": 10},
        "sh -c 'for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; echo all' 2>/dev/null",
        b"",
    ),
    "sandbox.disk": (
        {"sandbox.disk": 8},
        "head -c 20M /dev/zero 2>/dev/null >a; wc -c <a",
        b"8388608\n",
    ),
    "sandbox.lifetime": ({"sandbox.lifetime": 0.3}, "sleep 1", SandboxError),
    "sandbox.kind": ({"sandbox.kind": "podman", "sandbox.image": "tools"}, "", "podman"),
    "sandbox.image": ({"sandbox.kind": "docker", "sandbox.image": "tools"}, "", "tools"),
}


def outcome_of(flat: dict[str, Any], command: str) -> object:
    """Return the output of a command in a box with these settings, the error, or the arguments of a container."""
    box = make_box(from_flat(flat).sandbox, BoxRoot())
    if isinstance(box, ContainerBox):
        return [*box._program, *box._run_args(None)]

    async def use_box() -> object:
        try:
            await box.open()
            return (await box.run(command)).stdout
        except SandboxError as error:
            return type(error)
        finally:
            await box.close()

    return asyncio.run(use_box())


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_changes_the_box(key: str) -> None:
    flat, command, expected = CHANGES[key]
    before, after = outcome_of({}, command), outcome_of(flat, command)
    if isinstance(expected, str):
        assert isinstance(after, list)
        assert expected in after
    elif isinstance(expected, type):
        assert isinstance(after, type)
        assert issubclass(after, expected)
    else:
        assert after == expected
    assert before != after


def test_an_unavailable_kind_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(SandboxError, match="needs Docker or Podman: neither is on PATH"):
        make_box(from_flat({}).sandbox, BoxRoot(image="debian:12"))
    with pytest.raises(SandboxError, match="needs the name of an image, got None"):
        make_box(from_flat({"sandbox.kind": "docker"}).sandbox, BoxRoot())
    with pytest.raises(SandboxError, match="bubblewrap cannot start the image"):
        make_box(from_flat({"sandbox.kind": "bubblewrap"}).sandbox, BoxRoot(image="debian:12"))


def test_systems_other_than_linux_are_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(
        SandboxError, match=r"bubblewrap needs Linux\. On this system, boxes need Docker or Podman"
    ):
        make_box(from_flat({}).sandbox, BoxRoot())


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "a b", ""])
def test_an_image_that_reads_as_an_option_is_refused(image: str) -> None:
    with pytest.raises(SandboxError, match="needs the name of an image"):
        make_box(from_flat({"sandbox.kind": "docker"}).sandbox, BoxRoot(image=image))


def test_a_default_box_is_bubblewrap() -> None:
    assert isinstance(make_box(from_flat({}).sandbox, BoxRoot()), BubblewrapBox)


def test_the_doctor_tries_each_limit() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["doctor", "--sandbox"])
    assert result.exit_code == 0, result.output
    assert result.output.count("passed") == 7
    assert "bubblewrap works; " in result.output


def test_the_doctor_names_missing_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = CliRunner().invoke(cli, ["doctor", "--sandbox"])
    assert result.exit_code == 1
    assert "bubblewrap is not installed" in result.output
