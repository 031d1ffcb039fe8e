"""Train the starter policy to repair repositories, and measure it on tasks that were held out (`make demo-swe`).

The repositories are in the few words of the starter (`starter_tracks.py`). Before that, the solution of a shipped
repository, which is beyond the starter, works in a box, from the task to the reward: its tests run in a fresh box.
"""

import json
import time
from pathlib import Path

from learning import LearningDemo, demo_parser, end_demo, new_home, run_demo, run_env
from starter_tracks import ROOT, write_swe_track

from openclaw_rl.common.printable import echo
from openclaw_rl.environments.task_checks import CheckFile
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

SHIPPED = ROOT / "tasks" / "swe" / "roman-numbers"


def show_solution(home: Path) -> None:
    """Let the solution of the shipped repository work, and nobody, and print what the tests say of both."""
    run_env(home, "check", f"harbor:{SHIPPED}")
    (found,) = CheckFile(home, "harbor").read_checks().values()
    named = json.loads((SHIPPED / "tests" / "tests.json").read_text())
    tests = ", ".join(f"{len(names)} {kind}" for kind, names in named.items())
    echo(f"{found.task}, {tests}: its solution gets {found.oracle:g}, doing nothing {found.nop:g}")


def main() -> None:
    given, began = demo_parser(__doc__).parse_args(), time.monotonic()
    home = new_home(given.out)
    track = home.parent / f"{home.name}-tasks"
    write_swe_track(track)
    demo = LearningDemo(
        source=(f"harbor:{track}",), play=("--agent", "plain", "--max-steps", "1"), measured=10
    )
    with SubprocessSystem(scratch_config(home, {"train.method": "groups"})) as system:
        show_solution(home)
        has_learned = demo.learn_with(system, given.epochs)
    end_demo(home, began, has_learned=has_learned)


if __name__ == "__main__":
    run_demo(main)
