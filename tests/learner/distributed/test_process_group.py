"""Two ranks in two processes, without a model: work is shared, gradients are summed, errors are raised on both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PROGRAM = """
import json, sys, time, torch
from openclaw_rl.settings.load import from_flat
from openclaw_rl.learner.distributed.process_group import join

store, rank = sys.argv[1], int(sys.argv[2])
config = from_flat({"model.device": "cpu", "train.launch.timeout": 3.0})
group = join(config.train, config.model, store=store, rank=rank, size=2)
agreed = [group.all_true(yes) for yes in (True, rank == 0, False)]
did = []

def work(number, weight):
    did.append(number)
    return {number: torch.full((2, number), number / 3, dtype=torch.float64)}

found = group.map_over_ranks([5, 1, 4], work, dict[int, torch.Tensor])
nothing = group.map_over_ranks([], work, dict[int, torch.Tensor])

def failing(error):
    def work(number, weight):
        if number == 1:
            raise error
        return number
    try:
        group.map_over_ranks([2, 2], work, int)
    except (torch.OutOfMemoryError, ValueError) as raised:
        return str(raised)

errors = [failing(torch.OutOfMemoryError("too large")), failing(ValueError("the loss of row 1"))]
both, one, none = (torch.nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(3))
both.grad = torch.full((3,), rank + 1.0, dtype=torch.float64)
if rank == 1:
    one.grad = torch.full((3,), 5.0, dtype=torch.float64)
group.all_reduce_grads([both, one, none])
if rank == 0:
    time.sleep(3.5)  # rank 0 writes the result of the step, for longer than the timeout
words = group.broadcast(b"from rank 0" if rank == 0 else None)
print(json.dumps({
    "agreed": agreed,
    "did": did,
    "found": [{k: v.tolist() for k, v in part.items()} for part in found],
    "nothing": nothing,
    "errors": errors,
    "sums": [both.grad.tolist(), one.grad.tolist(), none.grad],
    "words": words.decode(),
}))
"""


@pytest.mark.timeout(300)
def test_two_ranks_share_work_raise_the_same_errors_and_wait_for_rank_0(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store")]
    started = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    replies = [json.loads(process.communicate(timeout=240)[0]) for process in started]
    assert sorted(replies[0].pop("did") + replies[1].pop("did")) == [0, 1, 2]
    assert replies[0] == replies[1]
    assert replies[0] == {
        "agreed": [True, False, False],
        "found": [{str(n): [[n / 3] * n] * 2} for n in range(3)],
        "nothing": [],
        "errors": ["a pass does not fit into the memory of rank 1", "the loss of row 1"],
        "sums": [[3.0] * 3, [5.0] * 3, None],
        "words": "from rank 0",
    }
