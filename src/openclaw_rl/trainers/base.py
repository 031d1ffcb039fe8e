"""What a trainer asks of a method. The trainer never looks at a method's name: it sums the terms that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from openclaw_rl.types import Logprobs, Sample, Term


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

    def terms(
        self,
        samples: Sequence[Sample],
        student: Sequence[Logprobs],
        teachers: Sequence[Sequence[Logprobs]],
        memory: Mapping[str, Any],
    ) -> Sequence[Term]:
        """`student`: B times [R], the current policy; `teachers`: B times (hints times [R]), the frozen base."""
        ...

    def remember(self, samples: Sequence[Sample], memory: Mapping[str, Any]) -> dict[str, Any]:
        """The memory after these samples were trained on."""
        ...
