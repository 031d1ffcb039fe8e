"""Personal tasks of an evaluation: held-out problems, whose first replies the people of the protocol read."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from openclaw_rl.common.assets import STARTER, local_model_folder
from openclaw_rl.errors import ConfigError
from openclaw_rl.evals.personalisation.people import (
    PEOPLE,
    ModelPerson,
    PersonEndpoint,
    RulePerson,
    SimulatedPerson,
)
from openclaw_rl.evals.tasks import EvalTask
from openclaw_rl.evals.toy_world import Question, held_out_questions
from openclaw_rl.judge.llm import MajorityVote
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Message, Vote

PERSONAL_KIND = "personal"
KIND_PREFIX = "personal:"
_PROBLEMS = 20
_MAX_TOKENS = 512


def personal_kinds() -> list[str]:
    """Return the kinds of the personal tasks, one for each person."""
    return [KIND_PREFIX + name for name in PEOPLE]


def _problems() -> Sequence[Question]:
    return held_out_questions(_PROBLEMS, random.Random(0))


def personal_tasks() -> list[EvalTask]:
    """Return the held-out problems, the same for each person. Correctness is measured beside satisfaction."""
    return [
        EvalTask(
            name=question.text,
            messages=[{"role": "user", "content": question.text}],
            properties={"reference_answer": [question.fact.answer]},
            max_tokens=_MAX_TOKENS,
        )
        for question in _problems()
    ]


class PersonGrader:
    """A person as a grader of first replies, with the methods of `ReplyGrader`."""

    def __init__(self, person: SimulatedPerson, name: str) -> None:
        self._person = person
        self.name = name
        self._questions = {question.text: question for question in _problems()}

    async def grade_reply(
        self, messages: Sequence[Message], reply: Message, references: Sequence[str]
    ) -> MajorityVote:
        """Return +1 if the reply satisfies the person, else -1, with what the person says. Raises `JudgeError`."""
        question = self._questions[str(messages[-1]["content"])]
        reaction = await self._person.react_to(question, str(reply.get("content") or ""))
        score = 1 if reaction.satisfied else -1
        return MajorityVote(
            score=score, reason=reaction.text, votes=(Vote(score=score, reason=reaction.text),)
        )


@contextlib.asynccontextmanager
async def open_people(
    config: Config, kinds: Collection[str], endpoint: PersonEndpoint | None
) -> AsyncIterator[Mapping[str, PersonGrader]]:
    """Yield the graders of those of the kinds that are personal. `endpoint`: None for people by rules.

    Raises `ConfigError` for rules with another model than the starter: their word lists fit its sentences alone.
    """
    profiles = {}
    for name, profile in PEOPLE.items():
        kind = KIND_PREFIX + name
        if kind in kinds:
            profiles[kind] = profile
    if endpoint is None:
        if profiles and local_model_folder(config.model.path) != local_model_folder(STARTER):
            raise ConfigError(
                f"the personal tasks need people who understand the replies of {config.model.path}: name a model that "
                "simulates them with --person-url and --person-model. The people by rules know the starter alone."
            )
        yield {
            k: PersonGrader(RulePerson(taste=one.taste, seed=0), f"{k} by rules")
            for k, one in profiles.items()
        }
        return
    client = endpoint.make_client(config)
    try:
        yield {
            k: PersonGrader(ModelPerson(one, client), f"{k} by {endpoint.model}")
            for k, one in profiles.items()
        }
    finally:
        await client.close()
