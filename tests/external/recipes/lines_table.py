"""The table of the lines that were run: works, or what a line needs, or why it is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_PREFACE = """# The lines of the published descriptions

Each line of the shell blocks of four published descriptions of this program, run for real in a clone of the repository,
on a machine without a GPU, Ray or a network. `OPENCLAW_CHECK` was set: our commands then say what speaks against their
start, and start nothing. Written by `make test-recipes TABLE=docs/results/described_lines.md`.
"""
# Of the folders of a test.
_SCRATCH_PATH = re.compile(r"/[\w./-]*?/lines\d*/(path/to/|[\w./-]*OpenClaw-RL/)?")

_PYTHON = re.compile(r"/\S*/bin/python[\d.]*(?<!\.)")


@dataclass(slots=True)
class LinesTable:
    """Lines with their blocks and outcomes. `file`: where `write` writes them; None: nowhere."""

    file: Path | None = None
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add_line(self, block: str, line: str, outcome: str) -> None:
        self.rows.append((block, line, outcome))

    def write(self) -> None:
        """Write the lines so far."""
        if self.file is None:
            return
        parts = [_PREFACE]
        block = ""
        for title, line, outcome in self.rows:
            if title != block:
                parts.append(f"\n## {title}\n\n| line | outcome |\n|---|---|")
                block = title
            public = _PYTHON.sub("python", _SCRATCH_PATH.sub("/", outcome))
            parts.append(f"| `{_cell(line)}` | {_cell(public)} |")
        self.file.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _cell(text: str) -> str:
    joined = " ".join(text.replace("\\\n", " ").split())
    return joined.replace("|", "\\|")
