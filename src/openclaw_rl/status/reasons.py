"""Group reasons by their codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from openclaw_rl.reasons import Reason, ReasonCode


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Turns with the same code. `label`: the most frequent text, as an example if there are several."""

    code: ReasonCode
    label: str
    count: int


def group_reasons(counts: Mapping[Reason, int]) -> list[ReasonGroup]:
    """Return one group for each code, most frequent first. `counts`: number of turns by reason."""
    details: dict[ReasonCode, Counter[str]] = {}
    for reason, count in counts.items():
        details.setdefault(reason.code, Counter())[reason.detail] += count
    groups = [
        ReasonGroup(code, _make_label(texts), texts.total()) for code, texts in details.items()
    ]
    return sorted(groups, key=lambda group: -group.count)


def _make_label(texts: Counter[str]) -> str:
    example = texts.most_common(1)[0][0]
    return example if len(texts) == 1 else f"{example} (or similar)"
