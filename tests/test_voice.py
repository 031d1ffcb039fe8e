"""Markers of the private vocabulary of version 0.1, counted by folder: the counts may only fall."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "openclaw_rl"
MARKER = re.compile(
    r"\b([Tt]ells?|[Tt]old|[Ss]tands? on|is none|are none|goes on|go on|anew|to be had|lets? go|[Ll]ack(s|ing)?"
    r"|[Hh]opeless|[Pp]atience|whose sake|comes of|came of|[Ss]pellings?|[Rr]ooms?)\b"
)
FRAGMENT = re.compile(r"(Of|What|Whose|That|Which)\b")
NAME = re.compile(
    r"(^|_)(told|tells?|stands|lack|hopeless|patience|anew)(_|$)|(^|_)rooms?(_|$)", re.IGNORECASE
)
AT_MOST = {"status": 1, "trajectories": 1}
"""Folder -> markers that are left. Lower a number when it falls; a new folder starts at 0."""


def markers_in(path: Path) -> list[str]:
    """Return the markers in comments, string literals and names, and docstrings that begin as a fragment."""
    source = path.read_text(encoding="utf-8")
    docstrings = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            found += [match.group(0) for match in MARKER.finditer(token.string)]
            if token.start[0] in docstrings and FRAGMENT.match(token.string.strip('"')):
                found.append(token.string[:30])
        elif token.type == tokenize.NAME and NAME.search(token.string):
            found.append(token.string)
    return found


def folder_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "."


def test_the_old_vocabulary_does_not_grow() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        found.setdefault(folder_of(path), []).extend(markers_in(path))
    too_many = {f: Counter(m) for f, m in found.items() if len(m) > AT_MOST.get(f, 0)}
    assert too_many == {}


def test_a_marker_is_found(tmp_path: Path) -> None:
    file = tmp_path / "old.py"
    file.write_text(
        '"""What is told anew."""\n\n\ndef let_go(room: int) -> None:\n    """Return."""\n'
    )
    assert markers_in(file) == ["told", "anew", '"""What is told anew."""'[:30], "room"]
