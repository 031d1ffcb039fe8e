"""The life of a turn: only the moves of the table, verdicts for the reaction in force, feedback on top."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from tests.store.world import close, judged, reply, request, serve, verdict

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import exchanges, reactions, turn_states, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.turn_states import REOPENABLE_REASONS
from openclaw_rl.types import (
    TURN_TRANSITIONS,
    ExchangeStatus,
    Feedback,
    FinishReason,
    JudgeInput,
    TurnState,
    Verdict,
    Vote,
)


def feed(conn: Connection, target: str, id: str = "f", at: float = 14.0, score: int = -1) -> bool:
    records.add_feedback(
        conn, [Feedback(id=id, scope="key", target=target, score=score, given_at=at)]
    )
    return reactions.record_pending_feedback(conn, target, at)


def state(conn: Connection, id: str) -> TurnState:
    turn = turns.get(conn, id)
    assert turn is not None
    return turn.state


@pytest.fixture
def conn(store: Store) -> Iterator[Connection]:
    with store.write() as opened:
        yield opened


def test_a_turn_goes_from_reply_to_verdict(conn: Connection) -> None:
    serve(conn, "a")
    assert turns.closed_turns(conn, 9) == []
    assert close(conn, "a")
    (item,) = turns.closed_turns(conn, 9)
    reaction = turns.current_reaction(conn, "a")
    assert reaction is not None
    assert item == JudgeInput(
        turn="a",
        messages=request("a").messages,
        reply=reply(request("a")).message,
        reaction=reaction,
    )
    assert (reaction.messages, reaction.source, reaction.how) == (
        ({"role": "user", "content": "Thanks."},),
        "later",
        "exact",
    )
    said = verdict(
        "a", votes=(Vote(score=1, hint="h", reason="r"), Vote(score=None, error="e")), hints=("h",)
    )
    assert turns.add_verdict(conn, said)
    assert turns.add_verdict(conn, said)
    assert turns.current_verdict(conn, "a") == said
    assert state(conn, "a") is TurnState.JUDGED
    assert turns.closed_turns(conn, 9) == []


def test_a_verdict_on_an_outdated_reaction_is_discarded(conn: Connection) -> None:
    serve(conn, "a")
    close(conn, "a")
    close(conn, "a", "No, wrong.")
    assert not turns.add_verdict(conn, verdict("a", 1))
    assert turns.current_verdict(conn, "a") is None
    assert turns.add_verdict(conn, verdict("a", 2, -1))
    close(conn, "a", "Still wrong.")
    assert state(conn, "a") is TurnState.CLOSED
    assert [item.reaction.revision for item in turns.closed_turns(conn, 9)] == [3]
    with pytest.raises(KeyError, match="unknown"):
        turns.add_verdict(conn, verdict("unknown"))


def test_explicit_verdicts_precede_and_then_the_newest_reaction_counts(conn: Connection) -> None:
    serve(conn, "a")
    for revision, (score, explicit) in enumerate([(1, False), (-1, True), (1, False)], 1):
        close(conn, "a", str(revision))
        assert turns.add_verdict(conn, verdict("a", revision, score, explicit=explicit))
    found = turns.current_verdict(conn, "a")
    assert found is not None
    assert (found.score, found.revision) == (-1, 2)
    assert turns.add_verdict(conn, verdict("a", 3, 0, judge="second", at=99.0, explicit=True))
    found = turns.current_verdict(conn, "a")
    assert found is not None
    assert (found.score, found.judge) == (0, "second")


def test_feedback_keeps_the_messages_of_the_reaction(conn: Connection) -> None:
    serve(conn, "a")
    close(conn, "a")
    assert feed(conn, "a", "f1")
    assert feed(conn, "a", "f2", score=1)
    reaction = turns.current_reaction(conn, "a")
    assert reaction is not None
    assert reaction.revision == 3
    assert reaction.messages == ({"role": "user", "content": "Thanks."},)
    assert [(f.id, f.score) for f in reaction.feedback] == [("f1", -1), ("f2", 1)]
    assert not reactions.record_pending_feedback(conn, "a", 15.0), "nothing waits any more"


def test_feedback_alone_is_a_reaction(conn: Connection) -> None:
    serve(conn, "a")
    assert feed(conn, "a")
    reaction = turns.current_reaction(conn, "a")
    assert reaction is not None
    assert (reaction.messages, reaction.how, reaction.source) == ((), "feedback", None)
    assert close(conn, "a")
    reaction = turns.current_reaction(conn, "a")
    assert reaction is not None
    assert len(reaction.messages) == len(reaction.feedback) == 1


def test_feedback_on_a_running_reply_waits(conn: Connection) -> None:
    asked = request("a")
    exchanges.admit(conn, [asked])
    assert not feed(conn, "a")
    exchanges.finish(conn, [reply(asked)])
    assert reactions.record_pending_feedback(conn, "a", 15.0)


@pytest.mark.parametrize("cause", ReasonCode)
def test_late_evidence_reopens_only_turns_without_evidence(
    conn: Connection, cause: ReasonCode
) -> None:
    serve(conn, "a")
    assert turn_states.drop(conn, "a", cause, "for a reason", at=12.0)
    assert close(conn, "a") is (cause in REOPENABLE_REASONS)
    turn = turns.get(conn, "a")
    assert turn is not None
    assert (turn.state, turn.reason) == (
        (TurnState.CLOSED, None)
        if cause in REOPENABLE_REASONS
        else (TurnState.DROPPED, "for a reason")
    )


def test_a_dropped_turn_takes_no_verdict(conn: Connection) -> None:
    serve(conn, "a")
    close(conn, "a")
    turn_states.drop(conn, "a", ReasonCode.TIMEOUT, "x", at=13.0)
    assert not turns.add_verdict(conn, verdict("a"))


def test_overdue_and_open_turns(conn: Connection) -> None:
    for n, id_ in enumerate("abc"):
        serve(conn, id_, finished_at=10.0 + n)
    exchanges.admit(conn, [request("running", session="s")])
    close(conn, "b")
    assert reactions.overdue_turns(conn, 12.0, 9) == ["a"]
    assert reactions.overdue_turns(conn, 13.0, 1) == ["a"]
    assert reactions.served_in_session(conn, "key", "s") == ["running"]
    assert reactions.served_in_session(conn, "other", "s") == []


def test_untrainable_keeps_the_first_reason(conn: Connection) -> None:
    judged(conn, "a")
    turns.mark_untrainable(conn, {"a": Reason(ReasonCode.TOO_STALE, "too stale")})
    turns.mark_untrainable(conn, {"a": Reason(ReasonCode.NO_SIGNAL, "again")})
    turn = turns.get(conn, "a")
    assert turn is not None
    assert turn.untrainable == "too stale"


def test_turns_are_counted_by_state(conn: Connection) -> None:
    judged(conn, "a")
    serve(conn, "b")
    serve(conn, "c", status=ExchangeStatus.FAILED)
    assert turns.count_by_state(conn) == {
        TurnState.JUDGED: 1,
        TurnState.SERVED: 1,
        TurnState.DROPPED: 1,
    }


@dataclass(frozen=True)
class Act:
    """Something that a stage does to a turn."""

    name: str
    do: Callable[[Connection, str, str], object]


ACTS = [
    Act("reaction", lambda conn, turn, tag: close(conn, turn, tag)),
    Act("feedback", lambda conn, turn, tag: feed(conn, turn, tag)),
    Act(
        "timeout",
        lambda conn, turn, tag: turn_states.drop(conn, turn, ReasonCode.TIMEOUT, tag, at=1.0),
    ),
    Act("side", lambda conn, turn, tag: turn_states.drop(conn, turn, ReasonCode.SIDE, tag, at=1.0)),
    Act("verdict", lambda conn, turn, tag: turns.add_verdict(conn, _current(conn, turn, tag))),
    Act(
        "old verdict", lambda conn, turn, tag: turns.add_verdict(conn, verdict(turn, 1, judge=tag))
    ),
    Act(
        "move",
        lambda conn, turn, tag: [
            turn_states.transition(conn, turn, to, at=1.0) for to in (TurnState.JUDGED,)
        ],
    ),
]


def _current(conn: Connection, turn: str, judge: str) -> Verdict:
    reaction = turns.current_reaction(conn, turn)
    return verdict(turn, reaction.revision if reaction else 0, judge=judge)


_ids = itertools.count()


@given(
    st.sampled_from([ExchangeStatus.DONE, ExchangeStatus.DONE, ExchangeStatus.FAILED]),
    st.integers(0, 8),
    st.lists(st.sampled_from(ACTS), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_only_listed_state_transitions_happen(
    moving_store: Store, status: ExchangeStatus, ended_at: int, acts: list[Act]
) -> None:
    """The database itself writes down every change of a state; feedback and drops also come while the reply runs."""
    id_ = f"t{next(_ids)}"
    asked = request(id_)
    while_running = ("feedback", "timeout", "side")
    with moving_store.write() as conn:
        exchanges.admit(conn, [asked])
        early = [act for act in acts[:ended_at] if act.name in while_running]
        for n, act in enumerate(early):
            act.do(conn, id_, f"{id_}-early-{n}")
        exchanges.finish(conn, [reply(asked, status=status)])
        for n, act in enumerate(acts):
            act.do(conn, id_, f"{id_}-{n}")
        seen = conn.exec_driver_sql("SELECT old, new FROM moves WHERE turn = ?", (id_,)).all()
        now = state(conn, id_)
    for old, new in seen:
        assert TurnState(new) in TURN_TRANSITIONS[TurnState(old)], (old, new)
    assert (TurnState(seen[-1].new) if seen else TurnState.SERVED) is now


@pytest.fixture(scope="module")
def moving_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(tmp_path_factory.mktemp("moves") / "store.db")
    with opened.write() as conn:
        conn.exec_driver_sql("CREATE TABLE moves (turn TEXT, old TEXT, new TEXT)")
        conn.exec_driver_sql(
            "CREATE TRIGGER watch AFTER UPDATE OF state ON turns "
            "BEGIN INSERT INTO moves VALUES (new.id, old.state, new.state); END"
        )
    yield opened
    opened.close()


def test_a_truncated_reply_trains_by_hints_only(conn: Connection) -> None:
    judged(conn, "a", hints=("h",), finish_reason=FinishReason.LENGTH)
    judged(conn, "b", hints=("h",))
    signals = conn.exec_driver_sql("SELECT signal FROM turns ORDER BY seq").scalars().all()
    assert signals == [turns.HINT_SIGNAL, turns.HINT_SIGNAL | turns.SCORE_SIGNAL]
