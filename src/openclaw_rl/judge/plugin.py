"""Judge based on a reward model in a plug-in file (docs/guides/plugins.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from openclaw_rl.judge.reward_model import Question, RewardJudge
from openclaw_rl.plugins.loader import Plugin, check_call, check_plain, load, signature_of
from openclaw_rl.settings.load import Config

SETTING = "judge.plugin_path"
MAKE, ONE, BATCH = "get_reward_model", "compute_reward", "batch_compute_rewards"
PARAMETERS = {"score": ("prompt", "response", "next_state"), ONE: ("prompt", "response", "next_feedback")}


def make(config: Config) -> RewardJudge:
    """Load the plug-in file and create a judge with its reward model. Raises `PluginError`."""
    path = config.judge.plugin_path
    assert path is not None, "the settings were checked"
    plugin = load(SETTING, path)
    answer = _answer(plugin, _model(plugin, config.judge.reward_source))
    return RewardJudge(config, f"plugin:{plugin.path.name}@{plugin.sha256[:8]}", answer)


class _Given(dict[str, Any]):
    """Config dict that the plug-in receives; a missing key raises `PluginError` with the available ones."""

    def __init__(self, plugin: Plugin, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._plugin = plugin

    def __missing__(self, key: str) -> Any:
        there = ", ".join(self) or "nothing"
        words = f"{MAKE}: its config has no {key!r}, only {there}"
        cure = ". Set judge.reward_path (--rm-checkpoint, PRM_MODEL_PATH)" if key == "prm_model_path" else ""
        raise self._plugin.error(words + cure)


def _model(plugin: Plugin, reward_path: str | None) -> Any:
    """Return the result of `get_reward_model(config)`, or an instance of the class with `compute_reward`."""
    if (function := plugin.find(MAKE)) is not None:
        check_call(plugin, MAKE, function, ("config",))
        values = {} if reward_path is None else {"prm_model_path": reward_path}
        with plugin.running(MAKE):
            return function(config=_Given(plugin, values))
    classes = _classes(plugin)
    if len(classes) != 1:
        found = " and ".join(classes) or ", ".join(plugin.defined()) or "nothing"
        raise plugin.error(f"expected {MAKE}(config), or one class with {ONE}; it defines {found}")
    name, kind = classes[0], getattr(plugin.module, classes[0])
    check_call(plugin, name, kind, ("checkpoint_path",))
    if reward_path is None:
        raise plugin.error(f"{name} needs a checkpoint_path: set judge.reward_path (--rm-checkpoint, PRM_MODEL_PATH)")
    with plugin.running(name):
        return kind(checkpoint_path=reward_path)


def _classes(plugin: Plugin) -> list[str]:
    """Return the classes with `compute_reward`, except base classes of other such classes."""
    found = [name for name in plugin.defined() if hasattr(getattr(plugin.module, name), ONE)]
    kinds = [kind for name in found if isinstance(kind := getattr(plugin.module, name), type)]
    bases = {base for kind in kinds for base in kind.__mro__[1:]}
    return [name for name in found if getattr(plugin.module, name) not in bases]


def _answer(plugin: Plugin, model: Any) -> Callable[[Sequence[Question]], list[float]]:
    """Return a function that scores inputs with the model: as a batch if it supports that, else one by one."""
    if isinstance(model, type):
        raise plugin.error(f"{MAKE} returned the class {model.__name__}, expected an instance: {model.__name__}(...)")
    named = f"{type(model).__name__}."
    with plugin.running(f"reading {named.removesuffix('.')}"):  # a property may raise anything
        there = {name: found for name in (BATCH, *PARAMETERS) if (found := getattr(model, name, None)) is not None}
    if (batch := there.get(BATCH)) is not None:
        signature = signature_of(plugin, named + BATCH, batch)
        if len(signature.parameters) != 1:
            raise plugin.error(f"got {named}{BATCH}{signature}, expected one parameter: a list of items")
        check_plain(plugin, named + BATCH, batch)
        return lambda questions: _many(plugin, named + BATCH, batch, questions)
    for name, parameters in PARAMETERS.items():
        if (one := there.get(name)) is not None:
            check_call(plugin, named + name, one, parameters)
            return lambda questions: [_one(plugin, named + name, one, parameters, q) for q in questions]
    raise plugin.error(f"{MAKE} returned {_shown(model)}, expected an object with score or {ONE}")


def _one(
    plugin: Plugin, name: str, function: Callable[..., Any], parameters: Sequence[str], question: Question
) -> float:
    words = (question.prompt, question.response, question.outcome)
    with plugin.running(name):
        value = function(**dict(zip(parameters, words, strict=True)))
    return _reward(plugin, name, value)


def _many(plugin: Plugin, name: str, function: Callable[..., Any], questions: Sequence[Question]) -> list[float]:
    items = [{"prompt": q.prompt, "response": q.response, "feedback": q.outcome} for q in questions]
    with plugin.running(name):
        values = function(items)
        found = values.tolist() if hasattr(values, "tolist") else values
    several = isinstance(found, list | tuple) and getattr(values, "ndim", 1) == 1
    if not several or len(found) != len(items):
        got = _shown(values) if not isinstance(values, list | tuple) else f"a {type(values).__name__} of {len(values)}"
        raise plugin.error(f"{name} returned {got}, expected a reward for each of {len(items)} items: ({len(items)},)")
    return [_reward(plugin, name, value) for value in found]


def _reward(plugin: Plugin, name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # "0.5" is not a number
        reward = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor with several numbers
        raise plugin.error(f"{name} returned {_shown(value)}, expected a number in [0, 1]") from None
    if not (math.isfinite(reward) and 0 <= reward <= 1):
        raise plugin.error(f"{name} returned {reward:g}, expected a number in [0, 1], the range of judge.reward_low")
    return reward


def _shown(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return f"a value of type {type(value).__name__}"
