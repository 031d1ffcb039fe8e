"""Train the starter policy to use a tool, and measure it on tasks that it was not trained on (`make demo-toolcall`).

The starter has no format of tool calls. Here a line of its reply that begins with "- " is a call of `write_note`, which
writes into a notebook in a box of the episode. The reward is 1 if the notebook has the right answer in the end.
"""

import time
from pathlib import Path

from learning import LearningDemo, demo_parser, end_demo, new_home, run_demo

CONFIG = Path(__file__).parents[1] / "tools" / "notebook.json"
DEMO = LearningDemo(source=(f"tools:{CONFIG}",), play=("--agent", "text"))


def main() -> None:
    given, began = demo_parser(__doc__).parse_args(), time.monotonic()
    home = new_home(given.out)
    end_demo(home, began, has_learned=DEMO.run_learning(home, given.epochs))


if __name__ == "__main__":
    run_demo(main)
