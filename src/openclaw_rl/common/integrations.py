"""Engines, trainers and other integrations by name: the built-in ones, and those of installed packages.

A package adds one by an entry point. Names come from the metadata of packages, and a module is imported only when its
entry is used, so that `--help` stays fast and a broken package harms nobody who does not use it.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import pkgutil
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from openclaw_rl.errors import ConfigError, PluginError

_MIN_SIMILARITY = 0.6  # ratio of difflib from which a name is proposed


class IntegrationGroup:
    """Integrations of one kind. A package cannot replace a built-in one: its entry of the same name is ignored."""

    def __init__(self, group: str, noun: str, built_in: Mapping[str, str]) -> None:
        """`group`: name of the entry points; `noun`: for messages; `built_in`: name -> `module:attribute`."""
        self.group = group
        self._noun = noun
        self.built_in = dict(built_in)
        self._loaded: dict[str, Any] = {}

    @cached_property
    def _entry_points(self) -> Mapping[str, importlib.metadata.EntryPoint]:
        found = importlib.metadata.entry_points(group=self.group)
        return {entry.name: entry for entry in sorted(found) if entry.name not in self.built_in}

    def names(self) -> tuple[str, ...]:
        """Return the names of the built-in integrations, then of those that packages add."""
        return (*self.built_in, *self._entry_points)

    def is_known(self, name: str) -> bool:
        """Return whether there is an integration of this name. Metadata is read only for a name not built in."""
        return name in self.built_in or name in self._entry_points

    def check_name(self, name: str) -> str:
        """Return the name. Raises `ValueError` if there is no such integration."""
        if not self.is_known(name):
            raise ValueError(self.unknown_reason(name))
        return name

    def unknown_reason(self, name: str) -> str:
        """Return what was expected in place of an unknown name, with a similar one."""
        *first, last = (repr(known) for known in self.names())
        near = difflib.get_close_matches(name, self.names(), 1, _MIN_SIMILARITY)
        proposal = f". Did you mean {near[0]!r}?" if near else ""
        return (
            f"Input should be {', '.join(first)} or {last}{proposal}"
            if first
            else f"Input should be {last}{proposal}"
        )

    def package_of(self, name: str) -> str | None:
        """Return the package that adds an integration; None for a built-in one."""
        entry = self._entry_points.get(name)
        return None if entry is None or entry.dist is None else entry.dist.name

    def load(self, name: str) -> Any:
        """Import an integration. Raises `ConfigError` for an unknown name, `PluginError` if its package is broken."""
        if name not in self._loaded:
            self._loaded[name] = self._import_entry(name)
        return self._loaded[name]

    def _import_entry(self, name: str) -> Any:
        if name in self.built_in:
            return pkgutil.resolve_name(self.built_in[name])
        if name not in self._entry_points:
            raise ConfigError(f"{self._noun} {name!r} is unknown. {self.unknown_reason(name)}")
        entry = self._entry_points[name]
        try:
            return entry.load()
        except Exception as error:  # code of others, which may raise anything
            raise PluginError(
                f"{self._noun} {name} of the package {self.package_of(name)} cannot be loaded from {entry.value} "
                f"({type(error).__name__}: {error}). Repair the package, or uninstall it"
            ) from error


ENGINES = IntegrationGroup(
    "openclaw_rl.engines",
    "engine",
    {
        "embedded": "openclaw_rl.engines.embedded.spec:SPEC",
        "vllm": "openclaw_rl.engines.remote.vllm_spec:SPEC",
        "sglang": "openclaw_rl.engines.remote.sglang_spec:SPEC",
        "openai": "openclaw_rl.engines.remote.openai_spec:SPEC",
        "tinker": "openclaw_rl.engines.tinker.spec:SPEC",
        "fireworks": "openclaw_rl.engines.remote.fireworks_spec:SPEC",
    },
)
TRAINERS = IntegrationGroup(
    "openclaw_rl.trainers",
    "trainer",
    {
        "local": "openclaw_rl.train.local_spec:SPEC",
        "external": "openclaw_rl.other_trainers.spec:SPEC",
        "tinker": "openclaw_rl.learner.tinker.spec:SPEC",
    },
)
JUDGES = IntegrationGroup(
    "openclaw_rl.judges",
    "judge",
    {
        "auto": "openclaw_rl.judge.specs:AUTO",
        "rules": "openclaw_rl.judge.specs:RULES",
        "llm": "openclaw_rl.judge.specs:LLM",
        "classifier": "openclaw_rl.judge.specs:CLASSIFIER",
        "plugin": "openclaw_rl.judge.specs:PLUGIN",
    },
)
TASK_SOURCES = IntegrationGroup("openclaw_rl.sources", "source of tasks", {})
"""Sources of tasks that packages add; the built-in ones are in `environments/registry.py`."""
SECTIONS = IntegrationGroup("openclaw_rl.settings", "settings section", {})
"""Sections of the settings that packages add, as classes derived from `settings.strict_yaml.Section`."""
