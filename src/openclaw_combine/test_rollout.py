"""`python -m openclaw_combine.test_rollout`: another name for `openclaw-rl test-rollout`. Words that follow go on."""

import sys

from openclaw_rl.cli.main import main

if __name__ == "__main__":
    main(["test-rollout", *sys.argv[1:]])
