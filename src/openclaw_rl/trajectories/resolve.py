"""Resolve the turns of a trajectory: each turn's full prompt, reply and reaction. Pure: no tokens, no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from openclaw_rl.store.imported_turns import IMPORTED
from openclaw_rl.store.rows import to_json
from openclaw_rl.trajectories.schema import (
    FileReaction,
    FileTurn,
    Trajectory,
    TrajectoryRefused,
    prompt_of,
)
from openclaw_rl.types import Kind, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTurn:
    """One turn with all its messages. `number`: its position in the file, from 1."""

    number: int
    id: str
    session: str
    agent: str
    user: str
    turn: FileTurn
    messages: tuple[Message, ...]  # everything before the reply; empty: redacted
    reply: Message
    parent: str | None
    reaction_messages: tuple[Message, ...]  # the reaction; empty: none, or unknown
    reaction: (
        FileReaction | None
    )  # how and when it was found, if known; with no reaction messages: only feedback


def resolve_turns(trajectory: Trajectory) -> list[ResolvedTurn]:
    """Return the turns in their order. A main turn without `messages` continues from the previous main turn.

    The reaction to a main turn with text only and no `next_state` is the prompt of the next one. Raises
    `TrajectoryRefused` for a duplicate id, and for a cycle of parents.
    """
    story = _Conversation(trajectory)
    resolved = [story.resolve_next(number, turn) for number, turn in enumerate(trajectory.turns, 1)]
    _check_lineage(resolved)
    return [_with_reaction(p, resolved[at + 1 :]) for at, p in enumerate(resolved)]


def _check_lineage(resolved: Sequence[ResolvedTurn]) -> None:
    parents: dict[str, str | None] = {}
    for turn in resolved:
        if turn.id in parents:
            raise TrajectoryRefused(
                "contradiction", f"id {turn.id!r} is twice in this trajectory", turn.number
            )
        parents[turn.id] = turn.parent
    sound: set[str] = set()
    for turn in resolved:
        ancestors: set[str] = set()
        ancestor: str | None = turn.id
        while ancestor is not None and ancestor not in sound:
            if ancestor in ancestors:
                raise TrajectoryRefused(
                    "contradiction",
                    f"parent {turn.parent!r} leads back to the turn itself",
                    turn.number,
                )
            ancestors.add(ancestor)
            ancestor = parents.get(ancestor)
        sound |= ancestors


class _Conversation:
    """The conversation up to the current turn."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._history: tuple[Message, ...] = ()
        # Id of the previous main turn.
        self._last_main_id: str | None = None
        self._digests = dict.fromkeys(Kind, trajectory.session_id.encode())

    def resolve_next(self, number: int, turn: FileTurn) -> ResolvedTurn:
        messages = self._prompt_messages(turn)
        reply = _reply_of(turn)
        # Whether it may continue the turns before it, and be continued.
        has_history = turn.type is Kind.MAIN and not turn.redacted
        parent = turn.parent
        if not parent and has_history and turn.messages is None:
            parent = self._last_main_id
        planned = ResolvedTurn(
            number=number,
            id=turn.id or self._content_id(turn, messages, reply),
            session=self._trajectory.session_id,
            agent=turn.agent or self._trajectory.agent,
            user=turn.user or self._trajectory.user,
            turn=turn,
            messages=messages,
            reply=reply,
            parent=parent or None,
            reaction_messages=to_messages(turn.next_state),
            reaction=turn.reaction,
        )
        if has_history:
            state = to_messages(turn.next_state) if isinstance(turn.next_state, list) else ()
            self._history = (*messages, reply, *state)
            self._last_main_id = planned.id
        return planned

    def _prompt_messages(self, turn: FileTurn) -> tuple[Message, ...]:
        if turn.redacted:
            return ()
        if turn.messages is not None:
            return tuple(turn.messages)
        prompt: Message = {"role": "user", "content": turn.prompt}
        if turn.type is Kind.SIDE:
            return (prompt,)
        return self._history if self._has_prompt(turn) else (*self._history, prompt)

    def _has_prompt(self, turn: FileTurn) -> bool:
        """Return whether the history ends with the prompt: its last message may be one of `next_state`."""
        last = self._history[-1:]
        if not last or last[0].get("role") == "assistant":
            return False
        return not turn.prompt or prompt_of(last) == str(turn.prompt).strip()

    def _content_id(self, turn: FileTurn, messages: Sequence[Message], reply: Message) -> str:
        """Return an id from session, position among its kind, and text, so that the same file gives the same ids."""
        content = to_json([turn.type, messages, reply, turn.tools])
        digest = blake2b(self._digests[turn.type] + content, digest_size=16).digest()
        self._digests[turn.type] = digest
        return f"imported-{digest.hex()}"


def to_messages(next_state: str | Sequence[dict[str, Any]] | None) -> tuple[Message, ...]:
    """Return `next_state` as messages; text becomes a user message."""
    if next_state is None or next_state == "":
        return ()
    if isinstance(next_state, str):
        return ({"role": "user", "content": next_state},)
    return tuple(next_state)


def _with_reaction(planned: ResolvedTurn, later: Sequence[ResolvedTurn]) -> ResolvedTurn:
    if planned.reaction_messages or not _is_plain_text(planned.turn):
        return planned
    for following in later:
        if following.turn.type is Kind.MAIN:
            return _with_next_prompt(planned, following)
    return planned


def _with_next_prompt(planned: ResolvedTurn, following: ResolvedTurn) -> ResolvedTurn:
    """Return the turn with the prompt of the next main turn as its reaction, if that is given as a text."""
    prompt = following.turn.prompt
    if not prompt or following.turn.messages is not None:
        return planned
    at = following.turn.at or planned.turn.finished_at or planned.turn.at or 0.0
    return replace(
        planned,
        reaction_messages=({"role": "user", "content": prompt},),
        reaction=FileReaction(how=IMPORTED, source=following.id, at=at),
    )


def _is_plain_text(turn: FileTurn) -> bool:
    """Return whether a main turn is given as prompt and response alone, as in a file that people write."""
    has_text = turn.messages is None and not turn.redacted
    return has_text and turn.id is None and turn.type is not Kind.SIDE


def _reply_of(turn: FileTurn) -> Message:
    if turn.redacted:
        return {}
    return turn.message or {"role": "assistant", "content": turn.response}
