"""Texts and weights that leave the machine for the Fireworks service, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from openclaw_rl.settings.load import Config

EVENT = "consent.fireworks"
"""Kind of the event that records the owner's yes to serving; its `ref` is the address of the service."""


def serving_text(config: Config) -> str:
    """Return what the service gets when it serves."""
    return (
        f"With these settings the Fireworks service ({config.fireworks.url}) gets:\n"
        "  - to answer: the tokens of every prompt (system text, conversation, tools, lessons) and of every reply;\n"
        "  - the names of the models that answer, and the key.\n"
        "A reaction that is the next message of its conversation is part of the next prompt.\n"
        "Scores, training and the store stay here."
    )


def upload_text(config: Config, version: int, files: Mapping[str, bytes], gpus: int | None) -> str:
    """Return what the service gets when a version is uploaded, and what that may cost."""
    where = f"account {config.fireworks.account} at {config.fireworks.url}"
    lines = [
        f"The Fireworks service ({where}) gets version {version}:",
        *(f"  - {name}, {len(raw)} bytes;" for name, raw in files.items()),
        f"  - the name of its base ({config.fireworks.base_model}), its rank and its target modules.",
        "An adapter can repeat what it was trained on. Conversations and scores are not sent.",
    ]
    if gpus is not None:
        lines.append(
            f"A deployment with {gpus} GPUs is created. It costs money whenever it serves."
        )
    return "\n".join(lines)
