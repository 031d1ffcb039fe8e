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

from openclaw_rl.common.images.image_prompt import image_digest
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.trajectories.pii import KINDS, scrub_text
from openclaw_rl.trajectories.schema import prompt_and_response
from openclaw_rl.types import ExchangeStatus

_NAME_KEYS = ("id", "parent", "relation_of", "agent", "user")
_TEXT_KEYS = ("sampling", "verdict", "dropped", "error", "untrainable", "unlinked")
# What the token arrays encode.
_ENCODED_KEYS = ("messages", "message", "tools", "template", "lessons")
_SUMMARY_KEYS = ("prompt", "response")
_TOKEN_KEYS = ("prompt_ids", "response_ids", "logprobs", "mask", "spans", "identity")
_ROW_NAME_KEYS = ("session_id", "turn_id", "agent")
_ROW_TEXT_KEYS = ("untrainable",)


class TrajectoryRedactor:
    """Redacts turns and counts findings; a text repeated in a session counts once. `key`: key of the digests."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.counts: Counter[str] = Counter()
        self.turns = self.turns_without_tokens = 0
        self._redacted: dict[str, tuple[str, Counter[str]]] = {}
        # Kinds found in the current turn.
        self._kinds_in_turn: set[str] = set()

    def begin_session(self) -> None:
        """Start another session: forget the texts of the previous one."""
        self._redacted.clear()

    @property
    def summary_text(self) -> str:
        """Readable summary: findings by kind, and how many turns lost their tokens."""
        counts = (
            ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS if self.counts[kind])
            or "nothing"
        )
        return (
            f"\nredacted: {counts}; {self.turns_without_tokens} of {self.turns} turns left "
            f"without tokens and log-probabilities"
        )

    def redact_name(self, name: str) -> str:
        """Return a name without findings unchanged, and any other name as a keyed digest."""
        if self.redact_text(name) == name:
            return name
        return f"redacted-{blake2b(name.encode(errors='surrogatepass'), key=self._key, digest_size=8).hexdigest()}"

    def redact_text(self, text: str) -> str:
        if text not in self._redacted:
            self._redacted[text] = scrub_text(text)
            self.counts += self._redacted[text][1]
        clean, counts = self._redacted[text]
        self._kinds_in_turn |= counts.keys()
        return clean

    def redact_turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        """Redact a turn of `exporter.turn_to_json`, and add the kinds of its findings as `removed`.

        Token arrays are kept only if no text that they encode has changed. They are removed from an unfinished reply,
        because its tokens may hold more than its text.
        """
        self._kinds_in_turn = set()
        new: dict[str, Any] = from_json(to_json(turn))
        is_unchanged = self._redact_encoded(new)
        self._redact_other_fields(new)
        self.turns += 1
        done = ExchangeStatus.DONE.value
        is_finished = new.get("status", done) == done
        if "prompt_ids" in new and not (is_unchanged and is_finished):
            self.turns_without_tokens += 1
            new = {key: value for key, value in new.items() if key not in _TOKEN_KEYS}
            new["off_policy"] = True
        removed = [kind for kind in KINDS if kind in self._kinds_in_turn]
        if removed:
            new["removed"] = removed
        return new

    def _redact_encoded(self, new: dict[str, Any]) -> bool:
        """Redact the texts that the tokens encode, in place. Return whether they are as before."""
        encoded = {key: new[key] for key in _ENCODED_KEYS if key in new}
        clean = {key: self._redact_messages(value) for key, value in encoded.items()}
        new |= clean
        if "messages" in clean:
            for key in _SUMMARY_KEYS:
                new.pop(key, None)
            new |= prompt_and_response(clean["messages"], clean["message"])
        return clean == encoded

    def redact_row(self, row: Mapping[str, Any], clean: Mapping[str, Any]) -> dict[str, Any] | None:
        """Redact a flat row; None if its tokens were removed. `clean`: the same turn from `redact_turn`."""
        if "prompt_ids" not in clean:
            return None
        names = {key: self.redact_name(row[key]) for key in _ROW_NAME_KEYS}
        texts = {key: self.redact_text(row[key]) for key in _ROW_TEXT_KEYS}
        state = clean.get("next_state") or ""
        if not isinstance(state, str):
            state = "\n".join(map(message_text, state))
        texts["next_state"] = state
        return {**row, **names, **texts, "hints_json": self._redact_json(row["hints_json"])}

    def _redact_other_fields(self, new: dict[str, Any]) -> None:
        """Redact all fields except prompt and reply, in place."""
        for key in new.keys() & _NAME_KEYS:
            if isinstance(new[key], str):
                new[key] = self.redact_name(new[key])
        for key in new.keys() & _TEXT_KEYS:
            new[key] = self._redact_value(new[key])
        if "next_state" in new:
            new["next_state"] = self._redact_messages(new["next_state"])
        reaction = new.get("reaction") or {}
        if reaction.get("source"):
            reaction["source"] = self.redact_name(reaction["source"])
        for feedback in new.get("feedback", ()):
            self._redact_feedback(feedback)

    def _redact_feedback(self, feedback: dict[str, Any]) -> None:
        feedback["id"] = self.redact_name(feedback["id"])
        if "given_by" in feedback:
            feedback["given_by"] = self.redact_name(feedback["given_by"])
        for key in ("comment", "correction"):
            if key in feedback:
                feedback[key] = self.redact_text(feedback[key])

    # Values of any shape.

    def _redact_messages(self, value: Any) -> Any:
        """Redact a list of messages, one message, or tools and template variables."""
        if isinstance(value, list):
            return [self._redact_messages(item) for item in value]
        clean = self._redact_value(value)
        if isinstance(clean, dict) and isinstance(clean.get("content"), list):
            clean["content"] = self._redact_parts(value["content"])
        return clean

    def _redact_parts(self, parts: list[Any]) -> list[Any]:
        """Redact content parts. A model reads them joined, so text parts with a finding across them are merged."""
        redacted: list[Any] = []
        for is_text, group in groupby(parts, key=_is_text_part):
            run = list(group)
            clean = [self._redact_value(self._redact_image(part)) for part in run]
            redacted += self._merge_texts(run, clean) if is_text else clean
        return redacted

    def _merge_texts(self, parts: list[Any], clean: list[Any]) -> list[Any]:
        """Return the redacted text parts, or one part if the texts have a finding across them."""
        whole = _joined_text(parts)
        joined = _joined_text(clean)
        clean_whole = self.redact_text(whole)
        if clean_whole != whole and self.redact_text(joined) != joined:
            return [clean[0] | {"text": clean_whole}]
        return clean

    def _redact_image(self, part: Any) -> Any:
        """Return an image part with a keyed digest, so that nobody recognises an image that they have."""
        digest = image_digest(part)
        if digest is None:
            return part
        return {
            **part,
            "sha256": f"redacted-{blake2b(digest.encode(), key=self._key, digest_size=8).hexdigest()}",
        }

    def _redact_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, list):
            return [self._redact_value(item) for item in value]
        return self._redact_object(value) if isinstance(value, dict) else value

    def _redact_object(self, value: dict[Any, Any]) -> dict[Any, Any]:
        redacted: dict[Any, Any] = {}
        for key, item in value.items():
            clean_key = self._unique_key(key, redacted)
            is_json = key == "arguments" and isinstance(item, str)
            redacted[clean_key] = self._redact_json(item) if is_json else self._redact_value(item)
        return redacted

    def _unique_key(self, key: Any, taken: Mapping[Any, Any]) -> Any:
        """Redact a key; add a suffix if the result equals another key."""
        if not isinstance(key, str):
            return key
        clean = self.redact_text(key)
        return clean if clean not in taken else f"{clean} {len(taken)}"

    def _redact_json(self, text: str) -> str:
        """Redact a text; JSON text stays JSON."""
        try:
            value = from_json(text.encode())
        except (ValueError, RecursionError):
            return self.redact_text(text)
        clean = self._redact_value(value)
        return text if clean == value else to_json(clean).decode()


def _joined_text(parts: list[Any]) -> str:
    return "".join(part["text"] for part in parts)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
