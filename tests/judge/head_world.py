"""A base whose states say which words a reaction has, and a labelled set over a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openclaw_rl.judge.head.auto import AutoJudge
from openclaw_rl.judge.head.base_states import BaseStates
from openclaw_rl.judge.head.labelled_reactions import LabelledReaction, LabelledSet
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import STARTER, Config
from openclaw_rl.testing import ScriptedStateEngine, always_reply
from openclaw_rl.types import JudgeInput, Reaction

FILES = ModelFiles.from_path(STARTER)
GOOD = ("lovely stuff", "that is what I needed", "works now", "spot on", "you nailed that", "neat")
BAD = ("useless", "you misread me", "still broken", "not my question", "far off", "sloppy")
NEITHER = ("and tomorrow", "what about Rome", "next one", "here is the log", "at noon", "hello")
TOPICS = ("bread", "trains", "poems", "taxes", "birds")


class LinkedStateEngine(ScriptedStateEngine):
    """A scripted engine behind a connection."""

    epoch = 1
    connected = True

    def __init__(self, **options: Any) -> None:
        super().__init__(always_reply(1), **options)

    async def info(self) -> EngineInfo:
        return EngineInfo(
            model="m", context_length=self.context_length, device="cpu", dtype="float32"
        )

    async def wait_ready(self, timeout: float) -> EngineInfo:  # noqa: ASYNC109
        return await self.info()

    async def close(self) -> None:
        pass


def reacted(turn: str, text: str, *, role: str = "user", **message: Any) -> JudgeInput:
    return JudgeInput(
        turn=turn,
        messages=({"role": "user", "content": "Tell me something."},),
        reply={"role": "assistant", "content": "Here you are."},
        reaction=Reaction(
            turn=turn,
            revision=1,
            messages=({"role": role, "content": text} | message,),
            source=None,
            how="exact",
            at=1.0,
        ),
    )


def labelled_set() -> LabelledSet:
    """Each phrase with each topic; a last phrase is praise as often as it is a complaint."""
    reactions = []
    for topic in TOPICS:
        for expected, phrases in ((1, GOOD), (-1, BAD), (None, NEITHER)):
            for phrase in phrases:
                id_ = f"{topic}-{phrase}"
                reactions.append(
                    LabelledReaction(
                        id=id_,
                        language="en",
                        kind="negative" if expected == -1 else "other",
                        expected=expected,
                        item=reacted(id_, f"{phrase}, {topic}"),
                    )
                )
    for number, topic in enumerate(TOPICS * 2):
        id_ = f"doubtful-{number}"
        reactions.append(
            LabelledReaction(
                id=id_,
                language="en",
                kind="other",
                expected=1 if number % 2 else -1,
                item=reacted(id_, f"so so, {topic}"),
            )
        )
    return LabelledSet(name="words@1", reactions=reactions)


def make_judge(
    config: Config, engine: LinkedStateEngine, folder: Path, labelled: LabelledSet | None = None
) -> AutoJudge:
    states = BaseStates(engine, FILES, own_engine=False)
    rules = RulesJudge.load(config.judge.rules_path)
    return AutoJudge(config, states, rules, folder=folder, labelled=labelled or labelled_set())
