"""What the demos of this folder share: check tasks, measure the held-out ones, train on the others, measure again."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning_picture import PICTURE, HeldOutScore, draw_picture, train_rewards

from openclaw_rl.common.printable import echo
from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.errors import OpenClawError
from openclaw_rl.supervisor.subprocess_system import (
    SubprocessSystem,
    read_readiness,
    scratch_config,
)

QUIET_SECONDS = 8.0  # without a new version: the training has ended


def run_env(home: Path, sub: str, *words: str) -> str:
    """Run `openclaw-rl env SUB` and return what it printed. Ends this program if it failed."""
    command = [
        sys.executable,
        "-m",
        "openclaw_rl",
        "env",
        sub,
        words[0],
        "--home",
        str(home),
        *words[1:],
    ]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"`openclaw-rl env {sub} {words[0]}` failed: {done.stdout}")
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningDemo:
    """Tasks that the starter can learn. `source`: the source and its options.

    `check`, `play`: further options of `env check` and `env run`. `program`: what plays, after `--`. `measured`:
    episodes of each held-out task.
    """

    source: Sequence[str]
    check: Sequence[str] = ()
    play: Sequence[str] = ()
    program: Sequence[str] = ()
    measured: int = 4

    def run_learning(self, home: Path, epochs: int) -> bool:
        """Train on the tasks, print the shares before and after, and return whether their intervals are apart."""
        with SubprocessSystem(scratch_config(home, {"train.method": "groups"})) as system:
            return self.learn_with(system, epochs)

    def learn_with(self, system: SubprocessSystem, epochs: int) -> bool:
        """Do as `run_learning` in a system that runs already."""
        home = system.config.home_dir
        echo(run_env(home, "check", *self.source, *self._split, *self.check).splitlines()[-1])
        before = self._measure_held_out(home, "before")
        trained = self._play_tasks(
            home, "--split", "train", "--group", "8", "--epochs", str(epochs)
        )
        echo(f"trained on {trained['done']} episodes, mean reward {trained['mean_reward']:.0%}")
        version = wait_for_training(system)
        after = self._measure_held_out(home, f"after {version} versions")
        picture = home.parent / PICTURE
        draw_picture(picture, train_rewards(home), (before, after))
        echo(f"picture: {picture}")
        return after.low > before.high

    @property
    def _split(self) -> tuple[str, ...]:
        return ("--held-out", "0.3", "--parallel", "4")

    def _play_tasks(self, home: Path, *options: str) -> dict[str, Any]:
        program = ("--", *self.program) if self.program else ()
        words = (*self.source, *self._split, *self.play, *options, "--json", *program)
        return dict(json.loads(run_env(home, "run", *words)))

    def _measure_held_out(self, home: Path, title: str) -> HeldOutScore:
        """Print the share of held-out episodes with reward 1, and return it."""
        found = self._play_tasks(home, "--split", "held_out", "--group", str(self.measured))
        solved = round(found["done"] * found["mean_reward"])
        low, high = wilson_interval(solved, found["done"])
        echo(f"{title}: {solved} of {found['done']} held-out episodes solved, {solved / found['done']:.0%} "
             f"({low:.0%} to {high:.0%}), {found['void']['count']} void")  # fmt: skip
        return HeldOutScore(title=title, solved=solved, done=found["done"], low=low, high=high)


def wait_for_training(system: SubprocessSystem) -> int:
    """Return the served version, once no new one has come for some seconds."""
    version, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        found = int(read_readiness(system.base_url, system.config.serve.api_key)["version"])
        if found != version:
            version, since = found, time.monotonic()
        time.sleep(0.5)
    return version


def demo_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all demos."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--epochs", type=int, default=1)
    return parser


def run_demo(main: Callable[[], None]) -> None:
    """Run a demo. Ends with one line for an error of the program, such as a system that does not start."""
    try:
        main()
    except OpenClawError as error:
        sys.exit(f"openclaw-rl: {error}")


def new_home(out: Path) -> Path:
    """Return the path of a new home in `out`."""
    return (out / time.strftime("home-%Y%m%d-%H%M%S")).resolve()


def end_demo(home: Path, began: float, *, has_learned: bool) -> None:
    """Print how to look at the home, and end with status 0 if the intervals are apart."""
    echo(f"{time.monotonic() - began:.0f} s; inspect: openclaw-rl status --home {home}")
    sys.exit(0 if has_learned else 1)
