"""Schema of the `fireworks` settings: the Fireworks service, as an engine that only serves."""

from __future__ import annotations

from pydantic import Field

from openclaw_rl.settings.strict_yaml import Section


class FireworksConfig(Section):
    """The Fireworks service, which serves a base and uploaded versions (engine.backend fireworks)."""

    url: str = Field("https://api.fireworks.ai", description="address of the service")
    api_key: str | None = Field(None, description="key of the service (FIREWORKS_API_KEY)")
    account: str | None = Field(
        None, description="id of the account to which versions are uploaded"
    )
    base_model: str | None = Field(
        None,
        description="name of the base model at the service, e.g. accounts/fireworks/models/qwen3-8b; the same "
        "weights, tokenizer and template as `model.path`",
    )
    deployment: str | None = Field(
        None,
        description="id of the deployment that serves base and versions, with add-ons enabled; default: serverless",
    )
