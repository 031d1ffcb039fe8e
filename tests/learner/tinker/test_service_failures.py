"""Failures of the Tinker service: a step is taken once, and no turn is blamed for what the service did."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.learner.tinker.conftest import Make, RequestFailedError, StatusError, take_step
from tests.learner.tinker.training_sdk import ApiFuture, TrainingSdk

from openclaw_rl.common.policy_digest import TINKER_FILE
from openclaw_rl.errors import ModelError, TooLarge, TrainerAbsent
from openclaw_rl.learner.step_metrics import ZERO_GRADIENT
from openclaw_rl.learner.tinker import training_session
from openclaw_rl.learner.tinker.trainer import STEP_ATTEMPTS, TinkerTrainer
from openclaw_rl.tinker import service

LOST = ["forward", "forward_backward", "optim_step", "save_state", "save_sampler", "load_state"]


@pytest.mark.parametrize("call", LOST)
@pytest.mark.parametrize("is_lost", [False, True], ids=["failed", "answer lost"])
def test_a_step_whose_answer_is_lost_is_not_taken_twice(
    make: Make, sdk: TrainingSdk, tmp_path: Path, call: str, is_lost: bool
) -> None:
    calm, trainer = make(), make()
    for one in (calm, trainer):
        result = take_step(one, tmp_path / f"000001-{id(one)}")
        one.load(folder=result.folder, method_state=result.memory)
    expected = take_step(calm, tmp_path / "000002-calm")
    (sdk.loses if is_lost else sdk.fails)[call] = StatusError(503, "gone")
    with pytest.raises(TrainerAbsent, match="does not answer"):
        take_step(trainer, tmp_path / "000002-lost")
    assert not (tmp_path / "000002-lost").exists()
    trainer.load(folder=result.folder, method_state=result.memory)  # as the train loop does
    found = take_step(trainer, tmp_path / "000002-again")
    path = "tinker://run/weights/openclaw-000002-"
    torch.testing.assert_close(sdk.saved[f"{path}again"], sdk.saved[f"{path}calm"], rtol=0, atol=0)
    assert found.memory == expected.memory


def test_a_call_that_the_sdk_repeats_is_one_step(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    """SkyRL's server does not recognise it: a second step has no gradient, and moves by the momentum of the first."""
    trainer = make()
    one = take_step(trainer, tmp_path / "000001-a")
    trainer.load(folder=one.folder, method_state=one.memory)
    expected = take_step(trainer, tmp_path / "000002-calm")
    trainer.load(folder=one.folder, method_state=one.memory)
    sdk.repeats["optim_step"] = 2
    found = take_step(trainer, tmp_path / "000002-again")
    path = "tinker://run/weights/openclaw-000002-"
    torch.testing.assert_close(sdk.saved[f"{path}again"], sdk.saved[f"{path}calm"], rtol=0, atol=0)
    assert found.metrics["gradient/norm"] == expected.metrics["gradient/norm"] > 0
    sdk.repeats["optim_step"] = STEP_ATTEMPTS
    still = take_step(trainer, tmp_path / "000003-b")
    assert (still.folder, sdk.repeats["optim_step"]) == (None, 0)
    assert set(still.dropped.values()) >= {ZERO_GRADIENT}


def test_a_checkpoint_whose_answer_is_lost_is_found_in_the_list(
    make: Make, sdk: TrainingSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyRL's server refuses the name when the SDK repeats the call, which the SDK does for five minutes."""
    monkeypatch.setattr(service, "LOST_SECONDS", 0.2)
    sdk.silent = {"save_state": ApiFuture(), "save_sampler": ApiFuture()}
    sdk.fails["list"] = StatusError(503, "busy")  # the first time
    began = time.monotonic()
    result = take_step(make(), tmp_path / "000001-a")
    assert time.monotonic() - began < 240, "not until tinker.call_timeout"
    held = json.loads((Path(str(result.folder)) / TINKER_FILE).read_text())
    assert held["state"] == "tinker://run/weights/openclaw-000001-a"
    assert held["sampler"] == "tinker://run/sampler_weights/openclaw-000001-a"
    assert all(call.cancelled() for call in sdk.silent.values()), (
        "the client's next call would wait for them"
    )
    assert len(sdk.saved) == 3, "each is saved once: the first state, and the two of the version"


def test_a_checkpoint_that_never_appears_ends_the_step(
    make: Make, sdk: TrainingSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOST_SECONDS", 0.1)
    sdk.silent = {"save_sampler": ApiFuture()}
    trainer = make(**{"tinker.call_timeout": 2.0})
    monkeypatch.setattr(TrainingSdk, "list_checkpoints", lambda self, run: ApiFuture())
    with pytest.raises(TrainerAbsent, match="gave no answer within 2 s"):
        take_step(trainer, tmp_path / "000001-a")
    assert not (tmp_path / "000001-a").exists()


@pytest.mark.parametrize(
    ("call", "failure", "expected", "words"),
    [
        ("connect", StatusError(401, "bad key"), TrainerAbsent, "Set TINKER_API_KEY"),
        (
            "create",
            ValueError("LoRA rank 64 must be between 1 and 8"),
            TrainerAbsent,
            "Set train.lora.rank",
        ),
        ("create", ValueError("no place for an adapter"), TrainerAbsent, "no place for an adapter"),
        (
            "forward",
            StatusError(400, "the sequence exceeds the context"),
            TooLarge,
            "engine.max_context",
        ),
        (
            "forward",
            StatusError(400, "the input has 40 tokens, limit 32"),
            TooLarge,
            "engine.max_context",
        ),
        (
            "forward",
            StatusError(400, "total_len 40 > max_model_len 32"),
            TooLarge,
            "engine.max_context",
        ),
        (
            "forward",
            StatusError(400, "context deadline exceeded"),
            TrainerAbsent,
            "failed .context deadline exceeded",
        ),
        (
            "forward",
            RequestFailedError("worker timed out", "unknown"),
            TrainerAbsent,
            "failed .worker timed out",
        ),
        (
            "create",
            StatusError(422, "lora_config.lora_rank must be at most 32"),
            TrainerAbsent,
            "Set train.lora.rank",
        ),
        (
            "forward_backward",
            ValueError("Model model_1 not loaded (likely stale request)"),
            TrainerAbsent,
            "no longer has a model",
        ),
        ("score", StatusError(422, "a token that is none"), ModelError, "a token that is none"),
        (
            "forward",
            RequestFailedError("a shape that is none", "unknown"),
            ModelError,
            "a shape that is none",
        ),
        (
            "forward",
            RequestFailedError("no memory on rank 3", "server"),
            TrainerAbsent,
            "failed .no memory on rank 3",
        ),
        (
            "forward",
            json.JSONDecodeError("Expecting value", "<html>", 0),
            TrainerAbsent,
            "no proxy answers in its place",
        ),
        (
            "score",
            AttributeError("'str' object has no attribute 'request_id'"),
            TrainerAbsent,
            "its SDK cannot read",
        ),
        ("create", StatusError(404, "Session not found"), TrainerAbsent, "has ended this session"),
        (
            "create",
            StatusError(400, "rank: Input should be less than or equal to 8"),
            TrainerAbsent,
            "train.lora.rank",
        ),
        (
            "load_state",
            StatusError(404, "Training run 7 not found"),
            TrainerAbsent,
            "no longer has a checkpoint",
        ),
        (
            "load_state",
            StatusError(404, "Checkpoint not found: run/a"),
            TrainerAbsent,
            "Roll back to a version that",
        ),
        (
            "load_state",
            RequestFailedError("Checkpoint a does not exist", "user"),
            TrainerAbsent,
            "rollback 0",
        ),
        ("save_state", ConnectionResetError("cut"), TrainerAbsent, "Check the network"),
    ],
)
def test_failures_blame_the_service_or_the_batch(
    make: Make, sdk: TrainingSdk, tmp_path: Path, call: str, failure: Exception, expected: type, words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("openclaw_rl.tinker.service.RECONNECT_SECONDS", 0.0)
    trainer = make()
    sdk.fails[call] = failure
    with pytest.raises(expected, match=words) as caught:
        take_step(trainer, tmp_path / "000001-a")
    assert type(caught.value) is expected
    assert "\n" not in str(caught.value)
    assert take_step(trainer, tmp_path / "000001-b").folder is not None


def lose_one(answer: Any) -> Any:
    answer.loss_fn_outputs.pop()
    return answer


def harm_first(harm: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def change(answer: Any) -> Any:
        answer.loss_fn_outputs[0]["logprobs"] = harm(answer.loss_fn_outputs[0]["logprobs"])
        return answer

    return change


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        (lose_one, TrainerAbsent, "of 3 of 4 sequences"),
        (
            harm_first(lambda found: found[:2]),
            TrainerAbsent,
            "returned 2 log-probabilities for 5 tokens",
        ),
        (
            lambda _: SimpleNamespace(loss_fn_outputs=[{}]),
            TrainerAbsent,
            "its SDK cannot read .'logprobs'",
        ),
        (
            harm_first(lambda found: found * torch.nan),
            ModelError,
            "5 log-probabilities that are not finite",
        ),
    ],
    ids=["a sequence", "tokens", "a field", "not finite"],
)
def test_an_incomplete_answer_does_not_blame_the_batch(
    make: Make,
    sdk: TrainingSdk,
    tmp_path: Path,
    change: Callable[[Any], Any],
    expected: type,
    words: str,
) -> None:
    trainer = make()
    sdk.changes["forward"] = change
    with pytest.raises(expected, match=words):
        take_step(trainer, tmp_path / "000001-a")
    assert take_step(trainer, tmp_path / "000001-b").folder is not None


def test_a_non_finite_gradient_blames_the_batch(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    one = take_step(make(), tmp_path / "000001-a")
    trainer = make(**{"train.loss.kl_coef": 1e300})
    trainer.load(folder=one.folder, method_state=one.memory)
    with pytest.raises(ModelError, match="the gradient of the batch is not finite"):
        take_step(trainer, tmp_path / "000002-a")
    assert len(sdk.steps) == 1


def test_a_session_that_the_service_ended_is_opened_again(
    make: Make, sdk: TrainingSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    first = TrainingSdk.ServiceClient
    monkeypatch.setattr(
        TrainingSdk, "ServiceClient", lambda self, **given: opened.append(1) or first(self)
    )
    trainer = make()
    take_step(trainer, tmp_path / "000001-a")
    for call in ("load_state", "create"):
        sdk.fails[call] = StatusError(404, "Session not found")
        with pytest.raises(TrainerAbsent, match="The next call opens another one"):
            take_step(trainer, tmp_path / "000001-b")
    assert take_step(trainer, tmp_path / "000001-c").folder is not None
    assert len(opened) == 3


def test_a_failed_service_is_not_called_for_a_while(
    make: Make, sdk: TrainingSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make()
    monkeypatch.setattr(training_session, "RETRY_SECONDS", 60.0)
    sdk.fails["forward"] = StatusError(503, "overloaded")
    for _ in range(3):
        with pytest.raises(TrainerAbsent, match="overloaded"):
            take_step(trainer, tmp_path / "000001-a")
    assert len(sdk.models) == 1
    monkeypatch.setattr(training_session, "RETRY_SECONDS", 0.0)
    assert take_step(trainer, tmp_path / "000001-b").folder is not None


def count_attempts(
    trainer: TinkerTrainer,
    sdk: TrainingSdk,
    out: Path,
    clock: list[float],
    seconds: int,
    failure: Exception,
) -> int:
    """Return how often the service is asked for a step within these seconds, if that fails each time."""
    before = len(sdk.models)
    for _ in range(seconds):
        sdk.fails["optim_step"] = failure
        with pytest.raises(TrainerAbsent):
            take_step(trainer, out)
        clock[0] += 1.0
    del sdk.fails["optim_step"]
    return len(sdk.models) - before


def test_refused_attempts_become_rarer(
    make: Make, sdk: TrainingSdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt scores the batch again, which the owner pays for."""
    clock = [1000.0]
    trainer = make()
    monkeypatch.setattr(training_session, "RETRY_SECONDS", 10.0)
    monkeypatch.setattr(training_session, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    refused = RequestFailedError("no memory on rank 3", "server")
    assert (
        count_attempts(trainer, sdk, tmp_path / "000001-a", clock, 1000, refused) == 7
    )  # after 0, 10, 30, 70, ...
    clock[0] += training_session.LONGEST_RETRY_SECONDS
    assert take_step(trainer, tmp_path / "000001-b").folder is not None
    assert count_attempts(trainer, sdk, tmp_path / "000002-a", clock, 25, refused) == 1, (
        "after 0 s, with its model"
    )
    clock[0] += training_session.LONGEST_RETRY_SECONDS
    assert take_step(trainer, tmp_path / "000002-b").folder is not None
    away = StatusError(503, "overloaded")
    assert count_attempts(trainer, sdk, tmp_path / "000003-a", clock, 95, away) == 9, (
        "that passes by itself"
    )


def test_the_start_is_saved_only_for_a_step_from_the_base(
    make: Make, sdk: TrainingSdk, tmp_path: Path
) -> None:
    """Checkpoints stay at the service, which may charge for them, and each restart and each failure makes a model."""
    one = take_step(make(), tmp_path / "000001-a")
    trainer = make()
    trainer.load(folder=one.folder, method_state=one.memory)
    saved = len(sdk.saved)
    two = take_step(trainer, tmp_path / "000002-a")
    assert len(sdk.saved) == saved + 2, "state and sampler of the version"
    trainer.load(folder=None, method_state={})
    take_step(trainer, tmp_path / "000003-a")
    path = "tinker://run/weights/openclaw-00000"
    torch.testing.assert_close(sdk.saved[f"{path}3-a"], sdk.saved[f"{path}1-a"], rtol=0, atol=0)
    trainer.load(folder=two.folder, method_state=two.memory)
    take_step(trainer, tmp_path / "000004-a")
    assert sdk.restored[-1] == f"{path}2-a"
