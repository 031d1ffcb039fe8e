"""`openclaw-rl lessons`, and what `chat` says about them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.store.world import close, serve

from openclaw_rl.cli.chat import _ChatSession
from openclaw_rl.cli.main import cli
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import forgotten_wishes, lessons, withdrawals
from openclaw_rl.store.lessons.examinations import Withdrawal, WithdrawalCode
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lessons.scopes import LessonScope, subject_scope, user_scope
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, PolicyOwner, record_owner
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.types import Policy, PolicyState

SHORT = Lesson(
    id="aa",
    key="key",
    text="Keep answers short.",
    topic="length/short",
    made_at=1.0,
    reinforced_at=1.0,
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = from_flat({"home": str(tmp_path), "serve.api_key": "sk-test"})
    prepare_home(config)
    with Store.open(config.store_path) as store, store.write() as conn:
        policies.ensure_root(conn, base="base", identity="i", at=1.0)
        serve(conn, "turn-1")
        close(conn, "turn-1", "shorter, please")
        lessons.add_lesson(conn, SHORT)
        lessons.add_lesson(
            conn, replace(SHORT, id="bb", text="Give long, detailed answers.", topic="length/long")
        )
        lessons.supersede(conn, "bb", "aa")
        lessons.reinforce(conn, "aa", "turn-1", at=1.0)
    return config


def run(config: Config, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(
        cli, ["lessons", *arguments, "--home", config.home], env={"COLUMNS": "120"}
    )
    assert done.exit_code == code, done.output
    return done.output


def stored(config: Config, id: str) -> Lesson | None:
    with Store.open(config.store_path) as store, store.read() as conn:
        return lessons.get(conn, id)


def test_the_list_shows_each_lesson_with_what_was_said(config: Config) -> None:
    out = run(config, "list")
    assert "aa  Keep answers short." in out
    assert "in prompts, not yet in the weights; for everything that is asked, weight" in out
    assert "    said: shorter, please (turn-1)" in out
    assert "Give long" not in out
    assert "superseded by aa" in run(config, "list", "--all")
    (row,) = json.loads(run(config, "list", "--json"))["lessons"]
    assert (row["id"], row["state"], row["turns"][0]["asked"]) == ("aa", "active", "this is turn-1")


def test_the_list_names_the_user_of_a_lesson(config: Config) -> None:
    with Store.open(config.store_path) as store, store.write() as conn:
        for number, agent in enumerate(("", "writer")):
            scope = user_scope(agent, "ann")
            lesson = replace(SHORT, id=f"u{number}", scope_kind=LessonScope.USER, scope_value=scope)
            lessons.add_lesson(conn, lesson)
    out = run(config, "list")
    assert "for user ann, weight" in out
    assert "for user ann of agent writer, weight" in out


def test_the_list_says_what_a_lesson_is_limited_to(config: Config) -> None:
    about = replace(
        SHORT,
        id="s1",
        scope_kind=LessonScope.SUBJECT,
        scope_value=subject_scope("writer", "ann", "Money, cash"),
    )
    here = replace(SHORT, id="s2", scope_kind=LessonScope.SESSION, scope_value="turn-1")
    with Store.open(config.store_path) as store, store.write() as conn:
        lessons.add_lesson(conn, about)
        lessons.add_lesson(conn, here)
    out = run(config, "list")
    assert "for user ann of agent writer about cash, money, weight" in out
    assert "for one conversation (turn-1), weight" in out


def test_lessons_are_edited_pinned_and_forgotten(config: Config) -> None:
    run(config, "edit", "aa", "At most two  sentences.")
    found, before = stored(config, "aa"), replace(SHORT, text="At most two sentences.", weight=2.0)
    assert found is not None
    assert found.reinforced_at > before.reinforced_at, (
        "it is practised like one that was said again"
    )
    assert found == replace(before, weight=found.weight, reinforced_at=found.reinforced_at)
    assert found.weight_at(found.reinforced_at) == before.weight_at(found.reinforced_at), (
        "as heavy as before"
    )
    run(config, "pin", "bb")
    found = stored(config, "aa")
    assert found is not None
    assert (found.state, found.superseded_by) == (LessonState.SUPERSEDED, "bb"), (
        "the owner has chosen the other one"
    )
    run(config, "unpin", "bb")
    run(config, "forget", "bb", "--yes")
    assert stored(config, "bb") is None
    found = stored(config, "aa")
    assert found is not None
    assert found.state is LessonState.ACTIVE, "it is in force again"


def test_the_turns_of_a_forgotten_lesson_do_not_give_it_again(config: Config) -> None:
    with Store.open(config.store_path) as store, store.read() as conn:
        evidence = {one.turn for one in lessons.turns_of_lesson(conn, "aa")}
    run(config, "forget", "aa", "--yes")
    with Store.open(config.store_path) as store, store.read() as conn:
        assert evidence
        assert all(
            forgotten_wishes.is_forgotten(conn, turn, "length/short", "") for turn in evidence
        )


def test_of_two_pinned_lessons_that_contradict_each_other_the_later_one_is_in_force(
    config: Config,
) -> None:
    run(config, "pin", "aa")
    out = run(config, "pin", "bb")
    assert "aa is superseded and no longer pinned: Keep answers short." in out
    first, second = stored(config, "aa"), stored(config, "bb")
    assert first is not None
    assert second is not None
    assert (first.state, first.is_pinned) == (LessonState.SUPERSEDED, False)
    assert (second.state, second.is_pinned) == (LessonState.ACTIVE, True)


def test_a_pinned_lesson_supersedes_the_last_of_a_chain_of_lessons(
    config: Config,
) -> None:
    with Store.open(config.store_path) as store, store.write() as conn:
        lessons.add_lesson(conn, replace(SHORT, id="cc", text="One line.", topic="length/line"))
        lessons.supersede(conn, "aa", "cc")
    assert "cc is superseded: One line." in run(config, "pin", "bb")
    found = stored(config, "cc")
    assert found is not None
    assert found.superseded_by == "bb"


def test_a_text_that_fits_no_prompt_is_refused(config: Config) -> None:
    done = CliRunner().invoke(cli, ["lessons", "edit", "aa", "x" * 1201, "--home", config.home])
    assert "the text has 1,201 characters, and a lesson at most 1,200" in str(done.exception)
    assert stored(config, "aa") == replace(SHORT, weight=2.0)


@pytest.mark.parametrize("text", ["a\x1b[31mred", "bad \udcff byte"])
def test_a_text_with_control_characters_is_refused(config: Config, text: str) -> None:
    done = CliRunner().invoke(cli, ["lessons", "edit", "aa", text, "--home", config.home])
    assert "the text has control characters, or bytes that are no UTF-8" in str(done.exception)
    assert stored(config, "aa") == replace(SHORT, weight=2.0)


def test_an_edit_changes_what_a_lesson_wants(config: Config) -> None:
    """Else the next "shorter, please" would be evidence of a lesson that asks for long answers."""
    run(config, "edit", "aa", "Give long, detailed answers.")
    found = stored(config, "aa")
    assert found is not None
    assert found.topic == "length/long"
    run(config, "edit", "aa", "At most three pages.")
    found = stored(config, "aa")
    assert found is not None
    assert found.topic == "length/long", "no rule reads the new text"


@pytest.mark.parametrize("pinned", [None, "aa", "cc"])
def test_an_edit_supersedes_what_contradicts_it(config: Config, pinned: str | None) -> None:
    """Else a prompt would have both."""
    with Store.open(config.store_path) as store, store.write() as conn:
        lessons.add_lesson(
            conn, replace(SHORT, id="cc", text="Use a formal tone.", topic="tone/formal")
        )
        if pinned is not None:
            lessons.set_pinned(conn, pinned, True)
    out = run(config, "edit", "cc", "Give long, detailed answers.")
    found = {id_: stored(config, id_) for id_ in ("aa", "cc")}
    superseded = [
        id_ for id_, one in found.items() if one is not None and one.state is LessonState.SUPERSEDED
    ]
    assert superseded == (["cc"] if pinned == "aa" else ["aa"])
    assert (
        "it is in no prompt: aa superseded it"
        if pinned == "aa"
        else "aa is superseded: Keep answers"
    ) in out


def test_an_edit_of_a_superseded_lesson_says_that_it_is_in_no_prompt(config: Config) -> None:
    assert "it is in no prompt: aa superseded it" in run(config, "edit", "bb", "Three sentences.")


def test_a_question_before_a_lesson_is_forgotten_blocks_nobody(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object, **__: object) -> bool:
        with (
            Store.open(config.store_path) as store,
            store.write() as conn,
        ):  # another process writes meanwhile
            lessons.set_pinned(conn, "aa", True)
        return True

    monkeypatch.setattr("click.confirm", answer)
    run(config, "forget", "aa")
    assert stored(config, "aa") is None


def test_an_unknown_lesson_is_named(config: Config) -> None:
    done = CliRunner().invoke(cli, ["lessons", "pin", "zz", "--home", config.home])
    assert "no lesson 'zz'" in str(done.exception)


def test_chat_says_what_was_noted_and_learned(config: Config) -> None:
    with Store.open(config.store_path) as store, store.write() as conn:
        events.append(conn, "lesson.made", "aa", {"turn": "turn-1"}, 2.0)
        events.append(conn, "lesson.made", "aa", {"turn": "of another conversation"}, 2.0)
        lessons.mark_learned(conn, "aa", 0)
        lessons.mark_learned(conn, "aa", 0)
    session = _ChatSession(config, TerminalConsole())
    session._conversation.reply_ids.add("turn-1")
    lines = [session._event_line(event) for event in session._new_events(0)]
    assert [line for line in lines if line] == [
        "noted: Keep answers short.",
        "learned: Keep answers short.",
    ]


def withdraw(config: Config, lesson: str, **fields: Any) -> None:
    values = {
        "code": WithdrawalCode.ALONE,
        "asked": 4,
        "right_with": 0,
        "right_without": 4,
        "at": 3.0,
    } | fields
    with Store.open(config.store_path) as store, store.write() as conn:
        found = lessons.get(conn, lesson)
        assert found is not None
        withdrawals.withdraw(conn, lesson, found.text, Withdrawal(**values))


def test_chat_says_that_a_lesson_left_the_prompts_and_that_it_returned(config: Config) -> None:
    session = _ChatSession(config, TerminalConsole())
    withdraw(config, "aa")
    with Store.open(config.store_path) as store, store.write() as conn:
        withdrawals.restore(conn, "aa", SHORT.text, at=4.0)
        lessons.set_pinned(conn, "aa", True)
    withdraw(config, "aa", code=WithdrawalCode.BESIDE_OTHERS, beside=("bb",), right_with=1)
    lines = [session._event_line(event) for event in session._new_events(0)]
    stays = "stays in prompts, because it is pinned, but is not learned: Keep answers short."
    assert [line for line in lines if line] == [
        f"{stays} (0 of 4 answers were right with it, 4 without)",
        "in prompts again: Keep answers short.",
        f"{stays} (1 of 4 answers were right with it beside bb, 4 without)",
    ]


def test_a_withdrawn_lesson_is_listed_with_its_figures(config: Config) -> None:
    withdraw(config, "aa")
    listed = CliRunner().invoke(cli, ["lessons", "list", "--home", config.home]).output
    expected = "withdrawn from prompts, not practised: 0 of 4 answers were right with it, 4 without"
    assert expected in " ".join(listed.split())
    shown = " ".join(CliRunner().invoke(cli, ["status", "--home", config.home]).output.split())
    assert (
        "withdrawn lesson aa: Keep answers short. (0 of 4 answers were right with it, 4 without)"
        in shown
    )
    cured = " ".join(
        CliRunner().invoke(cli, ["doctor", "--troubles", "--home", config.home]).output.split()
    )
    assert "lessons cost correctness" in cured
    assert "0 of 4 answers were right with it, 4 without" in cured


def test_chat_says_that_a_lesson_is_for_this_conversation_alone(config: Config) -> None:
    here = replace(SHORT, id="dd", scope_kind=LessonScope.SESSION, scope_value="conversation")
    with Store.open(config.store_path) as store, store.write() as conn:
        lessons.add_lesson(conn, here)
        events.append(conn, "lesson.made", "dd", {"turn": "turn-1"}, 2.0)
    session = _ChatSession(config, TerminalConsole())
    session._conversation.reply_ids.add("turn-1")
    lines = [session._event_line(event) for event in session._new_events(0)]
    assert lines == ["noted for this conversation: Keep answers short."]


def test_chat_says_nothing_of_lessons_of_other_users(config: Config) -> None:
    others = {
        "of this agent": replace(SHORT, scope_value="agent"),
        "of another agent": replace(SHORT, scope_value="writer"),
        "of another user": replace(
            SHORT, scope_kind=LessonScope.USER, scope_value=user_scope("agent", "ada")
        ),
        "of another question": replace(SHORT, scope_kind=LessonScope.QUESTION, scope_value="hash"),
        "of another key": replace(SHORT, scope_value="agent", key="another"),
    }  # fmt: skip
    with Store.open(config.store_path) as store, store.write() as conn:
        for number, (text, lesson) in enumerate(others.items()):
            lessons.add_lesson(conn, replace(lesson, id=f"c{number}", text=text))
            lessons.mark_learned(conn, f"c{number}", 0)
            lessons.mark_learned(conn, f"c{number}", 0)
    session = _ChatSession(config, TerminalConsole())
    session._conversation.last_id = "turn-1"
    lines = [session._event_line(event) for event in session._new_events(0)]
    assert [line for line in lines if line] == ["learned: of this agent"]


def test_chat_prints_no_event_into_a_reply(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stream(*_: object) -> AsyncIterator[dict[str, Any]]:
        for word in ("Rome", " it is."):
            yield {
                "id": "turn-2",
                "system_fingerprint": "v0",
                "choices": [{"delta": {"content": word}}],
            }
            with Store.open(config.store_path) as store, store.write() as conn:
                lessons.mark_learned(conn, "aa", 0)
            await asyncio.sleep(0.7)

    async def talk(session: _ChatSession) -> None:
        watcher = asyncio.create_task(session._watch_events())
        await asyncio.sleep(0.1)
        await session._handle_line("What is the capital of Italy?")
        await asyncio.sleep(0.5)
        watcher.cancel()

    screen = TerminalConsole(file=io.StringIO())
    session = _ChatSession(config, screen)
    monkeypatch.setattr(session, "_stream_chunks", stream)
    asyncio.run(talk(session))
    shown = screen.file.getvalue()
    assert "Rome it is.\n" in shown
    assert "learned: Keep answers short." in shown.partition("it is.")[2]


def test_chat_shows_versions_of_the_policy_that_answers_and_of_no_other(
    config: Config, tmp_path: Path
) -> None:
    root = Policy(
        version=0,
        parent=None,
        state=PolicyState.LIVE,
        path=None,
        digest="",
        base="b",
        identity="i",
        created_at=1.0,
    )
    with Store.open(config.store_path) as store, store.write() as conn:
        for version, name in ((1, "agent:key:agent"), (2, DEFAULT_NAME)):
            policy = replace(
                root, version=version, parent=0, name=name, path=str(tmp_path / f"v{version}")
            )
            policies.insert_version(conn, policy, [], PolicyState.LIVE)
            events.append(conn, "policy.live", str(version), {}, 2.0)
    shown = {}
    owners: tuple[PolicyOwner, ...] = ("all", "agent")
    for per in owners:
        with Store.open(config.store_path) as store, store.write() as conn:
            record_owner(conn, per)
        session = _ChatSession(config, TerminalConsole())
        session._conversation.last_id = "turn-1"
        lines = [session._event_line(event) for event in session._new_events(0)]
        shown[per] = [line for line in lines if line]
    assert shown["all"] == ["version 2 is live"]
    assert shown["agent"] == ["version 1 is live"]
