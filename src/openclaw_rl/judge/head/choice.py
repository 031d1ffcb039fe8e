"""Whether `judge.kind auto` is the rules or a head, by the settings alone. Imports no large library."""

from __future__ import annotations

from openclaw_rl.common.assets import STARTER, local_model_folder
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.settings.schema import Config


def rules_reason(config: Config) -> str | None:
    """Return why `judge.kind auto` is the rules with these settings; None if a head reads."""
    if config.judge.path is not None:
        return None
    if local_model_folder(config.model.path) == local_model_folder(STARTER):
        return "the starter is too small to read reactions"
    spec = engine_spec(config)
    if not spec.reads_states:
        return f"{spec.title} gives no hidden states; judge.path names a small model of this machine that reads instead"
    return None


def describe_choice(config: Config) -> str:
    """Return which judge `judge.kind auto` is, and why, for people."""
    reason = rules_reason(config)
    if reason is not None:
        return f"rules, because {reason}"
    base = config.model.path if config.judge.path is None else config.judge.path
    return (
        f"rules where they are proven, else the states of {base}; it reads the labelled reactions at its first start, "
        "minutes without a GPU, and judges more and more meanwhile"
    )
