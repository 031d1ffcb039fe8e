"""A judge with scripted opinions."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_rl.errors import JudgeError
from openclaw_rl.types import JudgeInput, Verdict, Vote


class ScriptedJudge:
    """`protocols.Judge` from a function that returns a score (None abstains), (score, hint), or an error to raise."""

    name = "scripted"

    def __init__(
        self, opinion: Callable[[JudgeInput], int | tuple[int | None, str] | JudgeError | None]
    ) -> None:
        self.opinion = opinion
        self.seen: list[JudgeInput] = []

    async def judge(self, item: JudgeInput) -> Verdict:
        """See `protocols.Judge.judge`."""
        self.seen.append(item)
        opinion = self.opinion(item)
        if isinstance(opinion, JudgeError):
            raise opinion
        score, hint = opinion if isinstance(opinion, tuple) else (opinion, None)
        return Verdict(
            turn=item.turn,
            revision=item.reaction.revision,
            judge=self.name,
            score=score,
            votes=(Vote(score=score, hint=hint),),
            hints=(hint,) if hint else (),
            at=item.reaction.at,
        )
