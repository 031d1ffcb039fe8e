"""Tasks of reasoning-gym as a taskset of verifiers 0.4. `fault`: how the reward fails."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import reasoning_gym
import verifiers.v1 as vf


class LegsConfig(vf.TasksetConfig):
    size: int = 4
    seed: int = 0
    fault: str = ""


class LegsData(vf.TaskData):
    answer: str
    entry: dict[str, Any]
    fault: str


class LegsTask(vf.Task[LegsData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        if self.data.fault == "die":
            os._exit(3)
        if self.data.fault == "hang":
            await asyncio.sleep(600)
        if self.data.fault == "raise":
            raise FileNotFoundError("the tool of the verifier")
        dataset = reasoning_gym.create_dataset("leg_counting", size=1, seed=0)
        return float(dataset.score_answer(trace.last_reply, self.data.entry))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class LegsTaskset(vf.Taskset[LegsTask, LegsConfig]):
    def load(self) -> Iterator[LegsTask]:
        entries = reasoning_gym.create_dataset(
            "leg_counting", size=self.config.size, seed=self.config.seed
        )
        for entry in entries:
            data = {"answer": entry["answer"], "entry": entry, "fault": self.config.fault}
            yield LegsTask(LegsData(prompt=entry["question"], **data), self.config.task)


__all__ = ["LegsTaskset"]
