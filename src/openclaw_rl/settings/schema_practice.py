"""Settings of practice: learning between conversations what people said in words."""

from __future__ import annotations

from pydantic import Field, field_validator

from openclaw_rl.common.clock_hours import parse_hours
from openclaw_rl.settings.strict_yaml import Section


class PracticeConfig(Section):
    """Practice of lessons between the batches (docs/concepts/practice.md)."""

    enabled: bool = Field(
        True,
        description="while nobody waits for a reply, answer a person's earlier prompts again and learn from the "
        "answers what their lessons say (see also `busy_share`); needs a method that uses hints",
    )
    replies: int = Field(16, ge=2, le=256, description="replies of one practice step")
    teacher_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of them that the frozen base gives, with the lessons in its prompt; without any, a policy "
        "that is sure of itself cannot follow a change of taste",
    )
    contrast_share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="share of all replies, among those of the frozen base, whose prompt has a wish that contradicts "
        "the lesson instead; without any, a policy that has learned a lesson no longer follows another one in its "
        "prompt",
    )
    rehearsal_share: float = Field(
        0.25,
        ge=0,
        le=0.75,
        description="share of the prompts of a round that are short questions which nobody asked, answered by the same "
        "teacher; without any, what the person never asked about is answered wrong more often",
    )
    guidance: float = Field(
        0.5,
        ge=0,
        le=4,
        description="how much more the teacher follows the lessons than its prompt alone makes it: its logits are "
        "(1 + guidance) times those with the lessons less guidance times those without; 0: no more",
    )
    max_divergence: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="share of a lesson's effect on the teacher that is missing in the policy, the mean of two steps, "
        "below which the lesson is learned: practice on it ends",
    )
    step_limit: int = Field(
        24,
        ge=1,
        description="practice steps on the same lessons until a person's next words about them; of a lesson with a "
        "weight below 3 only a share. The first step on their turns since then allows half as many again, each later "
        "one half as many as the one before",
    )
    seconds_per_hour: float = Field(
        1800.0,
        gt=0,
        le=3600,
        description="seconds of the last hour in which replies for practice may be generated and trained on; "
        "3600: no limit",
    )
    busy_share: float = Field(
        0.25,
        ge=0,
        lt=1,
        description="share of the time in which one reply for practice runs beside people's replies, once they have "
        "left it no pause for half a minute; 0: practice waits for a pause, however long that takes",
    )
    hours: str | None = Field(
        None,
        description='part of the day in which it practises, in local time, such as "22:00-06:00"; default: always',
    )

    @field_validator("hours")
    @classmethod
    def _check_hours(cls, value: str | None) -> str | None:
        if value is not None:
            parse_hours(value)
        return value
