"""`torchrun ... slime/train_grpo.py`: refused with the command that does it."""

import json
import os
import sys
import time
from pathlib import Path

from openclaw_rl.cli.main import main


def refuse() -> None:
    """Exit with the command that starts the same ranks. torchrun reports it as the reason of each rank."""
    ranks, nodes = os.environ["LOCAL_WORLD_SIZE"], os.environ["GROUP_WORLD_SIZE"]
    reason = (
        "slime/train_grpo.py: here the trainer starts torchrun. Run on each machine: "
        f"openclaw-rl train --set train.ranks={ranks} --set train.launch.by=torchrun "
        f"--set train.launch.nodes={nodes} (docs/guides/many_gpus.md)"
    )
    report = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if report:
        failure = {"message": reason, "timestamp": int(time.time())}
        Path(report).write_text(json.dumps(failure), encoding="utf-8")
    is_first = os.environ["RANK"] == "0"
    sys.exit(reason if is_first else 1)


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        refuse()
    main(["train", *sys.argv[1:]])
