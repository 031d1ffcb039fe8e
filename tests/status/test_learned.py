"""`learned` shows the turns behind each version, and the credit that the step gave to each token."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.status.test_inspect import made
from tests.store import world

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import OpenClawError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.tokenizer import CachedTokenizer
from openclaw_rl.settings.load import STARTER
from openclaw_rl.store import exchanges, leases, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.practice_turns import PracticeTurn
from openclaw_rl.store.lineage import policies, probe_answers, token_credit
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer
from openclaw_rl.train.undo import lesson_id
from openclaw_rl.types import Capture, Kind, Origin, Use

REPLY = "Café <b>très</b> 東京 \x1b[31m!"
HINT = "Be <i>brief</i>."


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Version 1 was trained on "a", version 2 on "b" and on "a" once more."""
    ids = CachedTokenizer(ModelFiles.from_path(STARTER)).encode(REPLY).tolist()
    store = Store.open(tmp_path / "store.db")
    with store.write() as conn:
        policies.ensure_root(conn, base="b", identity="i", at=1.0)
        lease = leases.acquire(conn, "train", "test", now=20.0, ttl=1000.0)
        assert lease is not None
        for id_, session in (("a", "s1"), ("b", "s2")):
            request = world.request(id_, session=session)
            message = {"role": "assistant", "content": REPLY}
            exchanges.admit(conn, [request])
            exchanges.finish(conn, [world.reply(request, ids, message=message)])
            world.close(conn, id_, words="<script>alert(1)</script>")
            assert turns.add_verdict(
                conn, world.verdict(id_, score=-1, hints=(HINT,), reason="too long")
            )
        policies.publish(conn, lease, made(1, 0), [Use(policy=1, turn="a", number=1)], 21.0)
        uses = [Use(policy=2, turn="b", number=1), Use(policy=2, turn="a", number=2)]
        policies.publish(
            conn, lease, replace(made(3, 1), version=2, metrics={"retrained": 1.0}), uses, 22.0
        )
        credit = np.full(len(ids), -1.0)
        credit[0] = 0.5
        token_credit.record_credit(conn, 1, {"a": credit.astype(np.float16)})
        answer = {
            "question": "Why?",
            "head_answer": "Because.",
            "candidate_answer": "So.",
            "verdict": 0.5,
        }
        changed = [ProbeAnswer(version=2, probe=name, head=1, **answer) for name in ("p1", "p2")]
        same = replace(changed[1], candidate_answer="Because.")
        probe_answers.record_answers(conn, [changed[0], same])
    store.close()
    return tmp_path


def learned(home: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, ["learned", "--home", str(home), *words])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_versions_turns_credit_lessons_and_changed_answers(home: Path) -> None:
    data = json.loads(learned(home, "--json"))
    second, first = data["versions"]
    assert [
        (v["version"], v["retrained"], [t["turn"] for t in v["turns"]]) for v in (first, second)
    ] == [
        (1, False, ["a"]),
        (2, True, ["b", "a"]),
    ]
    assert [turn["replay"] for turn in second["turns"]] == [False, True]
    assert second["turns"][0]["credit"] is None, "of a version that recorded none"
    turn = first["turns"][0]
    assert "".join(turn["credit"]["tokens"]) == REPLY
    assert turn["credit"]["sum"] == 0.5 - (len(turn["credit"]["values"]) - 1)
    assert (turn["verdict"]["score"], turn["verdict"]["hints"], turn["session"]) == (
        -1,
        [HINT],
        "s1",
    )
    assert data["lessons"] == [{"id": lesson_id(HINT), "hint": HINT, "turns": 2}]
    assert (data["turns"], data["agents"], data["sessions"]) == (
        2,
        {"agent": 2},
        {"s1": 1, "s2": 1},
    )
    assert [answer["probe"] for answer in second["changed_answers"]] == ["p1"]


def test_one_version_one_session_or_the_newest(home: Path) -> None:
    assert [v["version"] for v in json.loads(learned(home, "1", "--json"))["versions"]] == [1]
    assert [
        v["version"] for v in json.loads(learned(home, "--limit", "1", "--json"))["versions"]
    ] == [2]
    of_session = json.loads(learned(home, "--session", "s2", "--json"))
    assert [[t["turn"] for t in v["turns"]] for v in of_session["versions"]] == [["b"]]
    assert json.loads(learned(home, "--since", "2199-01-01", "--json"))["versions"] == []
    with pytest.raises(OpenClawError, match="no policy version 7"):
        learned(home, "7")
    with pytest.raises(OpenClawError, match="no turn of session 'other'"):
        learned(home, "--session", "other")


def test_practice_is_counted_apart_and_shows_the_prompt_that_was_asked_again(home: Path) -> None:
    store = Store.open(home / "store.db")
    with store.write() as conn:
        lease = leases.acquire(conn, "train", "test", now=20.0, ttl=1000.0)
        assert lease is not None
        request = world.request("p", scope="practice", session="practice-p", kind=Kind.PRACTICE)
        item = PracticeTurn(
            request=request, reply=world.reply(request), source="a", lessons={"aa": HINT}, hint=HINT
        )
        practice_turns.add_turns(conn, [item], at=20.0)
        policies.publish(conn, lease, made(3, 2), [Use(policy=3, turn="p", number=1)], 23.0)
    store.close()
    data = json.loads(learned(home, "--json"))
    assert (data["turns"], data["practice"], data["sessions"]) == (3, 1, {"s1": 1, "s2": 1})
    (turn,) = data["versions"][0]["turns"]
    assert (turn["user"], turn["practice_of"]) == ("this is a", "a")
    words = " ".join(learned(home).split())
    assert "3, of which 1 are replies of practice" in words
    assert "practice 1 reply to 1 prompt (--practice shows them)" in words
    assert "another reply to the prompt of a" not in words
    shown = " ".join(learned(home, "--practice").split())
    assert "practice, another reply to the prompt of a" in shown


def test_contrasts_are_named(home: Path) -> None:
    with Store.open(home / "store.db") as store, store.write() as conn:
        lease = leases.acquire(conn, "train", "test", now=20.0, ttl=1000.0)
        assert lease is not None
        items = []
        for id_, origin in (("p", Origin.TEACHER), ("q", Origin.CONTRAST)):
            request = world.request(
                id_,
                scope="practice",
                session=f"practice-{id_}",
                kind=Kind.PRACTICE,
                origin=origin,
            )
            reply = world.reply(request)
            items.append(
                PracticeTurn(
                    request=request, reply=reply, source="a", lessons={"aa": HINT}, hint=HINT
                )
            )
        practice_turns.add_turns(conn, items, at=20.0)
        uses = [Use(policy=3, turn=id_, number=1) for id_ in ("p", "q")]
        policies.publish(conn, lease, made(3, 2), uses, 23.0)
    assert "2 replies to 1 prompt; 1 of them contrasts" in " ".join(learned(home).split())
    shown = " ".join(learned(home, "--practice").split())
    assert "contrast, a reply under a wish that contradicts the lesson" in shown
    learned(home, "--html", str(home / "page.html"))
    assert "<details>" in (home / "page.html").read_text(encoding="utf-8")


def test_it_begins_with_one_line_for_each_lesson(home: Path) -> None:
    with Store.open(home / "store.db") as store, store.write() as conn:
        for id_, text in (("aa", "Keep answers short."), ("bb", "Use no emoji.")):
            lessons.add_lesson(
                conn,
                Lesson(
                    id=id_,
                    key="key",
                    text=text,
                    topic="",
                    made_at=float(id_ == "bb"),
                    reinforced_at=float(id_ == "bb"),
                ),
            )
    first, second = learned(home).splitlines()[:2]
    assert first == "Use no emoji. (in prompts, not yet in the weights)"
    assert second == "Keep answers short. (in prompts, not yet in the weights)"


def test_a_version_that_learned_nothing_names_no_agents(home: Path) -> None:
    assert learned(home, "0").split() == ["turns", "0"]


def test_in_the_terminal(home: Path) -> None:
    text = learned(home)
    assert "\x1b" not in text
    words = " ".join(text.split())
    for part in (
        "version 2 (of 1)",
        "trained again by an undo",
        HINT,
        "credit",
        "-1 by rules",
        "before: Because.",
    ):
        assert part in words


class Page(HTMLParser):
    """Collects the tags, the text and the titles of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text, self.titles = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.titles += [value or "" for name, value in attrs if name == "title"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_escaped_and_loads_nothing(home: Path, tmp_path: Path) -> None:
    learned(home, "--html", str(tmp_path / "page.html"))
    raw = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(raw)
    assert not page.tags & {"script", "b", "i", "img", "link", "iframe"}
    assert "http://" not in raw.replace('http-equiv="Content', "")
    assert "https://" not in raw
    assert "<b>très</b> 東京 \ufffd[31m!" in page.text
    assert "<script>alert(1)</script>" in page.text
    assert set(page.titles) == {"+0.5", "-1"}


def test_redacted_turns_have_no_text(home: Path) -> None:
    store = Store.open(home / "store.db")
    with store.write() as conn:
        request = world.request("r", messages=(), marks=(), capture=Capture.REDACTED, session="s3")
        exchanges.admit(conn, [request])
        lease = leases.acquire(conn, "train", "test", now=20.0, ttl=1000.0)
        assert lease is not None
        policies.publish(conn, lease, made(3, 2), [Use(policy=3, turn="r", number=1)], 23.0)
    store.close()
    assert "(redacted)" in learned(home, "--session", "s3")
