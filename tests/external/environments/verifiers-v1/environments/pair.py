"""An environment with two agents."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class PairConfig(vf.EnvConfig):
    one: vf.AgentConfig = vf.AgentConfig()
    other: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task: vf.Task, agents: Any) -> None:
        await agents.one.run(task)


class PairTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        yield vf.Task(vf.TaskData(prompt="Talk."), self.config.task)


__all__ = ["PairEnv", "PairTaskset"]
