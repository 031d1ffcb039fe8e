"""Train the starter policy on tasks in a terminal, and measure it on tasks that were held out (`make demo-terminal`).

The tasks are in the few words of the starter (`starter_tracks.py`). The task folders are like all others: `env check`
solves each in a box, and a fresh box verifies each episode.
"""

import time

from learning import LearningDemo, demo_parser, end_demo, new_home, run_demo
from starter_tracks import write_terminal_track


def main() -> None:
    given, began = demo_parser(__doc__).parse_args(), time.monotonic()
    home = new_home(given.out)
    track = home.parent / f"{home.name}-tasks"
    write_terminal_track(track)
    demo = LearningDemo(
        source=(f"harbor:{track}",), play=("--agent", "plain", "--max-steps", "1"), measured=10
    )
    end_demo(home, began, has_learned=demo.run_learning(home, given.epochs))


if __name__ == "__main__":
    run_demo(main)
