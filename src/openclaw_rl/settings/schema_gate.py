"""Settings of the gate, which decides whether a new version becomes the head and stays it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openclaw_rl.settings.strict_yaml import Section


class GateConfig(Section):
    """The gate between a step and its publication (docs/concepts/gate.md)."""

    kind: Literal["probes", "numbers", "off"] = Field(
        "probes",
        description="what a step must pass: numbers: the bounds of train.safety; probes: these, and a comparison with "
        "the head on held-out turns and regenerated replies; off: nothing but finite metrics",
    )

    margin: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="how much worse a new version may be, as a mean difference between -1 and 1 of each kind of "
        "evidence",
    )
    error: float = Field(
        0.05, gt=0, lt=1, description="probability of a wrong decision of each sequential test"
    )
    strict: bool = Field(
        False,
        description="also refuse a batch that praises replies which the head finds unlikely, and one whose verdicts "
        "contradict what was learned even if the batches before it do, too. For feedback that cannot be trusted: a "
        "change of taste and plain complaints are refused until they are about half of `held_out`",
    )
    held_out: int = Field(
        32,
        ge=0,
        description="newest judged turns outside of the batch whose likelihood is compared; 0: none",
    )
    prompts: int = Field(
        8,
        ge=0,
        description="newest prompts outside of the batch that the head and the new version answer again",
    )
    probes: str | None = Field(
        None,
        description="YAML file with questions that have a checkable answer; default: the shipped ones",
    )
    budget: int = Field(
        48, ge=0, description="pairs of replies that are compared at most; 0: none are generated"
    )
    wait: float | None = Field(
        None,
        ge=0,
        description="seconds that a new version waits in all while people's replies run; then it is decided on without "
        "the rest of its replies; default: as long as its training step took",
    )
    seconds: float = Field(
        60.0, ge=0, description="time for these replies at most, including the wait for the gateway"
    )
    canary: float = Field(
        0.0,
        ge=0,
        le=0.9,
        description="share of the conversations that a new version answers before it becomes the head, once it has "
        "passed the rest of the gate; people's scores then decide (`gate.max_fall`); 0: none",
    )
    canary_turns: int = Field(
        100, ge=1, description="scored turns of the canary that are compared at most"
    )
    canary_hours: float = Field(
        24.0, ge=0, description="hours after which a canary ends, however few turns it had"
    )
    workers: int = Field(
        2,
        ge=1,
        le=16,
        description="replies for the gate at once; none are generated while a person's reply runs",
    )
    watch: bool = Field(
        True,
        description="watch how people react to the versions that answer, and roll back by itself to the last good "
        "version if satisfaction falls by more than `max_fall`",
    )
    max_fall: float = Field(
        0.15,
        ge=0,
        lt=1,
        description="fall of satisfaction that is accepted: of the share of +1 among +1 and -1",
    )
