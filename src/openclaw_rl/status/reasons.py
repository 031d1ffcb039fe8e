"""Merge the reasons for which turns are dropped or untrainable."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_DETAILS = re.compile(r": (?![^(]*\))")  # a colon outside of parentheses


def merge_reasons(reasons: Mapping[str, int]) -> dict[str, int]:
    """Merge reasons that differ only in the details after a colon, with one as an example. Most frequent first."""
    kinds: dict[str, Counter[str]] = {}
    for reason, count in reasons.items():
        kinds.setdefault(_DETAILS.split(reason, maxsplit=1)[0], Counter())[reason] += count
    merged = {_reason_label(found): found.total() for found in kinds.values()}
    return dict(sorted(merged.items(), key=lambda item: -item[1]))


def _reason_label(found: Counter[str]) -> str:
    most = found.most_common(1)[0][0]
    return most if len(found) == 1 else ", e.g. ".join(_DETAILS.split(most, maxsplit=1))
