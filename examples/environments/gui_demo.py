"""Check and play the web tasks in a real browser, and leave a filmstrip of each episode (`make demo-gui`)."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from openclaw_rl.common.printable import echo
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

TASKS = Path(__file__).parents[2] / "tasks" / "web"


def run_command(home: Path, python: str, film: Path, sub: str, *options: str) -> str:
    """Run `openclaw-rl env` on the web tasks and return what it printed."""
    command = [sys.executable, "-m", "openclaw_rl", "env", sub, f"browsergym:{TASKS}?film={film}", *options]
    command += ["--home", str(home), "--python", python, "--limit-seconds", "120"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=False)
    if done.returncode:
        sys.exit(f"`openclaw-rl env {sub}` failed: {done.stdout}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="Python with browsergym-miniwob.")
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--steps", type=int, default=3, help="Replies of an episode.")
    given = parser.parse_args()
    out, began = (given.out / time.strftime("gui-%Y%m%d-%H%M%S")).resolve(), time.monotonic()
    with SubprocessSystem(scratch_config(out / "home", {"train.method": "groups"})) as system:
        home = system.config.home_dir
        echo(run_command(home, given.python, out / "film", "check").strip())
        options = ("--group", "2", "--max-steps", str(given.steps), "--json")
        played = json.loads(run_command(home, given.python, out / "film", "run", *options))
    echo(f"{played['done']} episodes done, {played['void']['count']} void, mean reward {played['mean_reward']:.2f}")
    echo(f"{len(list((out / 'film').iterdir()))} filmstrips in {out / 'film'}; {time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
