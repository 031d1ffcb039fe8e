"""No code decides by reading a sentence: reasons and notes have codes (`types.ReasonCode`, `progress.Wait`)."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "openclaw_rl"
SENTENCES = frozenset(
    {"reason", "note", "detail", "details", "why", "unlinked", "unlinked_reason", "untrainable"}
)
"""Names of texts for people. A message of a log or of an error counts, too: see `is_sentence`."""
STRING_TESTS = frozenset(
    {"startswith", "endswith", "find", "index", "count", "contains", "like", "ilike"}
)
PATTERN_TESTS = frozenset({"match", "search", "fullmatch", "findall", "split"})
MIGRATION = "store/migrated_reasons.py"
"""It reads the words of earlier versions once."""
OTHER_PROGRAMS = {
    "common/disk_space.py": 1,
    "doctor/engine.py": 1,
    "engines/remote/engine.py": 6,
    "engines/remote/vllm.py": 1,
    "environments/foreign/openenv_worker.py": 1,
    "environments/sources/tools/mcp_bridge.py": 1,
    "fireworks/service.py": 1,
    "render/model_check.py": 1,
    "serve/dialects/validation.py": 1,
    "store/bootstrap.py": 1,
    "tinker/service_errors.py": 3,
    "train/ranks/ray_errors.py": 1,
    "trajectories/parser.py": 1,
}
"""Tests of the errors of libraries and servers, which have no codes."""


def is_sentence(node: ast.AST) -> bool:
    """Return whether an expression is a reason or a note, the text of an error, or the message of a log line."""
    if isinstance(node, ast.BoolOp):
        return any(map(is_sentence, node.values))
    if isinstance(node, ast.Name):
        return node.id in SENTENCES
    if isinstance(node, ast.Attribute):
        is_log_line = node.attr == "message" and isinstance(node.value, ast.Name | ast.Subscript)
        return node.attr in SENTENCES or is_log_line
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(
            is_sentence(a) or (isinstance(a, ast.Name) and "error" in a.id) for a in node.args
        )
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("lower", "casefold", "strip")
        and is_sentence(node.func.value)
    )


def prose_tests(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that test what a sentence says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for operator, right in zip(node.ops, node.comparators, strict=True):
                is_in = isinstance(operator, ast.In | ast.NotIn) and is_sentence(right)
                is_text = (
                    isinstance(right, ast.Constant)
                    and isinstance(right.value, str)
                    and right.value != ""
                )
                is_equal = (
                    isinstance(operator, ast.Eq | ast.NotEq) and is_text and is_sentence(node.left)
                )
                if is_in or is_equal:
                    yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on_sentence = node.func.attr in STRING_TESTS and is_sentence(node.func.value)
            by_pattern = node.func.attr in PATTERN_TESTS and any(map(is_sentence, node.args))
            if on_sentence or by_pattern:
                yield node


@pytest.mark.parametrize(
    "line",
    [
        'beat.note.startswith("waiting for turns: ")',
        '(policy.reason or "").startswith(PREFIX)',
        '"a tie" in verdict.reason',
        'why.startswith("too stale")',
        'any(words in note for words in ("train.max_steps", "frozen"))',
        "_ENGINE_ENDED.match(line.message)",
        't.policies.c.reason.contains("x")',
        '"404" in str(error)',
        'turn.untrainable == "not scored"',
    ],
)
def test_a_decision_on_prose_is_found(line: str) -> None:
    assert len(list(prose_tests(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line", ["reason.code is ReasonCode.TIE", "turn.untrainable is None", '"tool_calls" in message']
)
def test_a_decision_on_a_code_is_none_on_prose(line: str) -> None:
    assert list(prose_tests(ast.parse(line))) == []


def test_no_code_decides_by_reading_a_sentence() -> None:
    found = Counter[str]()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        count = len(list(prose_tests(ast.parse(path.read_text(encoding="utf-8")))))
        if count and name != MIGRATION:
            found[name] = count
    assert dict(found) == OTHER_PROGRAMS
