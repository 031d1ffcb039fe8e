"""The baseline b of binary credit: a moving average of the scores per agent, shrunk towards that of all agents.

Pure: it reads the method state (`memory`, a JSON object stored in the policy row) and returns an updated copy.
Source: SPIRAL's role-conditioned advantage (arXiv:2506.24119), with shrinkage for new agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STATE_KEY = "baseline"
# Clients choose agent names, so beyond this the least recently judged is forgotten.
MAX_AGENTS = 4096


class ScoreBaseline:
    """Computes b, and the state after a batch. It never changes the state that it was given."""

    def __init__(self, method_state: Mapping[str, Any], *, decay: float, shrink: float) -> None:
        averages = method_state.get(STATE_KEY) or {}
        self._state = method_state
        self._overall: tuple[float, float] = _parse_average(averages.get("all"))
        self._agents: dict[str, tuple[float, float]] = {
            k: _parse_average(v) for k, v in (averages.get("agents") or {}).items()
        }
        self._decay = decay
        self._shrink = shrink

    def read(self, agent: str) -> float:
        """Return b = w * b_agent + (1 - w) * b_all, with w = n / (n + shrink) and n the agent's total weight so far."""
        value, n = self._agents.get(agent, (0.0, 0.0))
        w = n / (n + self._shrink) if n else 0.0
        return w * value + (1 - w) * self._overall[0]

    def updated_state(self, verdicts: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
        """Return the state after these verdicts (agent, score in {+1, -1}, weight in (0, 1]), applied in order."""
        everyone = self._overall
        agents = dict(self._agents)
        for agent, score, weight in verdicts:
            everyone = self._update_average(everyone, score, weight)
            # pop: the newest come last.
            before = agents.pop(agent, (0.0, 0.0))
            agents[agent] = self._update_average(before, score, weight)
        newest = list(agents.items())[-MAX_AGENTS:]
        state = {"all": list(everyone), "agents": {name: list(pair) for name, pair in newest}}
        return dict(self._state) | {STATE_KEY: state}

    def _update_average(
        self, pair: tuple[float, float], score: float, weight: float
    ) -> tuple[float, float]:
        value, n = pair
        rate = (1 - self._decay) * weight
        return (1 - rate) * value + rate * score, n + weight


def _parse_average(raw: Any) -> tuple[float, float]:
    return (float(raw[0]), float(raw[1])) if raw else (0.0, 0.0)
