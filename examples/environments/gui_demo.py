"""Web tasks in a real browser, from task to reward, with a filmstrip of each episode (`make demo-gui`).

The shipped tasks are checked and played; the starter policy cannot solve them. Then it is trained on tasks in its own
few words (`starter_tracks.py`), and measured on tasks that were held out.
"""

import json
import time

from learning import LearningDemo, demo_parser, end_demo, new_home, run_demo, run_env
from starter_tracks import ROOT, write_web_track

from openclaw_rl.common.printable import echo
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config


def main() -> None:
    parser = demo_parser(__doc__)
    parser.add_argument("--python", required=True, help="Python with browsergym-miniwob.")
    parser.add_argument(
        "--steps", type=int, default=3, help="Replies of an episode of a shipped task."
    )
    given, began = parser.parse_args(), time.monotonic()
    home = new_home(given.out)
    track = home.parent / f"{home.name}-tasks"
    # Where the page looks for them.
    film = home / "film"
    write_web_track(track)
    browser = ("--python", given.python, "--limit-seconds", "120")
    shipped = (f"browsergym:{ROOT / 'tasks' / 'web'}?film={film}", *browser)
    demo = LearningDemo(
        source=(f"browsergym:{track}?typed=true&film={film}", *browser),
        play=("--max-steps", "1"),
        measured=6,
    )
    with SubprocessSystem(scratch_config(home, {"train.method": "groups"})) as system:
        echo(run_env(home, "check", *shipped).strip())
        options = ("--group", "2", "--max-steps", str(given.steps), "--json")
        played = json.loads(run_env(home, "run", *shipped, *options))
        echo(
            f"{played['done']} episodes done, {played['void']['count']} void, mean reward {played['mean_reward']:.2f}"
        )
        has_learned = demo.learn_with(system, given.epochs)
    echo(f"{len(list(film.glob('*.png')))} filmstrips: {film / 'index.html'}")
    end_demo(home, began, has_learned=has_learned)


if __name__ == "__main__":
    run_demo(main)
