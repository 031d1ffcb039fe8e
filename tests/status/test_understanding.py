"""What share of the reactions was understood, and what the chat and `status` say about the others."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from tests.store.world import close, serve, verdict

from openclaw_rl.cli.chat import _ChatSession
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.status import report
from openclaw_rl.status.understanding import EXAMPLES, ReactionKind, count_understood
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies

REACTIONS: dict[str, tuple[str, int | None, tuple[str, ...]]] = {
    "praise": ("Thanks.", 1, ()),
    "wish": ("Could you use a table?", None, ("Use a table.",)),
    "unclear 1": ("hm", None, ()),
    "unclear 2": ("What a day.", None, ()),
    "unclear 3": ("A line\nof several\nlines", None, ()),
    "unclear 4": ("so so", None, ()),
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = from_flat({"home": str(tmp_path), "serve.api_key": "secret"})
    with Store.open(config.store_path) as store, store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
        for turn, (text, score, hints) in REACTIONS.items():
            serve(conn, turn)
            close(conn, turn, text)
            assert turns.add_verdict(conn, verdict(turn, 1, score, hints=hints))
    return config


def test_a_score_or_a_hint_is_understood_and_the_newest_others_are_quoted(config: Config) -> None:
    with report.read_store(config) as conn:
        counts = count_understood(conn)
    assert list(counts) == [ReactionKind.PERSON]
    person = counts[ReactionKind.PERSON]
    assert (person.judged, person.understood) == (6, 2)
    assert [quoted.text for quoted in person.not_understood] == [
        "so so",
        "A line of several lines",
        "What a day.",
    ]
    assert len(person.not_understood) == EXAMPLES


def test_a_newer_verdict_on_the_same_turn_counts_alone(config: Config) -> None:
    with Store.open(config.store_path) as store, store.write() as conn:
        close(conn, "unclear 1", "hm, wrong")
        assert turns.add_verdict(conn, verdict("unclear 1", 2, -1))
    with report.read_store(config) as conn:
        person = count_understood(conn)[ReactionKind.PERSON]
    assert (person.judged, person.understood) == (6, 3)


def test_words_that_say_nothing_of_the_reply_are_understood(config: Config) -> None:
    with Store.open(config.store_path) as store, store.write() as conn:
        close(conn, "unclear 2", "What is the capital of Peru?")
        new_topic = verdict("unclear 2", 2, None, reason_code=ReasonCode.NO_EVIDENCE)
        assert turns.add_verdict(conn, new_topic)
    with report.read_store(config) as conn:
        person = count_understood(conn)[ReactionKind.PERSON]
    assert (person.judged, person.understood) == (6, 3)
    session = _ChatSession(config, TerminalConsole(file=io.StringIO()))
    assert session._verdict_line("unclear 2") is None
    session._store.close()


def test_status_quotes_what_was_not_understood(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    report.show_status(config, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "understood: 2 of 6 messages of people" in shown
    assert 'not understood: "so so"' in shown


def test_the_chat_asks_about_a_reply_and_one_character_answers(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[tuple[str, dict[str, Any]]] = []

    class Http:
        def post(self, url: str, *, json: dict[str, Any]) -> Any:
            posted.append((url, json))
            return Answer()

    class Answer:
        status = 200

        async def __aenter__(self) -> Answer:
            return self

        async def __aexit__(self, *_: object) -> None:
            return None

    session = _ChatSession(config, TerminalConsole(file=io.StringIO()))
    session._http = Http()  # type: ignore[assignment]
    session._conversation.reply_ids.update(REACTIONS)
    session._conversation.last_id = "newest"
    lines = [
        session._event_line(event)
        for event in session._new_events(0)
        if event.kind == "turn.judged" and event.ref in ("wish", "unclear 1")
    ]
    assert lines[0] == "understood as a wish (hint: Use a table.)"
    assert lines[1] is not None
    assert "made nothing of that" in lines[1]
    asyncio.run(session._handle_line("/good well done"))
    asyncio.run(session._handle_line("-"))
    asyncio.run(session._handle_line("+"))
    assert [body for _, body in posted] == [
        {"id": "newest", "thumbs": "up", "comment": "well done"},
        {"id": "unclear 1", "thumbs": "down"},
        {"id": "newest", "thumbs": "up"},
    ]
    sent: list[str] = []

    async def record(text: str) -> None:
        sent.append(text)

    monkeypatch.setattr(session, "_send_message", record)
    asyncio.run(session._handle_line("- milk and eggs"))
    assert sent == ["- milk and eggs"]
