"""Phrases of the simulated user about a reply, read from `assets/evals/phrases.yaml`.

Each pool has two parts. `plain` phrases contain words that the shipped rules match; `subtle` phrases say the same
without any of them. A test checks both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.evals.styles import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class PhrasePool:
    """Phrases for one reaction; at least as many `subtle` as `plain` ones."""

    plain: Sequence[str]
    subtle: Sequence[str]


_TABLES = read_yaml_asset("evals/phrases.yaml")
PRAISE: Mapping[Value, PhrasePool] = {
    value: PhrasePool(**pool) for value, pool in _TABLES["praise"].items()
}
COMPLAINT: Mapping[Value, PhrasePool] = {
    value: PhrasePool(**pool) for value, pool in _TABLES["complaint"].items()
}
GENERIC_PRAISE = PhrasePool(**_TABLES["generic_praise"])
GENERIC_COMPLAINT = PhrasePool(**_TABLES["generic_complaint"])
WRONG_ANSWER = PhrasePool(**_TABLES["wrong_answer"])
INSTRUCTIONS: Mapping[Value, Sequence[str]] = _TABLES["instructions"]
"""Wordings of each instruction. The first one is the hint of the shipped rules."""
