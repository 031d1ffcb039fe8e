"""Runs trials of Harbor's own runner in boxes of the owner, under the user's Python. See `request_loop`.

{"id": 1, "hello": {}}                                               -> {"version"}
{"id": 2, "play": {"agent", "task_folder", "agent_seconds", ...}}    -> {"outcome"}
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policy_chat import ask_context
from request_loop import serve_requests

TERMINUS = "terminus-2"
# Terminus-2 summarizes when less than this part of a small context is left.
SUMMARY_SHARE = 4
# Its own default.
SUMMARY_TOKENS = 8000
# Of a time limit: Harbor measures by the clock of the day.
CLOCK_SHARE = 0.99


async def say_hello(_: dict[str, Any]) -> dict[str, Any]:
    """Import the library, so that a missing one is noticed before the first episode."""
    import harbor.trial.trial  # noqa: F401

    return {"version": importlib.metadata.version("harbor")}


async def play_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Let Harbor run a trial: its agent, then its verifier in a fresh box."""
    from harbor.trial.hooks import TrialEvent
    from harbor.trial.trial import Trial

    trial = await Trial.create(await asyncio.to_thread(make_config, asked))

    async def before_tests(_: Any) -> None:
        await trial.agent_environment.move_to_fresh()

    trial.add_hook(TrialEvent.VERIFICATION_START, before_tests)
    result = await trial.run()
    return {
        "outcome": make_outcome(
            result, getattr(trial.agent, "stopped", None), trial.verifier_timeout_sec
        )
    }


def make_config(asked: Mapping[str, Any]) -> Any:
    """Return the configuration of a trial."""
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig

    agent = {"name": asked["agent"]}
    if asked["agent"] == TERMINUS:
        agent = {
            "import_path": "harbor_box:GatewayTerminus",
            "model_name": f"openai/{asked['model']}",
        }
        agent["kwargs"] = terminus_options(asked)
    return TrialConfig(
        task=TaskConfig(path=Path(asked["task_folder"])),
        trials_dir=Path(asked["folder"]) / "trials",
        agent=AgentConfig(override_timeout_sec=asked["agent_seconds"], **agent),
        environment=EnvironmentConfig(import_path="harbor_box:BoxEnvironment"),
    )


def terminus_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Terminus-2: the policy, and how much of it fits into a prompt."""
    options = {
        "api_base": asked["base_url"],
        "llm_kwargs": {"api_key": asked["api_key"]},
        # It needs asciinema, which it would install.
        "record_terminal_session": False,
    }
    context = ask_context(asked)
    options["model_info"] = {
        "max_input_tokens": context,
        "max_output_tokens": context,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    options["proactive_summarization_threshold"] = min(SUMMARY_TOKENS, context // SUMMARY_SHARE)
    return options


def make_outcome(result: Any, stopped: str | None, verifier_seconds: float) -> dict[str, Any]:
    """Return the outcome that a trial's result means. Failures that the agent did not cause are void.

    A verifier that took its whole time gives 0: for the solution it did. Harbor records this only as the first failure.
    """
    failure = result.exception_info
    problem = (
        f"{failure.exception_type}: {failure.exception_message}"[:1000]
        if failure is not None
        else None
    )
    rewards = result.verifier_result.rewards if result.verifier_result is not None else None
    if rewards is None and verifier_time(result) >= CLOCK_SHARE * verifier_seconds:
        return {
            "reward": 0.0,
            "reason": f"the verifier did not end within {verifier_seconds:g} s; {problem}",
        }
    if (failure is not None and not failure.policy.reward_valid) or not rewards:
        return {
            "status": "void",
            "reason": "; ".join(filter(None, (problem, stopped))) or "Harbor gave no reward",
        }
    parts = {name: float(value) for name, value in rewards.items()}
    reward = parts["reward"] if "reward" in parts else sum(parts.values()) / len(parts)
    return {
        "reward": reward,
        "parts": {} if set(parts) == {"reward"} else parts,
        "reason": "; ".join(filter(None, (stopped, problem))) or None,
    }


def verifier_time(result: Any) -> float:
    """Return how long the verifier worked, in seconds."""
    timing = result.verifier
    if timing is None or timing.started_at is None or timing.finished_at is None:
        return 0.0
    return float((timing.finished_at - timing.started_at).total_seconds())


if __name__ == "__main__":
    serve_requests({"hello": say_hello, "play": play_task})
