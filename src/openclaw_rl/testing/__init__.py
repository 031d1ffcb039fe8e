"""Public test doubles for the interfaces of `protocols.py`, with scripted content; they pass the same contract tests.

They allow a stage or a plug-in to be tested without a model. `tests/` has examples.
"""

from openclaw_rl.testing.engine import (
    ReplyScript,
    ScriptedEngine,
    ScriptedImageEngine,
    ScriptedStateEngine,
    always_reply,
)
from openclaw_rl.testing.judge import ScriptedJudge
from openclaw_rl.testing.trainer import ScriptedTrainer, write_adapter

__all__ = [
    "ReplyScript",
    "ScriptedEngine",
    "ScriptedImageEngine",
    "ScriptedJudge",
    "ScriptedStateEngine",
    "ScriptedTrainer",
    "always_reply",
    "write_adapter",
]
