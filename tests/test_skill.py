"""SKILL.md declares everything that is read, written, run or sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from openclaw_rl.cli.main import cli
from openclaw_rl.settings.aliases import ARGUMENTS, by_form
from openclaw_rl.settings.load import known_keys

ROOT = Path(__file__).parents[1]
PLACES = ("_path", "_dir", ".path", ".resume", ".tokenizer", ".python", "tools_config")


def declared(part: Any) -> set[str]:
    """Every word of a part of the head, keys included."""
    if isinstance(part, dict):
        return set(part) | {word for value in part.values() for word in declared(value)}
    return (
        {word for value in part for word in declared(value)}
        if isinstance(part, list)
        else {str(part)}
    )


def head() -> dict[str, Any]:
    _, text, _ = (ROOT / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    read = yaml.safe_load(text)
    assert isinstance(read, dict)
    return read


def test_the_head_says_what_it_is() -> None:
    assert head()["name"] == "openclaw-rl"
    assert len(head()["triggers"]) >= 3
    assert head()["description"]


def test_every_variable_is_declared_and_none_that_means_nothing() -> None:
    understood = {
        name for name, alias in by_form("environment").items() if not alias.refused
    } | set(ARGUMENTS)
    examples = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "examples").rglob("*.py")
    )
    read = set(re.findall(r"environ\b\W*(?:get\W+)?([A-Z][A-Z_]+)", examples))
    assert "GUI_BROWSER" in read
    scripts = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "recipes").rglob("*.sh"))
    read |= set(re.findall(r"\$\{([A-Z][A-Z_]+):", scripts))
    assert {"TASKS_PATH", "GUI_PYTHON"} <= read
    read |= {name for option in _options(cli) for name in _variables(option)}
    assert "LANGFUSE_SECRET_KEY" in read
    named = {word for word in declared(head()["variables"]) if word.isupper()}
    assert named == understood | read


def _options(command: click.Command) -> Iterator[click.Parameter]:
    yield from command.params
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from _options(part)


def _variables(option: click.Parameter) -> list[str]:
    """The environment variables that an option reads, besides those of the settings."""
    names = option.envvar or ()
    return [names] if isinstance(names, str) else list(names)


def test_every_place_is_declared() -> None:
    places = {key for key in known_keys() if key.endswith(PLACES)}
    assert places | {"home"} == declared(head()["paths"]) & {*known_keys()}


def test_each_setting_that_sends_is_in_the_text() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    sends = {
        key
        for key in known_keys()
        if key.endswith((".base_url", "engine.url", "track.to", "launch.by"))
    }
    assert not [key for key in sends if key not in text]


def test_the_requirements_are_this_package() -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["-e .[local]"]
