"""The optimizer's own sums: updates too small for the weights' precision, gradients added up, the way back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.errors import ModelError
from openclaw_rl.learner.model import state_files
from openclaw_rl.learner.optim.optimizer import Optimizer
from openclaw_rl.settings.load import TrainConfig, train_settings

RATE = 1e-4


def one(
    dtype: torch.dtype, value: float = 1.0, **settings: object
) -> tuple[torch.nn.Parameter, Optimizer]:
    """A weight of four equal numbers, and its optimizer."""
    weight = torch.nn.Parameter(torch.full((4,), value, dtype=dtype))
    return weight, Optimizer(
        {"w": weight}, train_settings({"weights": "full", "clip_grad": 1e9} | settings)
    )


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_smaller_than_the_weights_precision_are_not_lost(
    dtype: torch.dtype, offload: bool
) -> None:
    """Adam moves by the rate: here a fortieth of bfloat16's distance to the next number below 1."""
    weight, optimizer = one(dtype, offload_optimizer=offload)
    exact, control = one(torch.float32)
    after: list[float] = []
    for _ in range(100):
        for w, o in ((weight, optimizer), (exact, control)):
            o.zero_grad()
            w.sum().backward()
            o.step(RATE, wanted=True)
        after.append(weight[0].item())
    assert exact[0].item() == pytest.approx(1 - 100 * RATE, rel=1e-5)
    assert weight.equal(exact.to(dtype)), "the nearest number that there is"
    if dtype is torch.bfloat16:
        assert after[0] == 1.0, "nothing is to be seen of one step"
        assert after[-1] < 1.0


@pytest.mark.parametrize("offload", [False, True])
def test_gradients_of_many_passes_add_up_in_float32(offload: bool) -> None:
    """1 and 300 times a thousandth: bfloat16 would stay at 1."""
    weight, optimizer = one(torch.bfloat16, offload_optimizer=offload)
    for share in (1.0, *[1e-3] * 300):
        (weight * share).sum().backward()
        assert weight.grad is None, "let go at once"
    norm = optimizer.step(RATE, wanted=True)
    thousandth = torch.tensor(1e-3, dtype=torch.bfloat16).item()
    assert norm == pytest.approx(2 * (1 + 300 * thousandth), rel=1e-5)
    lost = torch.ones((), dtype=torch.bfloat16)
    for _ in range(300):
        lost = lost + thousandth
    assert lost.item() == 1.0


def test_gradients_of_a_failed_pass_are_cleared() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        weight, optimizer = one(dtype)
        weight.sum().backward()
        optimizer.zero_grad()
        weight.sum().backward()
        assert optimizer.step(RATE, wanted=True) == pytest.approx(2.0)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_stepping_back_half_halves_the_step(dtype: torch.dtype, offload: bool) -> None:
    weight, optimizer = one(dtype, offload_optimizer=offload)
    standing = optimizer.snapshot()
    weight.sum().backward()
    optimizer.step(0.5, wanted=True)
    assert weight[0].item() == pytest.approx(0.5)
    optimizer.step_back_half(standing)
    assert weight[0].item() == pytest.approx(0.75)
    optimizer.step_back_half(standing)
    assert weight[0].item() == pytest.approx(0.875)
    assert standing["w"].tolist() == [1.0] * 4


def test_a_zero_gradient_does_not_move_the_weights() -> None:
    """A gradient of 0, and one that is not wanted, after a step that left momentum behind."""
    weight, optimizer = one(torch.float32)
    weight.sum().backward()
    optimizer.step(RATE, wanted=True)
    before = weight.detach().clone()
    for wanted, share in ((True, 0.0), (False, 1.0)):
        optimizer.zero_grad()
        (weight * share).sum().backward()
        assert optimizer.step(RATE, wanted=wanted) == pytest.approx(2 * share)
    assert weight.equal(before)
    assert optimizer.steps_taken == 1


def test_a_non_finite_gradient_takes_no_step() -> None:
    weight, optimizer = one(torch.bfloat16)
    for wanted, share in ((False, 1.0), (True, float("nan"))):
        optimizer.zero_grad()
        (weight * share).sum().backward()
        optimizer.step(0.5, wanted=wanted)
    assert weight.tolist() == [1.0] * 4
    assert optimizer.steps_taken == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_state_on_disk_is_exact_and_is_checked(tmp_path: Path, dtype: torch.dtype) -> None:
    """Written with the moments here, read with the moments on the CPU, and on from there together."""
    weight, optimizer = one(dtype)
    other, reader = one(dtype, offload_optimizer=True)
    assert reader.read(tmp_path) is False
    for _ in range(3):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step(RATE, wanted=True)
    optimizer.write(tmp_path)
    stored = load_file(tmp_path / OPTIMIZER_FILE)
    assert set(stored) == {"exp_avg/w", "exp_avg_sq/w", "step/w"} | (
        {"master/w"} if dtype is torch.bfloat16 else set()
    )
    assert stored["exp_avg/w"].dtype is torch.float32
    with torch.no_grad():
        other.copy_(weight)
    reader.start()
    assert reader.read(tmp_path) is True
    for w, o in ((weight, optimizer), (other, reader)):
        o.zero_grad()
        w.sum().backward()
        o.step(RATE, wanted=True)
    again = tmp_path / "again"
    again.mkdir()
    for n, o in enumerate((optimizer, reader)):
        (again / str(n)).mkdir()
        o.write(again / str(n))
    files = [(again / str(n) / OPTIMIZER_FILE).read_bytes() for n in range(2)]
    assert files[0] == files[1]
    stranger = Optimizer({"v": torch.nn.Parameter(torch.ones(4))}, TrainConfig())
    with pytest.raises(ModelError, match="a moment of 'w', which is not trained"):
        stranger.read(tmp_path)


def test_tensors_on_disk_are_safetensors(tmp_path: Path) -> None:
    """Of all kinds and shapes, one that is not contiguous, one without numbers; read by the library itself."""
    torch.manual_seed(0)
    tensors = {
        "half": torch.randn(3, 5).bfloat16(),
        "turned": torch.randn(4, 6).t(),
        "double": torch.randn(7, dtype=torch.float64),
        "count": torch.tensor(5),
        "scalar": torch.tensor(2.5),
        "nothing": torch.empty(0, 3),
        "narrow": torch.randn(1).half(),
    }
    state_files.write_tensors(tmp_path / "x", tensors)
    back = load_file(tmp_path / "x")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype is tensor.dtype
        assert back[name].equal(tensor), name
