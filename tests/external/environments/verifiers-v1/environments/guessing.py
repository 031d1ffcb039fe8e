"""Guess a word in up to three replies, in an environment of its own; the reward is the number of replies."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        yield vf.Task(vf.TaskData(prompt="Guess the word."), self.config.task)


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task: vf.Task, agents: Any) -> None:
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(2):
                if segment.terminated:
                    break
                segment = await interaction.turn("No. Guess again.")
        interaction.trace.record_reward("replies", interaction.trace.num_turns)


__all__ = ["GuessEnv", "GuessTaskset"]
