"""`python train_async.py`: another name for `openclaw-rl train`. What follows goes on to it."""

import sys

from openclaw_rl.cli.main import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
