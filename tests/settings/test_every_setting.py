"""Every setting of the schema has a test of its effect, or a notice that it has none: `effects.yaml` lists them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_rl.errors import ConfigError
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.aliases import alias_table, all_aliases
from openclaw_rl.settings.unused import unused_by_command

TESTS = Path(__file__).parents[1]
WITHOUT = "without effect"
GROUPS: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parent / "effects.yaml").read_text(encoding="utf-8")
)
ROWS = {key: row for rows in GROUPS.values() for key, row in rows.items()}
TEST_OF = {key: test for test, rows in GROUPS.items() for key in rows if test != WITHOUT}


def value_of(config: settings.Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def no_effect_notices(given: dict[str, Any], key: str) -> list[str]:
    """Load the settings and return the notices that `key` has no effect, or the error that names it."""
    try:
        notices = settings.load_all(flags=given, environ={}).notices
    except ConfigError as error:
        return [str(error)] if key in str(error) else []
    return [words for words in notices if key in words.partition(" ha")[0].split(", ")]


def test_every_setting_of_the_schema_is_listed_once() -> None:
    assert sorted(key for rows in GROUPS.values() for key in rows) == sorted(settings.known_keys())


@pytest.mark.parametrize("key", ROWS)
def test_a_setting_has_an_effect_or_a_notice(key: str) -> None:
    row = ROWS[key]
    beside = row.get("with", {}) | row.get("beside", {})
    config = settings.load_all(flags=beside | {key: row["value"]}, environ={}).config
    assert value_of(config, key) != value_of(settings.load(flags=beside, environ={}), key)
    found = no_effect_notices(beside | {key: row["value"]}, key)
    if "note" in row:
        assert [row["note"] in words for words in found] == [True]
    else:
        assert found == []


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if "with" in row])
def test_a_setting_without_what_it_needs_gets_a_notice_or_an_error(key: str) -> None:
    assert len(no_effect_notices({key: ROWS[key]["value"]}, key)) == 1


@cache
def parse(file: Path) -> tuple[str, ast.Module]:
    text = file.read_text(encoding="utf-8")
    return text, ast.parse(text)


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the functions and constants of a module by name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        for target in [*getattr(node, "targets", ()), getattr(node, "target", None)]:
            if isinstance(target, ast.Name):
                yield target.id, node


def source_of_test(test: str) -> str:
    """Return the source of a test, with its decorators and the helpers and tables of its module that it uses."""
    path, _, name = test.partition("::")
    text, tree = parse(TESTS / path)
    found = dict(definitions(tree))
    assert name.startswith("test_")
    names, parts = [name], []
    for one in names:
        node = found.pop(one, None)
        if node is None:
            continue
        lines = text.splitlines()
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        parts.append("\n".join(lines[first - 1 : node.end_lineno]))
        names += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        names += [a.arg for a in ast.walk(node) if isinstance(a, ast.arg)]  # fixtures
    assert parts, f"{path} has no test {name}"
    return "\n".join(parts)


def spellings(key: str) -> set[str]:
    """Return the names that mean a setting, and its last part if no other setting ends like it."""
    earlier = alias_table("earlier_keys")
    names = {
        key,
        key.removeprefix("train."),
        *(old.removeprefix("train.") for old in earlier if earlier[old] == key),
    }
    names |= {alias.name for alias in all_aliases().values() if key in alias.sets}
    leaf = key.rpartition(".")[2]
    return names | (
        {leaf} if sum(k.endswith(f".{leaf}") for k in settings.known_keys()) == 1 else set()
    )


@pytest.mark.parametrize("key", TEST_OF)
def test_the_named_test_is_there_and_sets_it(key: str) -> None:
    source = source_of_test(TEST_OF[key])
    assert any(
        re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", source) for name in spellings(key)
    )


def test_a_command_without_the_worker_that_reads_a_setting_says_so() -> None:
    """Of variables and files, which several commands share, only files of trajectories and rollouts are named."""

    def notices(command: str, workers: tuple[str, ...], key: str, source: str) -> list[str]:
        return unused_by_command({key: f"{source}: NAME"}, command, workers)

    serve, train = ("engine", "gateway"), ("train",)
    for source in ("environment", "flags", "settings.yaml"):
        for key in ("data.path", "data.watch_dir"):
            (words,) = notices("serve", serve, key, source)
            assert words.startswith(
                "NAME has no effect on `openclaw-rl serve`: only on `openclaw-rl up` and "
            )
            assert notices("train", train, key, source) == []
        (words,) = notices("train", train, "data.export_dir", source)
        assert words.endswith(
            "only on `openclaw-rl up`, `openclaw-rl serve` and `openclaw-rl collect`"
        )
        (words,) = notices("up", (*serve, *train), "rollout.per_prompt", source)
        assert words.endswith("only on `openclaw-rl rollout`")
    assert notices("serve", serve, "train.seed", "flags") != []
    assert notices("serve", serve, "train.seed", "environment") == []
    assert notices("serve", serve, "train.lora.rank", "flags") == []
    assert notices("up", serve, "train.exit_when_done", "flags") != []
    assert notices("train", (*train, "judge"), "judge.workers", "flags") == []
    assert notices("serve", serve, "serve.port", "flags") == []
