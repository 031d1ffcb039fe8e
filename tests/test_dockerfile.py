"""The Dockerfile and the command that it documents: settings, key, home and files fit together. Nothing is built."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import Config, load_all

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instruction(name: str) -> str:
    (found,) = re.findall(rf"(?m)^{name} (.*)$", DOCKERFILE)
    return str(found)


def documented_options() -> dict[str, str]:
    """The options of the documented `docker run`, which ends with the image's name and no command."""
    (line,) = re.findall(r"(?m)^# Run: docker run (.*)$", DOCKERFILE)
    *words, image = shlex.split(line)
    assert image == "openclaw-rl"
    return dict(zip(words[::2], words[1::2], strict=True))


def started(environ: dict[str, str]) -> Config:
    """The settings with which the container's command starts."""
    command, *flags = [word.strip('"') for word in re.findall(r'"[^"]*"', instruction("CMD"))]
    assert command == "up"
    return load_all(arguments=flags, environ=environ).config


def test_the_documented_command_starts() -> None:
    options = documented_options()
    name, _, key = options["-e"].partition("=")
    config = started({name: key})
    assert config.serve.api_key == key
    assert config.serve.host == "0.0.0.0", (
        "the loopback address of a container is reached by nobody"
    )
    address, outside, inside = options["-p"].split(":")
    assert (address, int(outside), int(inside)) == (
        "127.0.0.1",
        config.serve.port,
        config.serve.port,
    )
    assert instruction("EXPOSE") == str(config.serve.port)


def test_without_the_key_it_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="OPENCLAW_API_KEY"):
        started({})


def test_the_volume_is_the_home_of_the_user_who_runs_it() -> None:
    user = instruction("USER")
    volume, _, folder = documented_options()["-v"].partition(":")
    assert folder == Config().home.replace("~", f"/home/{user}")
    assert "/" not in volume, "a named volume takes the owner of the folder in the image"
    assert f"useradd --create-home {user}" in DOCKERFILE
    assert DOCKERFILE.index(f"USER {user}") < DOCKERFILE.index(f"mkdir -m 700 {folder}"), (
        "its own folder"
    )


def test_the_image_gets_every_file_that_the_build_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    copied = {
        word for line in re.findall(r"(?m)^COPY (.*)$", DOCKERFILE) for word in line.split()[:-1]
    }
    assert copied >= {"pyproject.toml", "src", project["readme"], *project["license-files"]}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{name}" for name in copied} <= set(ignored), "* is ignored"
    (extra,) = re.findall(r'pip install --no-cache-dir "\.\[(\w+)\]"', DOCKERFILE)
    assert extra in project["optional-dependencies"]
    python = re.findall(r"FROM python:(\d+)\.(\d+)", DOCKERFILE)[0]
    needed = re.findall(r"\d+", project["requires-python"])
    assert tuple(map(int, python)) >= tuple(map(int, needed))
