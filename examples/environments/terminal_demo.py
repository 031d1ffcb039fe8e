"""Train the starter policy on tasks in a terminal, and measure it on tasks that were held out (`make demo-terminal`).

The starter knows few words, so the tasks are in its own: a question of the quiz, in a box where the only program for
an answer has the name `-`. A reply such as `- Certainly: Paris.` is then a command that answers, and any other reply is
a command that the shell does not find. The task folders are like all others: `env check` solves each in a box, and a
fresh box verifies each episode.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from demo import TASKS, wait_for_training

from openclaw_rl.common.printable import echo
from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

SETTINGS = """version = "1.0"

[verifier]
timeout_sec = 30.0

[agent]
timeout_sec = 60.0

[environment]
memory_mb = 128
storage_mb = 8
allow_internet = false
"""
DOCKERFILE = "FROM debian:12-slim\nENV PATH=/app/bin:$PATH\nWORKDIR /app\nCOPY files/ /app/\n"
PROGRAM = '#!/bin/sh\nprintf "%s\\n" "$*" >>/app/answer.txt\n'
TEST = """#!/bin/sh
mkdir -p /logs/verifier
grep -qwF -- "$(cat /tests/answer.txt)" /app/answer.txt && echo 1 >/logs/verifier/reward.txt && exit
echo 0 >/logs/verifier/reward.txt
"""


def write_track(folder: Path) -> None:
    """Write a task folder for every fourth question of the quiz."""
    for line in TASKS.read_text(encoding="utf-8").splitlines()[::4]:
        task = json.loads(line)
        texts = {
            "task.toml": SETTINGS,
            "instruction.md": task["question"] + "\n",
            "environment/Dockerfile": DOCKERFILE,
            "environment/files/bin/-": PROGRAM,
            "tests/test.sh": TEST,
            "tests/answer.txt": task["answer"] + "\n",
            "solution/solve.sh": f"#!/bin/sh\n- {task['answer']}\n",
        }
        for name, text in texts.items():
            file = folder / task["id"].replace("/", "-") / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755 if text.startswith("#!") else 0o644)


def run_command(home: Path, sub: str, track: Path, *options: str) -> str:
    """Run `openclaw-rl env` on the track and return what it printed."""
    command = [sys.executable, "-m", "openclaw_rl", "env", sub, f"harbor:{track}", "--home", str(home)]
    done = subprocess.run(
        [*command, "--held-out", "0.3", "--parallel", "4", *options], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"`openclaw-rl env {sub}` failed: {done.stdout}")
    return done.stdout


def run_episodes(home: Path, track: Path, *options: str) -> dict[str, Any]:
    """Play episodes of one reply with the agent `plain`."""
    return dict(json.loads(run_command(home, "run", track, "--agent", "plain", "--max-steps", "1", "--json", *options)))


def measure_held_out(home: Path, track: Path, title: str) -> tuple[float, float]:
    """Print the share of held-out episodes with reward 1, and return its 95% interval."""
    found = run_episodes(home, track, "--split", "held_out", "--group", "10")
    solved = round(found["done"] * found["mean_reward"])
    low, high = wilson_interval(solved, found["done"])
    echo(f"{title}: {solved} of {found['done']} held-out episodes solved, {solved / found['done']:.0%} "
         f"({low:.0%} to {high:.0%}), {found['void']['count']} void")  # fmt: skip
    return low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    home, began = (given.out / time.strftime("home-%Y%m%d-%H%M%S")).resolve(), time.monotonic()
    track = home.parent / f"{home.name}-tasks"
    write_track(track)
    with SubprocessSystem(scratch_config(home, {"train.method": "groups"})) as system:
        echo(run_command(home, "check", track).splitlines()[-1])
        _, before = measure_held_out(home, track, "before")
        trained = run_episodes(home, track, "--split", "train", "--group", "8", "--epochs", str(given.epochs))
        echo(f"trained on {trained['done']} episodes, mean reward {trained['mean_reward']:.0%}")
        version = wait_for_training(system)
        after, _ = measure_held_out(home, track, f"after {version} versions")
    echo(f"{time.monotonic() - began:.0f} s; inspect: openclaw-rl status --home {home}")
    sys.exit(0 if after > before else 1)


if __name__ == "__main__":
    main()
