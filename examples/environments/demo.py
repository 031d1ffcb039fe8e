"""Train the starter policy on a quiz, and measure it on tasks that it was not trained on (`make demo-episodes`)."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from openclaw_rl.common.printable import echo
from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, read_readiness, scratch_config

HERE = Path(__file__).parent
AGENT, TASKS = HERE / "quiz_agent.py", HERE / "quiz_tasks.jsonl"
QUIET_SECONDS = 8.0  # without a new version: the training has ended


def run_command(home: Path, sub: str, *options: str) -> str:
    """Run `openclaw-rl env` on the quiz and return what it printed."""
    command = [sys.executable, "-m", "openclaw_rl", "env", sub, "command", "--home", str(home)]
    command += ["--tasks", str(TASKS), "--held-out", "0.3", "--parallel", "4", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=False)
    if done.returncode:
        sys.exit(f"`openclaw-rl env {sub}` failed: {done.stdout}")
    return done.stdout


def run_episodes(home: Path, *options: str) -> dict[str, Any]:
    return dict(json.loads(run_command(home, "run", "--json", *options, "--", sys.executable, str(AGENT))))


def measure_held_out(home: Path, title: str) -> tuple[float, float]:
    """Print the share of held-out episodes with reward 1, and return its 95% interval."""
    found = run_episodes(home, "--split", "held_out", "--group", "4")
    solved = round(found["done"] * found["mean_reward"])
    low, high = wilson_interval(solved, found["done"])
    echo(f"{title}: {solved} of {found['done']} held-out episodes solved, {solved / found['done']:.0%} "
         f"({low:.0%} to {high:.0%}), {found['void']['count']} void")  # fmt: skip
    return low, high


def wait_for_training(system: SubprocessSystem) -> int:
    """Return the served version, once no new one has come for some seconds."""
    version, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        found = int(read_readiness(system.base_url, system.config.serve.api_key)["version"])
        if found != version:
            version, since = found, time.monotonic()
        time.sleep(0.5)
    return version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    home, began = (given.out / time.strftime("home-%Y%m%d-%H%M%S")).resolve(), time.monotonic()
    with SubprocessSystem(scratch_config(home, {"train.method": "groups"})) as system:
        program = f"{sys.executable} {AGENT}"
        checked = run_command(home, "check", "--oracle", f"{program} --oracle", "--nop", f"{program} --nop")
        echo(checked.splitlines()[-1])
        _, before = measure_held_out(home, "before")
        trained = run_episodes(home, "--split", "train", "--group", "8", "--epochs", str(given.epochs))
        echo(f"trained on {trained['done']} episodes, mean reward {trained['mean_reward']:.0%}")
        version = wait_for_training(system)
        after, _ = measure_held_out(home, f"after {version} versions")
    echo(f"{time.monotonic() - began:.0f} s; inspect: openclaw-rl status --home {home}")
    sys.exit(0 if after > before else 1)


if __name__ == "__main__":
    main()
