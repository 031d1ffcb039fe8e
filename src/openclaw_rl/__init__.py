"""OpenClaw-RL: you talk to it, it gets better while you talk."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openclaw_rl.trajectories.sessions import SessionAwareProcessor, compute_gae, inspect_sessions

__version__ = "0.1.0"
__all__ = ["SessionAwareProcessor", "__version__", "compute_gae", "inspect_sessions"]


def __getattr__(name: str) -> Any:
    """What scripts use, imported when it is asked for: `openclaw-rl --help` must not wait for numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from openclaw_rl.trajectories import sessions

    return getattr(sessions, name)
