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
    for p in resolved:
        if p.id in parents:
            raise TrajectoryRefused(
                "contradiction", f"id {p.id!r} is twice in this trajectory", p.number
            )
        parents[p.id] = p.parent
    sound: set[str] = set()
    for p in resolved:
        line: set[str] = set()
        at: str | None = p.id
        while at is not None and at not in sound:
            if at in line:
                raise TrajectoryRefused(
                    "contradiction", f"parent {p.parent!r} leads back to the turn itself", p.number
                )
            line.add(at)
            at = parents.get(at)
        sound |= line


class _Conversation:
    """The conversation up to the current turn."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._history: tuple[Message, ...] = ()
        # Id of the previous main turn.
        self._last_main_id: str | None = None
        self._digests = dict.fromkeys(Kind, trajectory.session_id.encode())

    def resolve_next(self, number: int, turn: FileTurn) -> ResolvedTurn:
        main = turn.type is Kind.MAIN
        messages = self._prompt_messages(turn)
        reply: Message = (
            {} if turn.redacted else turn.message or {"role": "assistant", "content": turn.response}
        )
        id_ = turn.id or self._content_id(turn, messages, reply)
        planned = ResolvedTurn(
            number=number,
            id=id_,
            session=self._trajectory.session_id,
            agent=turn.agent or self._trajectory.agent,
            user=turn.user or self._trajectory.user,
            turn=turn,
            messages=messages,
            reply=reply,
            parent=turn.parent
            or (
                self._last_main_id if turn.messages is None and main and not turn.redacted else None
            ),
            reaction_messages=to_messages(turn.next_state),
            reaction=turn.reaction,
        )
        if main and not turn.redacted:
            state = to_messages(turn.next_state) if isinstance(turn.next_state, list) else ()
            self._history = (*messages, reply, *state)
            self._last_main_id = id_
        return planned

    def _prompt_messages(self, turn: FileTurn) -> tuple[Message, ...]:
        if turn.redacted:
            return ()
        if turn.messages is not None:
            return tuple(turn.messages)
        asked: Message = {"role": "user", "content": turn.prompt}
        if turn.type is Kind.SIDE:
            return (asked,)
        if self._history and self._history[-1].get("role") != "assistant":
            # The last message is one of `next_state`, and may be the prompt.
            last = prompt_of(self._history[-1:])
            if not turn.prompt or last == str(turn.prompt).strip():
                return self._history
        return (*self._history, asked)

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
    turn = planned.turn
    if planned.reaction_messages or turn.type is Kind.SIDE:
        return planned
    if turn.redacted or turn.messages is not None or turn.id is not None:
        return planned
    main = [p for p in later if p.turn.type is Kind.MAIN]
    if not main:
        return planned
    following = main[0]
    if following.turn.messages is not None or not following.turn.prompt:
        return planned
    message: Message = {"role": "user", "content": following.turn.prompt}
    at = following.turn.at or planned.turn.finished_at or planned.turn.at or 0.0
    return replace(
        planned,
        reaction_messages=(message,),
        reaction=FileReaction(how=IMPORTED, source=following.id, at=at),
    )
