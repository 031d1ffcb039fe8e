"""OpenClaw-RL: trains a language model on the conversations that it serves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openclaw_rl.compat.script_helpers import log_training_metrics, setup_wandb_logging
    from openclaw_rl.compat.script_helpers_lora import setup_lora_model
    from openclaw_rl.methods.gae import compute_gae
    from openclaw_rl.trajectories.sessions import SessionAwareProcessor, inspect_sessions

__version__ = "0.1.0"
__all__ = [
    "SessionAwareProcessor",
    "__version__",
    "compute_gae",
    "inspect_sessions",
    "log_training_metrics",
    "setup_lora_model",
    "setup_wandb_logging",
]
_MODULES = {
    "methods.gae": ("compute_gae",),
    "trajectories.sessions": ("SessionAwareProcessor", "inspect_sessions"),
    "compat.script_helpers": ("log_training_metrics", "setup_wandb_logging"),
    "compat.script_helpers_lora": ("setup_lora_model",),
}


def __getattr__(name: str) -> Any:
    """Import the exported names on first use, so that `openclaw-rl --help` does not wait for numpy."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"openclaw_rl.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
