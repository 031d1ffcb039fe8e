"""`python -m openclaw.server`: another name for `openclaw-rl serve`. What follows goes on to it."""

import sys

from openclaw_rl.cli.main import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
