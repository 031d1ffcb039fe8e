"""Texts and tokens that leave the machine when Tinker serves or trains, in words. Pure."""

from __future__ import annotations

from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import ServiceConsent

EVENT = "consent.tinker"
"""Kind of the event that records the owner's yes; its `ref` is the address of the service."""
SDK_ADDRESS = "the address of the SDK"
SERVICE_KEYS = tuple(
    f"tinker.{key}"
    for key in ("url", "api_key", "project_id", "model", "call_timeout", "connect_timeout")
)
"""Settings that the engine and the trainer at Tinker read."""
_SENT = {
    "serve": "to answer: the tokens of every prompt (system text, conversation, tools, lessons) and of every reply",
    "train": "to train: the tokens of the turns that it trains on, also under prompts with the hints of the judge, "
    "with a number for each token, which its score decides",
}
_STAYS = {
    "serve": "Scores and the store stay here.",
    "train": "The store stays here, and copies of the trained weights stay at the service.",
}


def service_address(config: Config) -> str:
    """Return the address that the texts go to, as it is shown and recorded."""
    return config.tinker.url or SDK_ADDRESS


def consent_text(config: Config, purposes: tuple[str, ...]) -> str:
    """Return what goes where."""
    where = service_address(config)
    model = config.tinker.model or config.model.path
    lines = [
        f"With these settings the Tinker service ({where}) gets:",
        *(f"  - {_SENT[purpose]};" for purpose in purposes),
        f"  - the name of the base model ({model}), the key and, if it is set, the project;",
        "  - what its SDK reports about its own calls and errors (TINKER_TELEMETRY=0 turns that off).",
        "A reaction that is the next message of its conversation is part of the next prompt.",
        _STAYS["train" if "train" in purposes else "serve"],
    ]
    return "\n".join(lines)


def tinker_consent(purpose: str) -> ServiceConsent:
    """Return what the owner agrees to before Tinker serves or trains; `purpose`: "serve" or "train"."""
    return ServiceConsent(
        service="Tinker",
        event=EVENT,
        purpose=purpose,
        address=service_address,
        describe=consent_text,
    )
