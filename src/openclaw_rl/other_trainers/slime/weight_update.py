"""Hook for slime's `--custom-update-weight-post-write-path`: makes the weights that slime wrote a version.

slime calls it on every trainer rank, after the files are written and before its engines read them.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.other_trainers.slime.mailbox import Mailbox
from openclaw_rl.other_trainers.slime.options import mailbox_folder
from openclaw_rl.other_trainers.slime.weight_files import fingerprint_of

# The other ranks wait in a barrier, which ends after slime's --distributed-timeout-minutes.
_ANSWER_SECONDS = 500.0
_FOLDER_NAME = re.compile(r"^weight_v(\d+)$")


class WeightsNotKept(Exception):
    """Raised in slime's trainer when the weights did not become a version. It ends the run: slime cannot step back."""


def publish_weights(args: Any, version_dir: str, rollout_engines: Sequence[Any]) -> None:
    """Have the open batch acknowledged with these weights, on rank 0. Raises `WeightsNotKept`."""
    if _own_rank() == 0:
        hand_over_weights(Mailbox(mailbox_folder(args)), Path(version_dir))


def hand_over_weights(
    mailbox: Mailbox, written: Path, *, answer_seconds: float = _ANSWER_SECONDS
) -> None:
    """Wait until the version and its uses are in the store. The first weights of a run only say where it starts."""
    match = _FOLDER_NAME.match(written.name)
    if match is None:
        raise WeightsNotKept(
            f"{written.name}: expected a folder weight_vN, as slime 0.3.1 writes it"
        )
    number = int(match[1])
    if number == 1:
        mailbox.clear()
        mailbox.put(
            "start", run=uuid.uuid4().hex, fingerprint=fingerprint_of(written), tag=str(number)
        )
        return
    batch = mailbox.get("batch")
    if batch is None:
        raise WeightsNotKept(
            "no batch of OpenClaw-RL is open: is --rollout-function-path its generate_rollout?"
        )
    mailbox.put("written", token=batch["token"], folder=str(written), tag=str(number))
    deadline = time.monotonic() + answer_seconds
    answer = mailbox.wait_for("answer", batch["token"], lambda: time.monotonic() < deadline)
    if answer is None:
        raise WeightsNotKept(
            f"the rollout manager did not answer within {answer_seconds:g} s; its log says why"
        )
    if answer["problem"] is not None:
        raise WeightsNotKept(answer["problem"])


def _own_rank() -> int:
    """Return the rank of this trainer process."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
