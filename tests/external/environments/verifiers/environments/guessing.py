"""Guess a word in up to three replies; each reply gets a step reward. Its answer cannot be replayed in one reply."""

import verifiers as vf
from datasets import Dataset


class GuessingEnv(vf.MultiTurnEnv):
    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: object
    ) -> vf.Messages:
        state["trajectory"][-1]["reward"] = 0.25
        return [vf.UserMessage(content="No. Guess again.")]


def load_environment() -> vf.Environment:
    rubric = vf.Rubric(funcs=[lambda state: len(state["trajectory"]) / 10])
    return GuessingEnv(
        dataset=Dataset.from_list([{"question": "Guess a word."}]), rubric=rubric, max_turns=3
    )
