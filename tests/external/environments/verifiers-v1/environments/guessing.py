"""Guess a word in up to three replies, in an environment of its own; the reward is the number of replies.

`begin`, `later`: words that make the first prompt and the following messages longer.
"""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessData(vf.TaskData):
    later: int


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    pass


class GuessSettings(vf.TasksetConfig):
    begin: int = 0
    later: int = 0


class GuessTaskset(vf.Taskset[GuessTask, GuessSettings]):
    def load(self) -> Iterator[GuessTask]:
        prompt = "Guess the word." + " word" * self.config.begin
        yield GuessTask(GuessData(prompt=prompt, later=self.config.later), self.config.task)


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task: GuessTask, agents: Any) -> None:
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(2):
                if segment.terminated:
                    break
                segment = await interaction.turn("No. Guess again." + " word" * task.data.later)
        interaction.trace.record_reward("replies", interaction.trace.num_turns)


__all__ = ["GuessEnv", "GuessTaskset"]
