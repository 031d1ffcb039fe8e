"""Judge based on a reward model in a plug-in file (docs/guides/plugins.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from openclaw_rl.common.progress import record_progress
from openclaw_rl.judge.reward_model import RewardInput, RewardJudge
from openclaw_rl.plugins.loader import (
    Plugin,
    check_call,
    check_not_async,
    load_plugin,
    signature_of,
)
from openclaw_rl.plugins.source_check import (
    COMPUTE_REWARD,
    GET_REWARD_MODEL,
    reward_definition_error,
)
from openclaw_rl.settings.load import Config

PLUGIN_SETTING = "judge.plugin_path"
BATCH_COMPUTE_REWARDS = "batch_compute_rewards"
METHOD_PARAMETERS = {
    "score": ("prompt", "response", "next_state"),
    COMPUTE_REWARD: ("prompt", "response", "next_feedback"),
}


def make_judge(config: Config) -> RewardJudge:
    """Load the plug-in file and create a judge with its reward model. Raises `PluginError`."""
    path = config.judge.plugin_path
    assert path is not None, "the settings were checked"
    plugin = load_plugin(PLUGIN_SETTING, path)
    answer = _make_reward_function(plugin, _create_model(plugin, config.judge.reward_source))
    return RewardJudge(config, f"plugin:{plugin.path.name}@{plugin.sha256[:8]}", answer)


class _PluginConfig(dict[str, Any]):
    """Config dict that the plug-in receives; a missing key raises `PluginError` with the available ones."""

    def __init__(self, plugin: Plugin, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._plugin = plugin

    def __missing__(self, key: str) -> Any:
        there = ", ".join(self) or "nothing"
        message = f"{GET_REWARD_MODEL}: its config has no {key!r}, only {there}"
        cure = (
            ". Set judge.reward_path (--rm-checkpoint, PRM_MODEL_PATH)"
            if key == "prm_model_path"
            else ""
        )
        raise self._plugin.make_error(message + cure)


def _create_model(plugin: Plugin, reward_path: str | None) -> Any:
    """Return the result of `get_reward_model(config)`, or an instance of the class with `compute_reward`."""
    function = plugin.find_function(GET_REWARD_MODEL)
    if function is not None:
        check_call(plugin, GET_REWARD_MODEL, function, ("config",))
        values = {} if reward_path is None else {"prm_model_path": reward_path}
        with plugin.convert_errors(GET_REWARD_MODEL):
            return function(config=_PluginConfig(plugin, values))
    classes = _reward_classes(plugin)
    if len(classes) != 1:
        raise reward_definition_error(plugin, classes or plugin.defined_names())
    name = classes[0]
    kind = getattr(plugin.module, classes[0])
    check_call(plugin, name, kind, ("checkpoint_path",))
    if reward_path is None:
        raise plugin.make_error(
            f"{name} needs a checkpoint_path: set judge.reward_path (--rm-checkpoint, PRM_MODEL_PATH)"
        )
    with plugin.convert_errors(name):
        return kind(checkpoint_path=reward_path)


def _reward_classes(plugin: Plugin) -> list[str]:
    """Return the classes with `compute_reward`, except base classes of other such classes."""
    defined = {name: getattr(plugin.module, name) for name in plugin.defined_names()}
    with_method = {name: kind for name, kind in defined.items() if hasattr(kind, COMPUTE_REWARD)}
    bases: set[type] = set()
    for kind in with_method.values():
        if isinstance(kind, type):
            bases.update(kind.__mro__[1:])
    return [name for name, kind in with_method.items() if kind not in bases]


def _make_reward_function(
    plugin: Plugin, model: Any
) -> Callable[[Sequence[RewardInput]], list[float]]:
    """Return a function that scores inputs with the model: as a batch if it supports that, else one by one."""
    if isinstance(model, type):
        raise plugin.make_error(
            f"{GET_REWARD_MODEL} returned the class {model.__name__}, expected an instance: {model.__name__}(...)"
        )
    named = f"{type(model).__name__}."
    # A property may raise anything.
    with plugin.convert_errors(f"reading {named.removesuffix('.')}"):
        methods = {
            name: getattr(model, name, None) for name in (BATCH_COMPUTE_REWARDS, *METHOD_PARAMETERS)
        }
    batch = methods[BATCH_COMPUTE_REWARDS]
    if batch is not None:
        signature = signature_of(plugin, named + BATCH_COMPUTE_REWARDS, batch)
        if len(signature.parameters) != 1:
            raise plugin.make_error(
                f"got {named}{BATCH_COMPUTE_REWARDS}{signature}, expected one parameter: a list of items"
            )
        check_not_async(plugin, named + BATCH_COMPUTE_REWARDS, batch)
        return lambda questions: _score_many(
            plugin, named + BATCH_COMPUTE_REWARDS, batch, questions
        )
    for name, parameters in METHOD_PARAMETERS.items():
        one = methods[name]
        if one is not None:
            check_call(plugin, named + name, one, parameters)
            return lambda questions: [
                _score_one(plugin, named + name, one, parameters, q) for q in questions
            ]
    raise plugin.make_error(
        f"{GET_REWARD_MODEL} returned {_describe_value(model)}, expected an object with score or {COMPUTE_REWARD}"
    )


def _score_one(
    plugin: Plugin,
    name: str,
    function: Callable[..., Any],
    parameters: Sequence[str],
    question: RewardInput,
) -> float:
    texts = (question.prompt, question.response, question.outcome)
    record_progress()
    with plugin.convert_errors(name):
        value = function(**dict(zip(parameters, texts, strict=True)))
    return _check_reward(plugin, name, value)


def _score_many(
    plugin: Plugin, name: str, function: Callable[..., Any], questions: Sequence[RewardInput]
) -> list[float]:
    items = [{"prompt": q.prompt, "response": q.response, "feedback": q.outcome} for q in questions]
    with plugin.convert_errors(name):
        values = function(items)
        rewards = values.tolist() if hasattr(values, "tolist") else values
    several = isinstance(rewards, list | tuple) and getattr(values, "ndim", 1) == 1
    if not several or len(rewards) != len(items):
        got = _describe_value(values)
        if isinstance(values, list | tuple):
            got = f"a {type(values).__name__} of {len(values)}"
        raise plugin.make_error(
            f"{name} returned {got}, expected a reward for each of {len(items)} items: ({len(items)},)"
        )
    return [_check_reward(plugin, name, value) for value in rewards]


def _check_reward(plugin: Plugin, name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            # "0.5" is not a number.
            raise TypeError
        reward = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        # RuntimeError: a tensor with several numbers.
        raise plugin.make_error(
            f"{name} returned {_describe_value(value)}, expected a number in [0, 1]"
        ) from None
    if not (math.isfinite(reward) and 0 <= reward <= 1):
        raise plugin.make_error(
            f"{name} returned {reward:g}, expected a number in [0, 1], the range of judge.reward_low"
        )
    return reward


def _describe_value(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return f"a value of type {type(value).__name__}"
