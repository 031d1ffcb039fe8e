"""The judge of a home with SmolLM2: it reads the states of the base that is served."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.judge.head_world import reacted

from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.judge.head.auto import AutoJudge
from openclaw_rl.judge.head.base_states import BaseStates
from openclaw_rl.judge.head.labelled_reactions import LabelledSet, load_reactions
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.judge.worker import make_judge
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

ROWS = 160
"""Labelled reactions that are read: those of a whole set take minutes without a GPU."""
COMPLAINTS = (
    "I asked about Tuesday and you gave me Thursday.",
    "This still doesn't answer what I asked you.",
    "Did you even read my message?",
    "You left out half of what I needed.",
    "Why do you keep telling me things that I did not ask for?",
    "The second step makes no sense at all.",
    "I can't use any of this.",
    "Please read the question again before you answer.",
    "My boss would laugh at me if I sent that.",
    "I tried it twice and it still breaks.",
    "The dates you gave me are from last year.",
    "I have no idea what I am supposed to do with this.",
)
"""Everyday English. Those that a rule understands are left out."""


def english() -> LabelledSet:
    labelled = load_reactions()
    chosen = [
        one
        for one in labelled.reactions
        if one.language == "en" and one.item.reaction.messages[0]["role"] == "user"
    ]
    return LabelledSet(name="english@test", reactions=chosen[:ROWS])


def test_complaints_that_no_rule_understands_become_negative(
    small: Mapping[str, Any], tmp_path: Path
) -> None:
    config = scratch_config(
        tmp_path, dict(small) | {"judge.kind": "auto", "judge.min_precision": 0.7}
    )
    assert isinstance(make_judge(from_flat({"model.path": config.model.path})), AutoJudge)

    async def scores(served: Any) -> list[int | None]:
        files = ModelFiles.from_config(config.model)
        states = BaseStates(connect_engine(served), files, own_engine=False)
        rules = RulesJudge.load()
        judge = AutoJudge(config, states, rules, folder=tmp_path / "heads", labelled=english())
        out = []
        with Store.open(served.store_path) as store:
            judge.open(store)
            try:
                await judge.prepared_head()
                for number, text in enumerate(COMPLAINTS):
                    item = reacted(f"t{number}", text)
                    if (await rules.judge(item)).score is None:
                        verdict = await judge.judge(item)
                        assert verdict.judge.startswith("head@"), judge.status_note
                        out.append(verdict.score)
            finally:
                await judge.close()
        return out

    with SubprocessSystem(config, command="serve") as system:
        given = asyncio.run(scores(system.config))
    assert len(given) >= 5, "most of them are understood by no rule"
    assert given.count(-1) > len(given) / 2
    assert 1 not in given
