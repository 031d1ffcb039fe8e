"""Files of trajectories in, out, and in again: how long it takes, what it holds in memory, and whether it is the same.

    python benchmarks/data.py --trajectories 100000

Conversations of two turns in words, of which each second is judged, and each tenth has a person's feedback: checked,
imported (tokenised and scored by the starter policy), exported as lines and as Parquet; both files are imported into
stores of their own and exported again. The lines must be the same to the byte, else it ends with 1. Each command is a
process; memory is the most that it held, once for a tenth of the trajectories and once for all of them: what is bounded
does not grow from the one to the other. Writes benchmarks/results/data.md. 100,000 take half an hour to an hour.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "results" / "data.md"
HEAD = """\
# Trajectory files: {count:,} trajectories

`python benchmarks/data.py --trajectories {count}`, the starter policy, {cores} cores. Conversations of two turns as
text, every second one judged, every tenth with feedback: {words:.0f} MB; as lines with their tokens {lines:.0f} MB,
as Parquet {parquet:.0f} MB. Each command is one process. MiB is its peak memory.

| command | seconds | processor seconds | each, ms | MiB, {tenth:,} | MiB, {count:,} |
|---|---|---|---|---|---|
{rows}

{verdict}
"""
SAME = (
    "Importing and exporting the lines again gives the same {size:,} bytes, also through Parquet."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Of one process. `mib`: the most that was resident."""

    seconds: float
    processor: float
    mib: float


def conversation(n: int) -> dict[str, Any]:
    """The n-th; its words are its own."""
    first = {
        "type": "main",
        "prompt": f"Help me refactor function {n} to use async/await, please",
        "response": f"Here is function {n} with async and await: it waits for what it calls.",
        "next_state": f"perfect, thanks! And what does line {n % 97} do?",
    }
    second = {
        "type": "main",
        "prompt": f"And what does line {n % 97} do?",
        "response": f"It opens file {n} and reads its first line.",
        "next_state": "no, shorter",
    }
    if n % 2:
        first["verdict"] = {"score": 1, "reason": "thanked", "at": 1.0}
        second["verdict"] = {
            "score": -1,
            "hints": ["Answer in fewer words."],
            "reason": "asked for less",
            "at": 2.0,
        }
    if n % 10 == 0:
        second["feedback"] = [
            {"id": f"feedback-{n}", "score": -1, "comment": "too long", "given_at": 3.0}
        ]
    return {"session_id": f"user_session_{n}", "turns": [first, second]}


def write(file: Path, count: int) -> None:
    with file.open("w", encoding="utf-8") as out:
        for n in range(count):
            out.write(json.dumps(conversation(n)) + "\n")


def run(home: Path | None, *arguments: str) -> Took:
    """`openclaw-rl data ...` in a process of its own. Raises `RuntimeError` when it fails."""
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "data",
        *arguments,
        *(["--home", str(home)] if home else []),
    ]
    with tempfile.TemporaryFile() as told:
        begun = time.perf_counter()
        started = os.posix_spawn(
            sys.executable,
            command,
            dict(os.environ) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, told.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, told.fileno(), 2),
            ],
        )
        _, status, used = os.wait4(started, 0)
        seconds = time.perf_counter() - begun
        if code := os.waitstatus_to_exitcode(status):
            told.seek(0)
            raise RuntimeError(
                f"{' '.join(command)}: exit code {code}\n{told.read()[-2000:].decode(errors='replace')}"
            )
    return Took(seconds=seconds, processor=used.ru_utime + used.ru_stime, mib=used.ru_maxrss / 1024)


def commands(place: Path) -> Iterator[tuple[str, Took]]:
    """Everything, in its order."""
    words = place / "words.jsonl"
    lines = place / "lines.jsonl"
    rows = place / "rows.parquet"
    homes = [place / f"home{n}" for n in range(3)]
    yield "`data check`, text", run(None, "check", str(words))
    yield "`data import`, text, tokenised and scored", run(homes[0], "import", str(words))
    yield "`data export FILE.jsonl`", run(homes[0], "export", str(lines))
    yield "`data export FILE.parquet`", run(homes[0], "export", str(rows))
    shutil.rmtree(homes[0])
    yield "`data import`, lines with their tokens", run(homes[1], "import", str(lines))
    run(homes[1], "export", str(place / "again.jsonl"))
    shutil.rmtree(homes[1])
    yield "`data import`, Parquet with its tokens", run(homes[2], "import", str(rows))
    run(homes[2], "export", str(place / "from_rows.jsonl"))
    shutil.rmtree(homes[2])


def whole(count: int, place: Path) -> Iterator[tuple[str, Took]]:
    write(place / "words.jsonl", count)
    for name, took in commands(place):
        print(f"{count:>8,}  {name:<45} {took.seconds:8.1f} s {took.mib:6.0f} MiB", flush=True)
        yield name, took


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    count = given.trajectories
    tenth = max(1, given.trajectories // 10)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        small = dict(whole(tenth, place))
        large = dict(whole(count, place))
        lines = place / "lines.jsonl"
        differ = [
            f
            for f in ("again.jsonl", "from_rows.jsonl")
            if not filecmp.cmp(lines, place / f, shallow=False)
        ]
        size = {
            name: (place / name).stat().st_size
            for name in ("words.jsonl", "lines.jsonl", "rows.parquet")
        }
    text = HEAD.format(
        count=count,
        tenth=tenth,
        cores=os.cpu_count(),
        words=size["words.jsonl"] / 1e6,
        lines=size["lines.jsonl"] / 1e6,
        parquet=size["rows.parquet"] / 1e6,
        rows="\n".join(
            f"| {name} | {took.seconds:.0f} | {took.processor:.0f} | {1e3 * took.processor / count:.1f} "
            f"| {small[name].mib:.0f} | {took.mib:.0f} |"
            for name, took in large.items()
        ),
        verdict=f"**Not the same: {', '.join(differ)}**"
        if differ
        else SAME.format(size=size["lines.jsonl"]),
    )
    # Only as a script, whose folder is on the path.
    from provenance import write_result

    write_result(given.out, text)
    print(text)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
