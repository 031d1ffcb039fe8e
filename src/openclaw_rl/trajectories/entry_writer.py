"""Writes the turns of a trajectory into the store, one after another, in as many short transactions as it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from openclaw_rl.store import imported_turns
from openclaw_rl.store.imported_turns import ImportOutcome
from openclaw_rl.trajectories.turn_builder import BuiltTurn


class EntryWriter:
    """Writes one trajectory. What other imports have written since it was built is left as it is."""

    def __init__(
        self,
        outcomes: Sequence[ImportOutcome],
        built: Sequence[BuiltTurn],
        *,
        now: float,
        on_progress: Callable[[float], None],
    ) -> None:
        """`outcomes`: of all turns, in their order; `built`: the turns that the store did not have.

        `now`: seconds since the epoch; `on_progress`: gets the share of the turns before each one.
        """
        self._outcomes = outcomes
        self._built = {turn.request.id: turn for turn in built}
        self._now = now
        self._on_progress = on_progress
        self._position = 0
        self.new_turns = 0
        self.has_news = False
        """Whether a turn that was in the store before got a reaction, a verdict or feedback."""

    @property
    def is_complete(self) -> bool:
        return self._position == len(self._outcomes)

    @property
    def size(self) -> int:
        """Number of turns."""
        return len(self._outcomes)

    def write_turn(self, conn: Connection) -> None:
        """Write the next turn: the exchange if it is new, and what the file says of it beyond what is stored."""
        outcome = self._outcomes[self._position]
        state = imported_turns.known_turns(conn, [outcome.turn]).get(outcome.turn)
        built = self._built.get(outcome.turn)
        if state is None and built is not None:
            imported_turns.insert_turns(conn, [built.request], [built.reply], [built.place])
            state = imported_turns.known_turns(conn, [outcome.turn])[outcome.turn]
            self.new_turns += 1
        if state is not None and state.imported and outcome.has_content:
            self.has_news |= imported_turns.apply_outcome(conn, outcome, state, self._now)
        self._on_progress(self._position / len(self._outcomes))
        self._position += 1
