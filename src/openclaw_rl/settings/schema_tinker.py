"""Schema of the `tinker` settings: the Tinker service, as an engine and as a trainer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openclaw_rl.settings.strict_yaml import Section


class TinkerConfig(Section):
    """The Tinker service, which samples (engine.backend tinker) and trains (train.trainer tinker)."""

    url: str | None = Field(None, description="address of the service; default: that of the SDK")
    api_key: str | None = Field(None, description="key of the service (TINKER_API_KEY)")
    project_id: str | None = Field(
        None, description="project of the service to which sessions belong"
    )
    model: str | None = Field(
        None, description="name of the base model at the service; default: `model.path`"
    )
    call_timeout: float = Field(
        600.0,
        gt=0,
        description="seconds that a call may take, with its retries after time-outs, 429 and 5xx",
    )
    connect_timeout: float = Field(
        30.0,
        gt=0,
        description="seconds after which a service that cannot be reached is reported; it is tried again",
    )
    reduction: Literal["sum", "mean"] = Field(
        "sum",
        description="how the service adds up the losses of tokens. sum: as Tinker does; mean: over the tokens of a "
        "sample, and over samples, as SkyRL's server on JAX does",
    )
    sample_from: Literal["checkpoints", "models"] = Field(
        "checkpoints",
        description="what answers for a version. checkpoints: the weights that training saved, as at Tinker; models: a "
        "model of its own for each loaded version, as SkyRL's server on JAX needs, which samples in the model that "
        "trains, and has no models after a restart",
    )
    budget_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens that training may send in all, the scoring of its batches included; a step or call that "
        "would exceed it does not begin: training stops, and serving does not",
    )
