"""What the doubles do beyond the contract (`test_contract.py`): their scripted failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from openclaw_rl.common.policy_digest import digest_of_folder
from openclaw_rl.errors import EngineError, EngineGone, JudgeError
from openclaw_rl.methods.types import Sample
from openclaw_rl.testing import ScriptedEngine, ScriptedJudge, ScriptedTrainer, always_reply
from openclaw_rl.types import Generation, JudgeInput, Reaction, Sampling

CALL = Generation(
    id="g",
    version=0,
    prompt_ids=np.arange(3),
    sampling=Sampling(max_tokens=5),
    stop_token_ids=(2,),
    top_logprobs=0,
)


async def ids(engine: ScriptedEngine) -> list[int]:
    return [i async for chunk in engine.generate(CALL) for i in chunk.token_ids]


def test_an_engine_answers_refuses_dies_and_comes_back() -> None:
    engine = ScriptedEngine(always_reply(7, 8, 2))
    assert asyncio.run(ids(engine)) == [7, 8, 2]
    engine.refuse = "no memory today"
    with pytest.raises(EngineError, match="no memory today"):
        asyncio.run(ids(engine))
    engine.refuse, engine.gone_at = None, 2

    async def until_gone() -> list[int]:
        got: list[int] = []
        with pytest.raises(EngineGone):
            await _into(engine, got)
        return got

    assert asyncio.run(until_gone()) == [7, 8]
    assert engine.running.total() == 0
    engine.revive()
    assert asyncio.run(ids(engine)) == [7, 8, 2]
    assert len(engine.calls) == 4


async def _into(engine: ScriptedEngine, got: list[int]) -> None:
    async for chunk in engine.generate(CALL):
        got += chunk.token_ids


def item(revision: int = 3) -> JudgeInput:
    reaction = Reaction(turn="t", revision=revision, messages=(), source=None, how="exact", at=1.0)
    return JudgeInput(
        turn="t", messages=(), reply={"role": "assistant", "content": "x"}, reaction=reaction
    )


def test_a_judge_scores_hints_abstains_and_fails() -> None:
    opinions = iter([1, (-1, "be brief"), None, JudgeError("busy")])
    judge = ScriptedJudge(lambda _: next(opinions))
    verdicts = [asyncio.run(judge.judge(item())) for _ in range(3)]
    assert [(v.score, v.hints, v.revision) for v in verdicts] == [
        (1, (), 3),
        (-1, ("be brief",), 3),
        (None, (), 3),
    ]
    with pytest.raises(JudgeError, match="busy"):
        asyncio.run(judge.judge(item()))
    assert len(judge.seen) == 4


def test_a_trainer_writes_folders_that_differ_and_resumes(tmp_path: Path) -> None:
    one = np.ones(1, dtype=np.float32)
    sample = Sample(
        turn="t", agent="", prompt_ids=np.ones(1, dtype=np.int32), response_ids=np.ones(1, dtype=np.int32),
        logprobs=-one, mask=one.astype(bool), temperature=1.0, version=0, reward=1.0,
    )  # fmt: skip
    trainer = ScriptedTrainer()
    trainer.load(folder=None, method_state={"baseline": 0.5})
    first, second = (trainer.step([sample], str(tmp_path / name)) for name in "ab")
    assert first.digest == digest_of_folder(tmp_path / "a") != second.digest
    assert (second.memory["steps"], second.memory["baseline"], second.metrics["turns"]) == (
        2,
        0.5,
        1.0,
    )
    likelier = ScriptedTrainer(gain=lambda sample: 0.5)
    likelier.load(folder=second.folder, method_state=second.memory)
    np.testing.assert_allclose(likelier.score([sample])[0], sample.logprobs + 1.0)
    again = ScriptedTrainer(lambda samples: None)
    again.load(folder=second.folder, method_state=second.memory)
    nothing = again.step([sample], str(tmp_path / "c"))
    assert (again.steps, nothing.folder, list(nothing.dropped)) == (2, None, ["t"])
    assert not (tmp_path / "c").exists()
