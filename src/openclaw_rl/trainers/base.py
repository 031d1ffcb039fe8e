"""What a trainer asks of a method. The trainer never looks at a method's name: it sums the terms that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.credit import AnyTerm, Evidence, Sample


class Method(Protocol):
    """Pure credit (see `openclaw_rl.methods`)."""

    @property
    def uses_reward(self) -> bool:
        """A sample with a score carries signal."""
        ...

    @property
    def uses_hints(self) -> bool:
        """A sample with a hinted prompt carries signal: the trainer scores its teachers."""
        ...

    @property
    def top(self) -> int:
        """How many of the likeliest tokens at each position it wants to see (`Evidence.tops`); 0: none."""
        ...

    def terms(self, evidence: Evidence, memory: Mapping[str, Any]) -> Sequence[AnyTerm]:
        """The terms of the loss on these samples."""
        ...

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """The memory after these samples were trained on."""
        ...
