"""A trajectory without what names a person or opens a door, and with no tokens that would tell it.

What people and models wrote gets placeholders (`scrubbing.py`). Names that hold such a thing (of a session, a turn, a
user) become a keyed digest, so that what belonged together still does, and nobody can try out who it was.
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
    """Counts what it takes out; a text that is said again in the same session counts once. `key`: of the digests."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.counts: Counter[str] = Counter()
        self.turns = self.emptied = 0
        self._known: dict[str, tuple[str, Counter[str]]] = {}
        self._found: set[str] = set()  # in the turn at hand

    def begin(self) -> None:
        """Another session: the texts of the one before are held no longer."""
        self._known.clear()

    @property
    def told(self) -> str:
        """For a person: what was taken out, and of how many turns the tokens went with it."""
        found = ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS if self.counts[kind]) or "nothing"
        return f"\ntaken out: {found}; {self.emptied} of {self.turns} turns left without tokens and log-probabilities"

    def name(self, name: str) -> str:
        """A name that gives nothing away, and another for every name that does."""
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
        """A turn as `exporting.turn_of` gives it. `removed`: the kinds that were in it.

        Token arrays stay where every word that they were made of did. Of a reply that broke off they may hold more
        than its words.
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
        """A flat row; `clean`: the same turn as `turn` gives it. None: its tokens had to go."""
        if "prompt_ids" not in clean:
            return None
        names = {key: self.name(row[key]) for key in _ROWS_NAMES}
        texts = {key: self.text(row[key]) for key in _ROWS_TEXTS}
        return {**row, **names, **texts, "hints_json": self._json(row["hints_json"])}

    def _rest(self, new: dict[str, Any]) -> None:
        """What was not said in the prompt or the reply, in place."""
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
        """Messages, one of them, or what a model is told beside them."""
        if isinstance(value, list):
            return [self._words(item) for item in value]
        clean = self._any(value)
        if isinstance(clean, dict) and isinstance(clean.get("content"), list):
            clean["content"] = self._parts(value["content"])
        return clean

    def _parts(self, parts: list[Any]) -> list[Any]:
        """The parts of a content. A model reads them joined: what only stands in them together makes them one."""
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
        """Two keys that are the same now stay two."""
        if not isinstance(key, str):
            return key
        clean = self.text(key)
        return clean if clean not in taken else f"{clean} {len(taken)}"

    def _json(self, text: str) -> str:
        """A text that is JSON stays JSON."""
        try:
            value = from_json(text.encode())
        except (ValueError, RecursionError):
            return self.text(text)
        clean = self._any(value)
        return text if clean == value else to_json(clean).decode()
