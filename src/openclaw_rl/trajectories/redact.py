"""Redact a trajectory: replace personal data and secrets, and remove tokens that would reveal them.

Texts get placeholders (see `pii.py`). Names of sessions, turns and users that have a finding become a keyed digest, so
that equal names stay equal and nobody can guess them by trying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from itertools import groupby
from typing import Any

from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.trajectories.pii import KINDS, scrubbed
from openclaw_rl.trajectories.schema import words_of
from openclaw_rl.types import ExchangeStatus

_NAMES = ("id", "parent", "relation_of", "agent", "user")
_TEXTS = ("sampling", "verdict", "dropped", "error", "untrainable", "unlinked")
_PLAIN = ("prompt", "response")
_TOKENS = ("prompt_ids", "response_ids", "logprobs", "mask", "spans", "identity")
_ROWS_NAMES = ("session_id", "turn_id", "agent")
_ROWS_TEXTS = ("next_state", "untrainable")


class Redactor:
    """Redacts turns and counts findings; a text repeated in a session counts once. `key`: key of the digests."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.counts: Counter[str] = Counter()
        self.turns = self.emptied = 0
        self._known: dict[str, tuple[str, Counter[str]]] = {}
        self._found: set[str] = set()  # kinds found in the current turn

    def begin(self) -> None:
        """Start another session: forget the texts of the previous one."""
        self._known.clear()

    @property
    def told(self) -> str:
        """Readable summary: findings by kind, and how many turns lost their tokens."""
        found = ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS if self.counts[kind]) or "nothing"
        return f"\nredacted: {found}; {self.emptied} of {self.turns} turns left without tokens and log-probabilities"

    def name(self, name: str) -> str:
        """Return a name without findings unchanged, and any other name as a keyed digest."""
        if self.text(name) == name:
            return name
        return f"redacted-{blake2b(name.encode(errors='surrogatepass'), key=self._key, digest_size=8).hexdigest()}"

    def text(self, text: str) -> str:
        if text not in self._known:
            self._known[text] = scrubbed(text)
            self.counts += self._known[text][1]
        clean, counts = self._known[text]
        self._found |= counts.keys()
        return clean

    def turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Redact a turn of `exporter.turn_to_json`, and add the kinds of its findings as `removed`.

        Token arrays are kept only if no text that they encode has changed. They are removed from an unfinished reply,
        because its tokens may hold more than its text.
        """
        self._found = set()
        new: dict[str, Any] = from_json(to_json(turn))
        said: dict[str, Any] = {key: new[key] for key in ("messages", "message", "tools", "template") if key in new}
        clean = {key: self._words(value) for key, value in said.items()}
        whole = new.get("status", ExchangeStatus.DONE.value) == ExchangeStatus.DONE.value
        new |= clean
        if "messages" in clean:
            words = words_of(clean["messages"], clean["message"])
            new = {key: value for key, value in new.items() if key not in _PLAIN or key in words} | words
        self._rest(new)
        self.turns += 1
        if "prompt_ids" in new and (clean != said or not whole):
            self.emptied += 1
            new = {key: value for key, value in new.items() if key not in _TOKENS} | {"off_policy": True}
        removed = [kind for kind in KINDS if kind in self._found]
        return new | ({"removed": removed} if removed else {})

    def row(self, row: Mapping[str, Any], clean: Mapping[str, Any]) -> dict[str, Any] | None:
        """Redact a flat row; None if its tokens were removed. `clean`: the same turn from `redact_turn`."""
        if "prompt_ids" not in clean:
            return None
        names = {key: self.name(row[key]) for key in _ROWS_NAMES}
        texts = {key: self.text(row[key]) for key in _ROWS_TEXTS}
        return {**row, **names, **texts, "hints_json": self._json(row["hints_json"])}

    def _rest(self, new: dict[str, Any]) -> None:
        """Redact all fields except prompt and reply, in place."""
        for key in _NAMES:
            if isinstance(new.get(key), str):
                new[key] = self.name(new[key])
        for key in _TEXTS:
            if key in new:
                new[key] = self._any(new[key])
        if "next_state" in new:
            new["next_state"] = self._words(new["next_state"])
        if (reaction := new.get("reaction")) and reaction.get("source"):
            reaction["source"] = self.name(reaction["source"])
        for given in new.get("feedback", ()):
            given |= {key: self.text(given[key]) for key in ("comment", "correction") if key in given}
            given["id"] = self.name(given["id"])

    # Values of any shape.

    def _words(self, value: Any) -> Any:
        """Redact a list of messages, one message, or tools and template variables."""
        if isinstance(value, list):
            return [self._words(item) for item in value]
        clean = self._any(value)
        if isinstance(clean, dict) and isinstance(clean.get("content"), list):
            clean["content"] = self._parts(value["content"])
        return clean

    def _parts(self, parts: list[Any]) -> list[Any]:
        """Redact content parts. A model reads them joined, so text parts with a finding across them are merged."""
        out: list[Any] = []
        for is_text, run in groupby(parts, key=lambda p: isinstance(p, dict) and isinstance(p.get("text"), str)):
            given = list(run)
            clean = [self._any(part) for part in given]
            whole = "".join(part["text"] for part in given) if is_text else ""
            if is_text and self.text(whole) != whole:
                joined = "".join(part["text"] for part in clean)
                clean = clean if self.text(joined) == joined else [clean[0] | {"text": self.text(whole)}]
            out += clean
        return out

    def _any(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._any(item) for item in value]
        if not isinstance(value, dict):
            return value
        out: dict[Any, Any] = {}
        for key, item in value.items():
            arguments = key == "arguments" and isinstance(item, str)
            out[self._key_of(key, out)] = self._json(item) if arguments else self._any(item)
        return out

    def _key_of(self, key: Any, taken: Mapping[Any, Any]) -> Any:
        """Redact a key; a suffix keeps keys distinct that redaction made equal."""
        if not isinstance(key, str):
            return key
        clean = self.text(key)
        return clean if clean not in taken else f"{clean} {len(taken)}"

    def _json(self, text: str) -> str:
        """Redact a text; JSON text stays JSON."""
        try:
            value = from_json(text.encode())
        except (ValueError, RecursionError):
            return self.text(text)
        clean = self._any(value)
        return text if clean == value else to_json(clean).decode()
