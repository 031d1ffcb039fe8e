"""Train the starter policy on a quiz, and measure it on tasks that it was not trained on (`make demo-episodes`)."""

import sys
import time
from pathlib import Path

from learning import LearningDemo, demo_parser, end_demo, new_home, run_demo

HERE = Path(__file__).parent
AGENT = f"{sys.executable} {HERE / 'quiz_agent.py'}"
DEMO = LearningDemo(
    source=("command", "--tasks", str(HERE / "quiz_tasks.jsonl")),
    check=("--oracle", f"{AGENT} --oracle", "--nop", f"{AGENT} --nop"),
    program=AGENT.split(),
)


def main() -> None:
    given, began = demo_parser(__doc__).parse_args(), time.monotonic()
    home = new_home(given.out)
    end_demo(home, began, has_learned=DEMO.run_learning(home, given.epochs))


if __name__ == "__main__":
    run_demo(main)
