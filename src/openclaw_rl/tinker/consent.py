"""Texts and tokens that leave the machine when Tinker serves or trains, in words. Pure."""

from __future__ import annotations

from openclaw_rl.settings.load import Config

EVENT = "consent.tinker"
"""Kind of the event that records the owner's yes; its `ref` is the address of the service."""
SDK_ADDRESS = "the address of the SDK"
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


def tinker_purposes(config: Config, workers: tuple[str, ...]) -> tuple[str, ...]:
    """Return what these workers use Tinker for: serve, train, both or nothing."""
    serves = "engine" in workers and config.engine.backend == "tinker"
    trains = "train" in workers and config.train.trainer == "tinker"
    return tuple(name for name, used in (("serve", serves), ("train", trains)) if used)


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
