"""`protocols.Trainer` by another program (docs/guides/other_trainers.md). The train loop keeps all that is promised:

claims, the lease, exactly once, versions, rollback and undo are as with the own trainer. The program gets the samples,
and answers with the weights after its step.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_rl.common.policy_digest import hash_folder, visible_files
from openclaw_rl.errors import ModelError, TrainerAbsent
from openclaw_rl.methods.types import Sample, StepResult
from openclaw_rl.other_trainers.sample_rows import sample_row
from openclaw_rl.other_trainers.trainer_socket import TrainerGone, TrainerLink, TrainerSocket
from openclaw_rl.other_trainers.weight_check import check_weight_files, check_weights
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Logprobs, PolicyRef


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidedStep:
    """A step whose program waits for the answer. `folder`: of its weights; None: the base."""

    number: int
    folder: str | None
    link: TrainerLink


class ExternalTrainer:
    """Hands batches to the program that is connected to the socket of the home."""

    computes_here = False

    def __init__(self, config: Config, base: str) -> None:
        """`base`: path or hub id of the base model. Raises `EngineError` if another worker listens on the home."""
        lora = config.train.lora
        targets = lora.targets if lora.targets == "all-linear" else list(lora.targets)
        self._base = base
        self._answer_within = config.train.answer_within
        self._max_rank = lora.rank if config.train.finetune == "lora" else None
        self._socket = TrainerSocket(
            config.home_dir,
            {
                "base": base,
                "method": config.train.method,
                "finetune": config.train.finetune,
                "lora": {"rank": lora.rank, "alpha": lora.alpha, "targets": targets},
            },
        )
        # Of the weights from which the next step starts.
        self._folder: str | None = None
        self._memory: Mapping[str, Any] = {}
        # Who has these weights.
        self._informed: TrainerLink | None = None
        self._undecided: UndecidedStep | None = None
        self._count = 0

    def load(self, *, folder: str | None, method_state: Mapping[str, Any]) -> None:
        """Say which weights to begin from. Raises `TrainerAbsent`."""
        self.reject_step("the train worker starts again from the weights before")
        self._folder = folder
        self._memory = dict(method_state)
        self._informed = None
        self._send_weights(self._require_trainer())

    def step(self, samples: Sequence[Sample], out: str) -> StepResult:
        """Hand the batch over and wait for the weights. Raises `TrainerAbsent` if the program ends, as if never given.

        Raises `ModelError` if the program refuses the batch, or if what it wrote cannot be loaded.
        """
        link = self._require_trainer()
        if self._informed is not link:
            self._send_weights(link)
        self._count += 1
        Path(out).mkdir(mode=0o700)
        body = {
            "id": self._count,
            "version": _version_of(out),
            "folder": out,
            "rows": [sample_row(s) for s in samples],
        }
        try:
            link.send({"batch": body}, within=self._answer_within)
            answer = self._receive_answer(link, {sample.turn for sample in samples})
        except TrainerGone as error:
            shutil.rmtree(out, ignore_errors=True)
            raise TrainerAbsent(f"the batch is free again: {error}") from error
        # Until the step is confirmed.
        self._informed = None
        self._undecided = UndecidedStep(number=self._count, folder=self._folder, link=link)
        try:
            if answer["kind"] == "failed":
                raise ModelError(
                    f"the trainer {link.name!r} refused the batch: {_to_text(answer.get('reason', ''))}"
                )
            result = self._read_result(samples, out, answer)
        except ModelError:
            shutil.rmtree(out, ignore_errors=True)
            raise
        self._undecided = replace(self._undecided, folder=result.folder or self._folder)
        return result

    def confirm_step(self) -> None:
        """Answer that the weights of its last step are kept: the next step starts from them."""
        step = self._undecided
        self._undecided = None
        if step is None:
            return
        self._folder = step.folder
        # It gets the weights when it is back.
        with contextlib.suppress(TrainerGone):
            step.link.send({"kept": {"id": step.number}}, within=self._answer_within)
            self._informed = step.link

    def reject_step(self, reason: str) -> None:
        """Answer that the weights of its last step are not kept, and why: it gets those before with the next batch."""
        step = self._undecided
        self._undecided = None
        if step is not None:
            with contextlib.suppress(TrainerGone):
                answer = {"rejected": {"id": step.number, "reason": reason}}
                step.link.send(answer, within=self._answer_within)

    def score(self, samples: Sequence[Sample]) -> list[Logprobs]:
        """Raise `ModelError`: `gate.kind: probes`, which needs this, is refused with the settings."""
        raise ModelError("log-probabilities of a trainer that is another program are not known")

    def _require_trainer(self) -> TrainerLink:
        link = self._socket.find_trainer()
        if link is None:
            raise TrainerAbsent(f"no trainer is connected to {self._socket.path.name} in the home")
        return link

    def _send_weights(self, link: TrainerLink) -> None:
        try:
            link.send({"load": {"folder": self._folder}}, within=self._answer_within)
            while (
                link.receive("loaded", "done", "failed", within=self._answer_within)["kind"]
                != "loaded"
            ):
                # An answer that came twice.
                pass
        except TrainerGone as error:
            raise TrainerAbsent(str(error)) from error
        self._informed = link

    def _receive_answer(self, link: TrainerLink, turns: Set[str]) -> dict[str, Any]:
        """Return the answer to this batch. One to an earlier batch came twice, and changes nothing.

        Raises `TrainerGone` for a batch or a turn that the program was not given: the batch is then free again.
        """
        while True:
            answer = link.receive("done", "failed", within=self._answer_within)
            number = answer.get("id")
            if number == self._count:
                unknown = sorted(_read_reasons(answer.get("dropped")).keys() - turns)
                if unknown:
                    link.refuse(
                        f"batch {number} has no turn {unknown[0]!r}; expected ids of its rows"
                    )
                return answer
            if not isinstance(number, int) or not 0 < number < self._count:
                link.refuse(f"it answered for batch {number!r}; expected {self._count}")

    def _read_result(
        self, samples: Sequence[Sample], out: str, answer: Mapping[str, Any]
    ) -> StepResult:
        metrics = _read_metrics(answer.get("metrics"))
        dropped = _read_reasons(answer.get("dropped"))
        if not Path(out).is_dir():
            raise ModelError(
                "the folder of the batch is gone: expected the weights in it, or an empty folder"
            )
        if not visible_files(out):
            left = [sample.turn for sample in samples if sample.turn not in dropped]
            if left:
                raise ModelError(
                    f"the trainer acknowledged {left[0]} and wrote no weights to the folder of the batch"
                )
            # With hidden files.
            shutil.rmtree(out)
            return StepResult(
                folder=None, digest="", metrics=metrics, memory=self._memory, dropped=dropped
            )
        check_weight_files(Path(out), self._max_rank)
        for path in visible_files(out):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        digest, files = hash_folder(out)
        ref = PolicyRef(version=_version_of(out), path=out, digest=digest)
        check_weights(ref, base=self._base, max_rank=self._max_rank)
        return StepResult(
            folder=out,
            digest=digest,
            files=files,
            metrics=metrics,
            memory=self._memory,
            dropped=dropped,
        )

    def close(self) -> None:
        """End the connection and remove the socket."""
        self._socket.close()


def _version_of(folder: str) -> int:
    """Return the version whose weights are written to the folder, which is named after it."""
    return int(Path(folder).name.partition("-")[0])


def _read_metrics(metrics: Any) -> dict[str, float]:
    """Return the numbers among the metrics of a step. NaN and infinity are kept: the gate refuses them."""
    items = metrics.items() if isinstance(metrics, dict) else ()
    return {
        _to_text(name): _to_float(value) for name, value in items if isinstance(value, int | float)
    }


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # An integer of more than 308 digits.
        return math.inf


def _read_reasons(value: Any) -> dict[str, Reason]:
    items = value.items() if isinstance(value, dict) else ()
    return {turn: Reason(ReasonCode.STATED, _to_text(reason)[:500]) for turn, reason in items}


def _to_text(value: Any) -> str:
    """Return text that the store can keep. Half of a surrogate pair, as of a text that was cut, becomes `?`."""
    return str(value).encode(errors="replace").decode()
