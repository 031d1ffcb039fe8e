"""The specs of engines and trainers by name, built in or from installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from openclaw_rl.common.integrations import (
    ENGINES,
    JUDGES,
    SECTIONS,
    TRAINERS,
    IntegrationGroup,
)
from openclaw_rl.errors import PluginError
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import EngineSpec, JudgeSpec, TrainerSpec
from openclaw_rl.settings.strict_yaml import Section

AnySpec = EngineSpec | TrainerSpec | JudgeSpec
_Spec = TypeVar("_Spec", EngineSpec, TrainerSpec, JudgeSpec)
_AnySection = TypeVar("_AnySection", bound=Section)
CHOICES = {"engine.backend": ENGINES, "train.trainer": TRAINERS, "judge.kind": JUDGES}
"""Settings whose values are names of integrations."""


def engine_spec(config: Config) -> EngineSpec:
    """Return the spec of the engine in the settings. Raises `PluginError` if its package is broken."""
    return find_engine(config.engine.backend)


def trainer_spec(config: Config) -> TrainerSpec:
    """Return the spec of the trainer in the settings. Raises `PluginError` if its package is broken."""
    return find_trainer(config.train.trainer)


def judge_spec(config: Config) -> JudgeSpec:
    """Return the spec of the judge in the settings. Raises `PluginError` if its package is broken."""
    return find_judge(config.judge.kind)


def find_engine(name: str) -> EngineSpec:
    """Return an engine by its name. Raises `ConfigError` or `PluginError`."""
    return _checked_spec(ENGINES, name, EngineSpec)


def find_trainer(name: str) -> TrainerSpec:
    """Return a trainer by its name. Raises `ConfigError` or `PluginError`."""
    return _checked_spec(TRAINERS, name, TrainerSpec)


def find_judge(name: str) -> JudgeSpec:
    """Return a judge by its name. Raises `ConfigError` or `PluginError`."""
    return _checked_spec(JUDGES, name, JudgeSpec)


_FINDERS: Mapping[str, Callable[[str], AnySpec]] = {
    "engine.backend": find_engine,
    "train.trainer": find_trainer,
    "judge.kind": find_judge,
}


def engine_specs() -> Iterator[EngineSpec]:
    """Yield the engines whose packages can be loaded."""
    return _loadable_specs(ENGINES, EngineSpec)


def trainer_specs() -> Iterator[TrainerSpec]:
    """Yield the trainers whose packages can be loaded."""
    return _loadable_specs(TRAINERS, TrainerSpec)


def _loadable_specs(group: IntegrationGroup, kind: type[_Spec]) -> Iterator[_Spec]:
    for name in group.names():
        try:
            yield _checked_spec(group, name, kind)
        except PluginError:
            # Whoever sets this name gets the error.
            continue


def _checked_spec(group: IntegrationGroup, name: str, kind: type[_Spec]) -> _Spec:
    spec: Any = group.load(name)
    if not isinstance(spec, kind):
        raise PluginError(
            f"{group.group} {name}: expected a {kind.__name__}, got {type(spec).__name__}"
        )
    if spec.name != name:
        raise PluginError(
            f"{group.group} {name}: its {kind.__name__} has the name {spec.name!r}. Use one name"
        )
    return spec


def describe_choices(key: str) -> str:
    """Return the integrations that a setting can name, each with its summary, for help and reference."""
    group = CHOICES[key]
    parts = []
    for name in group.names():
        try:
            spec = _FINDERS[key](name)
        except PluginError as error:
            parts.append(f"{name}: {error}")
            continue
        package = group.package_of(name)
        origin = f" (of the package {package})" if package else ""
        parts.append(f"{_marked_name(spec)}{origin}: {spec.summary}")
    return "; ".join(parts)


def name_list(key: str) -> str:
    """Return the names that a setting can have, those that are experimental marked, for one line of help."""
    names = []
    for name in CHOICES[key].names():
        try:
            names.append(_marked_name(_FINDERS[key](name)))
        except PluginError:
            names.append(name)
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _marked_name(spec: AnySpec) -> str:
    return f"{spec.name} (experimental)" if spec.experimental else spec.name


def experimental_parts(config: Config, workers: Sequence[str]) -> list[str]:
    """Return which of the engine, the trainer and the judge that these workers run are experimental."""
    parts = []
    if "engine" in workers and engine_spec(config).experimental:
        parts.append(f"engine.backend {config.engine.backend}")
    if "train" in workers and trainer_spec(config).experimental:
        parts.append(f"train.trainer {config.train.trainer}")
    if "judge" in workers and judge_spec(config).experimental:
        parts.append(f"judge.kind {config.judge.kind}")
    return parts


def setting_keys(spec: EngineSpec | TrainerSpec) -> tuple[str, ...]:
    """Return the settings that only some engines or trainers read, and this one does."""
    if spec.settings or spec.section is None:
        return spec.settings
    model = type(getattr(Config(), spec.section))
    return tuple(f"{spec.section}.{name}" for name in model.model_fields)


def section_of(config: Config, name: str, kind: type[_AnySection]) -> _AnySection:
    """Return a section that a package added, typed. Raises `PluginError` if the settings have no such section."""
    section = getattr(config, name, None)
    if not isinstance(section, kind):
        raise PluginError(
            f"settings section {name}: expected a {kind.__name__} by the entry point {SECTIONS.group}"
        )
    return section
