"""The text that says which files an upload sends to the Fireworks service. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from openclaw_rl.settings.load import Config


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
