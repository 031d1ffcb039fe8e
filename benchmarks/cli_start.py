"""How long `openclaw-rl --help` takes, beside an empty Python process.

    python benchmarks/cli_start.py

Each command runs as a process of its own, in turn with the other. The table has the minimum and the median.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15
COMMANDS = {"python -c pass": ["-c", "pass"], "openclaw-rl --help": ["-m", "openclaw_rl", "--help"]}


def run_seconds(arguments: list[str]) -> float:
    """Return the wall time of one process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            times[name].append(run_seconds(arguments))
    print("| command | minimum | median |\n|---|---|---|")
    for name, found in times.items():
        print(f"| `{name}` | {min(found):.3f} s | {statistics.median(found):.3f} s |")


if __name__ == "__main__":
    main()
