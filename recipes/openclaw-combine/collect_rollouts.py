"""`python collect_rollouts.py`: another name for `openclaw-rl collect`. What follows goes on to it."""

import sys

from openclaw_rl.cli.main import main

if __name__ == "__main__":
    main(["collect", *sys.argv[1:]])
