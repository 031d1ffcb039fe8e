"""Sessions for scripts and plug-ins: list the turns of trajectory files, and compute advantages along a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.errors import OpenClawError
from openclaw_rl.methods.gae import compute_gae
from openclaw_rl.trajectories import files
from openclaw_rl.trajectories.parser import decode_json, parse_trajectory
from openclaw_rl.trajectories.schema import TrajectoryRefused

_MAX_SHOWN = 5
CONVERSATION_ROLES = ("user", "assistant")


def inspect_sessions(path: str | Path, *, strict: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Return {session_id: [turns as in the file, each with "type"]} of a file or a folder, in order.

    Raises `OpenClawError` when no file is found, and for trajectories that an import would refuse; with `strict` False
    those are omitted.
    """
    turns_by_session: dict[str, list[dict[str, Any]]] = {}
    refused: list[str] = []
    for file in files.find_files([Path(path).expanduser()]):
        for entry in files.read_entries(file):
            try:
                if entry.problem is not None:
                    raise entry.problem
                value = decode_json(entry.raw)
                turns_by_session.setdefault(parse_trajectory(value).session_id, []).extend(
                    value["turns"]
                )
            except TrajectoryRefused as problem:
                refused.append(f"{file}{', ' * bool(entry.place)}{entry.place}: {problem.detail}")
    if refused and strict:
        more = f" and {len(refused) - _MAX_SHOWN} more" * (len(refused) > _MAX_SHOWN)
        raise OpenClawError(
            f"{len(refused)} trajectories are not valid: {'; '.join(refused[:_MAX_SHOWN])}{more}. "
            "`openclaw-rl data check` lists all; strict=False omits them."
        )
    return turns_by_session


class SessionAwareProcessor:
    """Collects interactions by session, and returns sessions with their advantages."""

    def __init__(self, *, gamma: float = 0.99, lambda_: float = 0.95) -> None:
        self.sessions: dict[str, list[Mapping[str, Any]]] = {}
        self._gamma = gamma
        self._lambda = lambda_

    def add_interaction(self, session_id: str, interaction: Mapping[str, Any]) -> None:
        """Add an interaction: `role`, for an assistant `reward`, with a critic also `value`. Raises `ValueError`."""
        role = interaction.get("role")
        if not isinstance(role, str):
            raise ValueError(
                f"session {session_id}: expected an interaction with a role, got {sorted(interaction)}"
            )
        if role == "assistant" and not isinstance(interaction.get("reward"), int | float):
            raise ValueError(
                f"session {session_id}: an assistant's interaction needs a number as its reward"
            )
        self.sessions.setdefault(session_id, []).append(interaction)

    def get_training_trajectories(self, min_turns: int = 3) -> list[dict[str, Any]]:
        """Return sessions with at least `min_turns` interactions of user or assistant; other roles are omitted.

        Each has `session_id`, `interactions` [T] and `advantages` [T]. A user's reward defaults to 0.
        """
        out = []
        for session_id, interactions in self.sessions.items():
            main = [i for i in interactions if i["role"] in CONVERSATION_ROLES]
            if len(main) >= min_turns:
                out.append({"session_id": session_id, **self.compute_trajectory_advantages(main)})
        return out

    def compute_trajectory_advantages(
        self, interactions: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return `interactions` and their `advantages` [T], a list of numbers."""
        rewards = [float(i.get("reward", 0.0)) for i in interactions]
        values = [float(i.get("value", 0.0)) for i in interactions]
        advantages = compute_gae(rewards, values, self._gamma, self._lambda)
        return {"interactions": list(interactions), "advantages": advantages.tolist()}
