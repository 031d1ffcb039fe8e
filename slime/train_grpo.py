"""`torchrun ... slime/train_grpo.py`: refused with the command that does it."""

import os
import sys

from openclaw_rl.cli.main import main

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        main(["train", *sys.argv[1:]])
        sys.exit()
    if os.environ["RANK"] == "0":
        ranks, nodes = os.environ["LOCAL_WORLD_SIZE"], os.environ["GROUP_WORLD_SIZE"]
        sys.exit(
            "slime/train_grpo.py: the trainer starts torchrun, and not the other way round: the store, the judge "
            "and the ranks have to end together. Say on each machine:\n"
            f"  openclaw-rl train --set train.ranks={ranks} --set train.launch.by=torchrun "
            f"--set train.launch.nodes={nodes} ... (docs/guides/many_gpus.md)"
        )
    sys.exit(1)
