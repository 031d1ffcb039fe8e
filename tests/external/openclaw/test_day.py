"""The store after a day of the real OpenClaw: turns, reactions, sessions, main and side; with the plug-in the same."""

from __future__ import annotations

import subprocess
import sys

from tests.external.openclaw.day import ALERT, PLAN, Day

from openclaw_rl.settings.load import to_environment
from openclaw_rl.types import ExchangeStatus, TurnState

READ_CALL = 'read {"path": "notes.txt"}'
TWO_CALLS = 'exec {"command": "echo one-$((40+2))"} | exec {"command": "echo two-$((1+1))"}'
NOTES = "Your notes say: the dentist at ten. Shall I put it in the calendar?"
SUMS = "The first one says 42 and the second one says 2; both ran well."
WELCOME = "You are welcome; I am here for whatever comes next."
TALK = [
    READ_CALL,
    NOTES,
    "Dentist, ten o'clock.",
    TWO_CALLS,
    SUMS,
    WELCOME,
    PLAN,
    "Good bye, and have a nice day.",
]


def test_the_person_was_answered(day: Day) -> None:
    assert day.answers["What is in notes.txt?"] == NOTES
    assert day.answers["Now do two things for me."] == SUMS
    assert day.answers["Explain the plan"] == PLAN


def test_a_tool_loop_is_turns_of_one_session(day: Day) -> None:
    talk = next(said for said in day.sessions() if said[0] == READ_CALL)
    assert [said for said in dict.fromkeys(talk) if said in TALK] == TALK
    assert len(day.sessions()) == 3  # this talk, the main session, and the trip


def test_reactions_are_the_persons_words_or_the_tools(day: Day) -> None:
    assert day.of(READ_CALL).reacted == ("the dentist at ten",)
    assert day.of(NOTES).reacted == ("no, shorter please",)
    assert day.of("Dentist, ten o'clock.").reacted == ("Now do two things for me.",)
    assert day.of(TWO_CALLS).reacted == ("one-42", "two-2")
    assert day.of(SUMS).reacted == ("thanks, perfect!",)
    assert day.of(WELCOME).reacted == ("Explain the plan",)
    assert day.of(PLAN).reacted == ("good bye",)
    assert day.of("Good bye, and have a nice day.").reacted == ()


def test_nobody_reacts_with_openclaws_own_words(day: Day) -> None:
    said = [text for s in day.seen for text in s.reacted]
    assert said
    assert not [
        text for text in said if "OPENCLAW" in text or "[OpenClaw" in text or "heartbeat" in text
    ]


def test_the_judge_heard_the_correction_and_the_praise(day: Day) -> None:
    scores = [
        verdict.score if (verdict := day.of(said).verdict) else None for said in (NOTES, SUMS)
    ]
    assert scores == [-1, 1]


def test_after_the_compaction_the_talk_goes_on(day: Day) -> None:
    before, after = day.of(SUMS), day.of(WELCOME)
    assert len(after.exchange.request.messages) < len(before.exchange.request.messages)
    assert after.turn.parent == before.turn.id
    assert after.turn.session == before.turn.session


def test_a_retry_is_a_retry(day: Day) -> None:
    died = [
        s
        for s in day.main()
        if s.exchange.reply and s.exchange.reply.status == ExchangeStatus.FAILED
    ]
    assert len(died) == 1
    again = day.of(PLAN)
    assert (again.turn.relation, again.turn.relation_of) == ("retry", died[0].turn.id)
    assert died[0].turn.state is TurnState.DROPPED


def test_a_regeneration_is_a_regeneration(day: Day) -> None:
    again = [s for s in day.main() if s.turn.relation == "regeneration"]
    assert [s.said for s in again] == [SUMS]
    assert again[0].turn.relation_of == day.of(SUMS).turn.id


def test_wakes_between_the_persons_words(day: Day) -> None:
    look = day.of('read {"path": "other.txt"}')
    assert look.reacted == ("milk and bread",)
    assert day.of("Milk, bread.").reacted == ("and eggs",)
    assert day.of("Milk, bread, eggs.").reacted == ()  # the person answered the alert, not this
    ordered = day.of("Paper is ordered; it arrives on Monday morning.")
    assert ordered.turn.session == look.turn.session


def test_housekeeping_is_side_and_all_the_rest_is_main(day: Day) -> None:
    def opening(text: str) -> int:
        found = [
            s
            for s in day.side()
            if any(text in str(m.get("content")) for m in s.exchange.request.messages)
        ]
        return len(found)

    assert opening("Generate a concise session title") == 1
    assert opening("You are a context summarization assistant") >= 1
    assert opening("Pre-compaction memory flush") >= 2  # a tool loop of its own
    assert opening("Follow the heartbeat monitor") == 3
    trip = "A trip to Oslo: three museums in two days, by train."
    rest = {'read {"path": "other.txt"}', "Milk, bread.", "Milk, bread, eggs.", trip}
    rest |= {"Paper is ordered; it arrives on Monday morning."}
    assert {
        s.said for s in day.main() if s.exchange.reply and s.exchange.reply.status == "done"
    } == {*TALK, *rest}
    assert ALERT in {s.said for s in day.side()}
    assert all(s.turn.state is TurnState.DROPPED for s in day.side())


def test_with_the_plugin_it_is_the_same(days: dict[str, Day]) -> None:
    def told(day: Day) -> list[tuple[object, ...]]:
        names = {id_: n for n, id_ in enumerate(dict.fromkeys(s.turn.session for s in day.main()))}
        parents = {s.turn.id: s.said for s in day.seen}
        rows = [
            (
                names[s.turn.session],
                s.said,
                s.reacted,
                s.turn.relation,
                parents.get(s.turn.parent or ""),
            )
            for s in day.main()
        ]
        return sorted(rows, key=str)

    assert told(days["plain"]) == told(days["plugin"])


def test_only_the_plugin_names_things(days: dict[str, Day]) -> None:
    plain, plugin = days["plain"], days["plugin"]
    assert {s.exchange.request.kind for s in plain.seen} == {None}
    said = {
        s.said: s.exchange.request.kind for s in plugin.seen if s.turn.relation != "regeneration"
    }
    assert [said[NOTES], said[TWO_CALLS], said[ALERT]] == ["main", "main", "side"]
    for day in (plain, plugin):
        assert {s.exchange.request.agent for s in day.main()} == {"main"}
        stated = [
            s
            for s in day.main()
            if f"sessionId={s.turn.session} " in str(s.exchange.request.messages)
        ]
        assert len(stated) == len(day.main())


def test_the_end_of_the_session_is_told_by_the_plugin(days: dict[str, Day]) -> None:
    bye = "Good bye, and have a nice day."
    assert days["plain"].of(bye).turn.state is TurnState.SERVED
    ended = days["plugin"].of(bye).turn
    assert (ended.state, ended.reason) == (
        TurnState.DROPPED,
        "the session ended without a reaction",
    )


def test_inspect_shows_it(day: Day) -> None:
    def inspect(*arguments: str) -> str:
        command = [sys.executable, "-m", "openclaw_rl", "inspect", *arguments]
        environment = to_environment(day.system.config) | {"COLUMNS": "200"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    session = day.of(NOTES).turn.session
    assert session[:8] in inspect("sessions")
    shown = inspect("session", session)
    assert "no, shorter please" in shown
    assert "OPENCLAW_INTERNAL" not in shown
