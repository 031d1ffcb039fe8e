"""Entry of a method in the registry, and the settings that its factory reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_rl.methods.types import CreditMethod


class MethodSettings(Protocol):
    """The train section of the settings, as far as methods read it. `Any`: `settings/schema.py` has the types."""

    @property
    def method(self) -> Any: ...

    @property
    def loss(self) -> Any: ...

    @property
    def distill(self) -> Any: ...

    @property
    def branches(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSpec:
    """One method by its name. `create` raises `ValueError` for settings that the method cannot use."""

    name: str
    summary: str  # for the settings reference
    create: Callable[[MethodSettings], CreditMethod]
    own_settings: tuple[str, ...] = ()  # keys that no other method reads
