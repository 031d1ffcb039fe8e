"""Count how dense the code is, and how much of the private dialect is left in its locals and parameters.

    python benchmarks/code_counts.py [PATH ...] [--per-folder]

PATH is a file or a folder; default: the package. `--per-folder` prints one row for each folder, of its own files.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "openclaw_rl"
MIN_FUNCTION_LINES = 10
"""Decisions are counted in functions of so many lines or more."""
MAX_FIELDS = 19
"""Attributes that a class may set in `__init__`."""
DIALECT = frozenset(
    {"found", "ask", "words", "why", "said", "given", "own", "made", "held", "kept", "gone"}
)
OTHER_SENSES = {"line": {"str", "bytes"}, "signal": {"int"}, "memory": {"int", "float", "bool"}}
"""Words that are dialect in one sense only (a lineage, a method, the state of one). A parameter with one of these types
has another sense. Locals count only where they are assigned from a call that names a lineage."""
DIRECTIVE = re.compile(r"#\s*(noqa|type:|pragma|ruff:|mypy:|fmt:)")
"""A comment for a tool, which has to trail. It is not counted."""
NOT_TOKENS = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
DECISIONS = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
    ast.Assert,
)


@dataclass(slots=True, kw_only=True)
class CodeCounts:
    """Sums over files. Lines are all lines of a file, blank ones included, unless a field says otherwise."""

    lines: int = 0
    tokens: int = 0
    function_lines: int = 0
    """Lines of all functions, of which nested ones are a part."""
    long_function_code: int = 0
    """Lines with code in functions of `MIN_FUNCTION_LINES` or more."""
    decisions: int = 0
    """Branches, loops, handlers, boolean operators, and clauses of comprehensions, in those functions."""
    packed: int = 0
    packed_attributes: int = 0
    walruses: int = 0
    walruses_elsewhere: int = 0
    """Walruses outside of the condition of an `if` or `while` statement."""
    nested_conditionals: int = 0
    comments: int = 0
    trailing_comments: int = 0
    dialect: int = 0
    wide_classes: list[str] = field(default_factory=list)

    def add(self, other: CodeCounts) -> None:
        """Add the counts of other files."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


def count_code(source: str) -> CodeCounts:
    """Return the counts of the text of one module. Raises `SyntaxError` if it is not Python."""
    tree = ast.parse(source)
    counts = CodeCounts(lines=len(source.splitlines()))
    code_lines = _count_tokens(source, counts)
    for function in _outer_functions(tree):
        _count_function(function, code_lines, counts)
    _count_expressions(tree, counts)
    counts.wide_classes = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _field_count(node) > MAX_FIELDS
    ]
    return counts


def count_files(paths: Sequence[Path]) -> CodeCounts:
    """Return the sums over these files."""
    total = CodeCounts()
    for path in paths:
        total.add(count_code(path.read_text(encoding="utf-8")))
    return total


def _count_tokens(source: str, counts: CodeCounts) -> set[int]:
    """Count tokens and comments. Returns the numbers of the lines that have a token."""
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            counts.comments += 1
            counts.trailing_comments += bool(token.line[: token.start[1]].strip())
        if token.type not in NOT_TOKENS:
            counts.tokens += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
    return code_lines


def _outer_functions(tree: ast.AST) -> Iterator[Function]:
    """Yield the functions and methods that are in no other function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node
        else:
            yield from _outer_functions(node)


def _count_function(function: Function, code_lines: set[int], counts: CodeCounts) -> None:
    """Count the lines, the decisions and the dialect words of a function with all that is in it."""
    places = _line_numbers(function)
    counts.function_lines += len(places)
    counts.dialect += sum(_dialect_words(node) for node in ast.walk(function))
    if len(places) < MIN_FUNCTION_LINES:
        return
    docstrings = {number for node in ast.walk(function) for number in _docstring_lines(node)}
    counts.long_function_code += len(code_lines & set(places) - docstrings)
    counts.decisions += sum(_decisions(node) for node in ast.walk(function))


def _line_numbers(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _docstring_lines(node: ast.AST) -> range:
    """Return the line numbers of the docstring of a function or class; none for another node."""
    if (
        isinstance(node, Function | ast.ClassDef)
        and ast.get_docstring(node, clean=False) is not None
    ):
        return _line_numbers(node.body[0])
    return range(0)


def _decisions(node: ast.AST) -> int:
    if isinstance(node, DECISIONS):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return 0


def _dialect_words(node: ast.AST) -> int:
    """Return how many parameters or locals a node binds to a word of the dialect."""
    if isinstance(node, ast.arg):
        return node.arg in DIALECT or _is_dialect_parameter(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id in DIALECT
    if isinstance(node, ast.Assign) and "lineage" in ast.unparse(node.value):
        names = {
            name.id
            for target in node.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        return "line" in names
    return 0


def _is_dialect_parameter(parameter: ast.arg) -> bool:
    if parameter.arg not in OTHER_SENSES or parameter.annotation is None:
        return False
    names = re.findall(r"\w+", ast.unparse(parameter.annotation))
    # A line of numbers is a lineage.
    is_collection = any(name in ("Sequence", "Collection", "Mapping") for name in names)
    return is_collection or not OTHER_SENSES[parameter.arg] & set(names)


def _count_expressions(tree: ast.AST, counts: CodeCounts) -> None:
    in_conditions = {
        id(node)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.If | ast.While)
        for node in ast.walk(statement.test)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
            elements = [element for target in targets for element in target.elts]
            counts.packed += bool(targets)
            counts.packed_attributes += any(
                isinstance(element, ast.Attribute) for element in elements
            )
        elif isinstance(node, ast.NamedExpr):
            counts.walruses += 1
            counts.walruses_elsewhere += id(node) not in in_conditions
        elif isinstance(node, ast.IfExp):
            inner = [
                child
                for child in ast.walk(node)
                if isinstance(child, ast.IfExp) and child is not node
            ]
            counts.nested_conditionals += bool(inner)


def _field_count(class_: ast.ClassDef) -> int:
    """Return how many attributes a class sets in `__init__`, which a record of data does not have."""
    constructors = [
        statement
        for statement in class_.body
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__"
    ]
    names = {
        node.attr
        for constructor in constructors
        for node in ast.walk(constructor)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return len(names)


def table_rows(counts: CodeCounts) -> dict[str, str]:
    """Return the counts in relation to each other, by what is counted."""
    per_line = counts.lines or 1
    return {
        "lines": str(counts.lines),
        "tokens": str(counts.tokens),
        f"decisions a line, functions of {MIN_FUNCTION_LINES} lines or more": (
            f"{counts.decisions / (counts.long_function_code or 1):.3f}"
        ),
        "tokens a line": f"{counts.tokens / per_line:.2f}",
        "packed assignments per 1,000 lines": f"{1000 * counts.packed / per_line:.1f}",
        "packed assignments to attributes": str(counts.packed_attributes),
        "walruses per 1,000 lines": f"{1000 * counts.walruses / per_line:.1f}",
        "walruses outside of conditions": str(counts.walruses_elsewhere),
        "nested conditional expressions": str(counts.nested_conditionals),
        "comments that trail": f"{100 * counts.trailing_comments / (counts.comments or 1):.0f}%",
        "dialect words per 1,000 lines of functions": f"{1000 * counts.dialect / (counts.function_lines or 1):.1f}",
        f"classes with {MAX_FIELDS + 1} fields or more": str(len(counts.wide_classes)),
    }


def source_files(paths: Sequence[Path]) -> list[Path]:
    """Return the Python files at these paths and below them."""
    listed = [sorted(path.rglob("*.py")) if path.is_dir() else [path] for path in paths]
    return [file for files in listed for file in files]


def _print_table(counts: CodeCounts) -> None:
    print("| count | here |\n|---|---|")
    for name, value in table_rows(counts).items():
        print(f"| {name} | {value} |")
    if counts.wide_classes:
        print(
            f"\nClasses with {MAX_FIELDS + 1} fields or more: {', '.join(sorted(counts.wide_classes))}"
        )


def _print_folders(files: Sequence[Path]) -> None:
    folders: dict[Path, list[Path]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(file)
    columns = list(table_rows(CodeCounts()))
    print(f"| folder | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for folder, members in sorted(folders.items()):
        name = folder.relative_to(PACKAGE) if folder.is_relative_to(PACKAGE) else folder
        print(f"| {name} | {' | '.join(table_rows(count_files(members)).values())} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Count how dense the code is.")
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[PACKAGE], help="files and folders [the package]"
    )
    parser.add_argument("--per-folder", action="store_true", help="one row for each folder")
    arguments = parser.parse_args()
    files = source_files([path.resolve() for path in arguments.paths])
    if arguments.per_folder:
        _print_folders(files)
    else:
        _print_table(count_files(files))


if __name__ == "__main__":
    main()
