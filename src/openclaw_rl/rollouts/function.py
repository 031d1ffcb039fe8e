"""Rollout function of a plug-in file: found by its name; its arguments are chosen by the names of its parameters."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openclaw_rl.plugins.loader import Plugin, load_plugin, signature_of
from openclaw_rl.rollouts.policy_client import PolicyClient
from openclaw_rl.settings.load import Config

ROLLOUT_NAMES = (
    "collect_opd_trajectory",
    "terminal_rollout",
    "gui_rollout",
    "collect_toolcall_trajectory",
    "rollout",
)
MODEL_PARAMETERS = ("model", "agent_model", "vision_model", "student_model")
TASK_KEYS = ("task", "prompt", "task_description")


@dataclass(slots=True, kw_only=True)
class GenerateSample:
    """Argument of a generate function with slime's signature, which fills in the response."""

    prompt: str
    response: str = ""
    reward: float | None = None
    status: str = "pending"
    metadata: dict[str, Any] = field(default_factory=dict)


def append_hint(prompt: str, hint: str) -> str:
    """Return the prompt with the hint appended, as upstream's rollout functions expect it of this argument."""
    return f"{prompt}\n\n[Hint: {hint}]"


class RolloutFunction:
    """Async function from `rollout.function_path`, or from `rollout.generate_path` for one reply per prompt."""

    def __init__(self, config: Config) -> None:
        """Load the file. Raises `PluginError` unless it defines exactly one such function, and it is async."""
        rollout = config.rollout
        setting, path, names = (
            ("rollout.function_path", rollout.function_path, ROLLOUT_NAMES)
            if rollout.function_path is not None
            else ("rollout.generate_path", rollout.generate_path, ("generate",))
        )
        assert path is not None, "the settings are validated"
        self._rollout_config = rollout
        self.plugin: Plugin = load_plugin(
            setting, path, {"MAX_STEPS": rollout.max_turns, "MAX_GUI_STEPS": rollout.max_turns}
        )
        self.name, self._function = self.plugin.single_function(*names)
        self._parameters = signature_of(self.plugin, self.name, self._function).parameters
        if not inspect.iscoroutinefunction(self._function):
            raise self.plugin.make_error(
                f"{self.name} is not an async function, expected `async def {self.name}(...)`"
            )

    async def run(
        self, model: PolicyClient, task: str, more: Mapping[str, Any], out: Path | None = None
    ) -> Any:
        """Call the function; return its result as JSON data. `out`: folder of the results. Raises `PluginError`."""
        arguments = self._build_arguments(model, task, more, out)
        with self.plugin.convert_errors(self.name):
            try:
                result = await self._function(**arguments)
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
                raise RuntimeError("CancelledError without a cancellation from outside") from None
        if isinstance(result, GenerateSample):
            result = asdict(result)
        try:
            return json.loads(json.dumps(result))
        except (TypeError, ValueError, RecursionError) as error:
            kind = type(result).__name__
            raise self.plugin.make_error(
                f"{self.name} returned a {kind} that is not JSON-serializable ({error})"
            ) from None

    def _build_arguments(
        self, model: PolicyClient, task: str, more: Mapping[str, Any], out: Path | None
    ) -> dict[str, Any]:
        """Return the arguments. Raises `PluginError` for a parameter with an unknown name and no default."""
        known: dict[str, Callable[[], Any]] = {
            **dict.fromkeys(MODEL_PARAMETERS, lambda: model),
            **dict.fromkeys(TASK_KEYS, lambda: task),
            "max_turns": lambda: self._rollout_config.max_turns,
            "teacher_augmentation_fn": lambda: append_hint,
            "args": lambda: SimpleNamespace(model=model, **self._rollout_config.model_dump()),
            "sample": lambda: GenerateSample(prompt=task, metadata=dict(more)),
            "sampling_params": lambda: {"temperature": 1.0},
            **({} if out is None else {"out": lambda: out}),
            **{name: lambda value=value: value for name, value in more.items()},  # type: ignore[misc]
        }
        unknown = [
            name
            for name, p in self._parameters.items()
            if name not in known
            and p.default is p.empty
            and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if unknown:
            raise self.plugin.make_error(
                f"{self.name} has unknown parameters: {', '.join(unknown)}. Known are {', '.join(known)}, "
                "and the keys of the task"
            )
        return {name: known[name]() for name in self._parameters if name in known}
