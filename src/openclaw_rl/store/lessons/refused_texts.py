"""Hints that do not teach: the base is known to answer wrong with them in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.examinations import is_any_refused


@dataclass(frozen=True, slots=True)
class RefusedTexts:
    """Reads what the examinations of lessons found. `identity`: of the base."""

    store: Store
    identity: str

    def has_any(self, texts: Sequence[str]) -> bool:
        """Return whether the base answers wrong with these texts in its prompt, or with one of them."""
        with self.store.read() as conn:
            return is_any_refused(conn, texts, self.identity, self.store.secret)
