"""The list of conversations with its filters, one conversation, and one turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from benchmarks.home_turns import SESSION_TURNS
from benchmarks.page_home import build_home
from tests.page.views import collect, open_store, show
from tests.store import world

from openclaw_rl.common import message_hash
from openclaw_rl.page.view import NotFound
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.status.conversations.conversation_text import make_search
from openclaw_rl.store import conversations, exchanges, reactions, turn_states, turns
from openclaw_rl.store.conversations import ConversationFilter, VerdictFilter
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, move_head
from openclaw_rl.store.lineage.token_credit import record_credit
from openclaw_rl.types import Capture, Kind, PolicyState, Sampling, Use

LIST = "/ui/conversations"
CONVERSATION = "/ui/conversations/{session}"
TURN = "/ui/turns/{id}"
HOSTILE = "\"'><img src=x onerror=alert(1)>\u202e<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def unhurried_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches end by what they have read, not by the clock; a test of the limit has a clock of its own."""
    monkeypatch.setattr(conversations, "SEARCH_SECONDS", 600.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        with opened.write() as conn:
            policies.ensure_root(conn, base="base", identity="i", at=1.0)
        yield opened


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A home with 80 conversations of ten turns, and 100 episodes."""
    folder = tmp_path_factory.mktemp("page-home")
    build_home(folder, turns=1000)
    with Store.open(folder / "store.db") as opened:
        yield opened


def add_turn(store: Store, id_: str, words: str, *, session: str = "s", **changes: object) -> None:
    messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": words}]
    marks = message_hash.mark_messages(messages, world.KEY, world.NOTHING)
    request = world.request(id_, session=session, messages=messages, marks=marks, **changes)
    with store.write() as conn:
        exchanges.admit(conn, [request])
        exchanges.finish(conn, [world.reply(request)])


def judge(store: Store, id_: str, score: int | None, words: str = "Thanks.") -> None:
    with store.write() as conn:
        world.close(conn, id_, words)
        turns.add_verdict(conn, world.verdict(id_, score=score))


def pages(store: Store, **filters: str) -> list[list[str]]:
    """Return the ids on each page of the list."""
    found = []
    params = dict(filters)
    while True:
        data = collect(store, LIST, params)
        found.append([row["id"] for row in data["rows"]])
        if data["next_query"] is None:
            return found
        params = dict(parse_qsl(data["next_query"]))


# ------------------------------------------------------------------------------------------- list


def test_all_pages_together_have_each_conversation_once(home: Store) -> None:
    shown = [id_ for page in pages(home) for id_ in page]
    assert len(shown) == len(set(shown)) == 80
    data = collect(home, LIST)
    assert len(data["rows"]) == 30
    times = [row["last_at"] for row in data["rows"]]
    assert times == sorted(times, reverse=True)
    assert {row["turns"] for row in data["rows"]} == {SESSION_TURNS}


def test_turns_of_episodes_are_no_conversations(home: Store) -> None:
    data = collect(home, LIST, {"agent": "worker"})
    assert not data["rows"]
    assert "worker" in [name for name, _ in data["agents"]]


@pytest.mark.parametrize("verdict", list(VerdictFilter))
def test_a_filter_by_verdict_finds_what_a_look_at_each_turn_finds(
    home: Store, verdict: VerdictFilter
) -> None:
    scores = {
        VerdictFilter.GOOD: 1,
        VerdictFilter.BAD: -1,
        VerdictFilter.NEITHER: 0,
        VerdictFilter.NO_OPINION: None,
    }
    wanted = set()
    with home.read() as conn:
        everything = ConversationFilter()
        sessions = conversations.find_conversations(
            conn, everything, before=None, limit=1000
        ).sessions
        for summary in conversations.summarise(conn, sessions):
            count = summary.waiting
            if verdict is not VerdictFilter.WAITING:
                count = summary.scores.get(scores[verdict], 0)
            if count:
                wanted.add(summary.first_turn)
    shown = [id_ for page in pages(home, verdict=verdict.value) for id_ in page]
    assert len(shown) == len(set(shown))
    assert set(shown) == wanted


def test_a_filter_by_agent_user_and_day(store: Store) -> None:
    add_turn(store, "a", "one", session="1", agent="x", user="ada", admitted_at=86400.0 * 3 + 5)
    add_turn(store, "b", "two", session="2", agent="", user="ben", admitted_at=86400.0 * 4 + 5)
    assert pages(store, agent="x") == [["a"]]
    assert pages(store, agent="-") == [["b"]]
    assert pages(store, user="ben", agent="x") == [[]]
    assert pages(store, day="1970-01-04") == [["a"]]
    assert pages(store, day="1970-01-06") == [[]]


def test_a_day_is_one_of_the_browsers_calendar(store: Store) -> None:
    """Berlin was an hour ahead of UTC, so that the last hour of a day in UTC is the first of the next one there."""
    add_turn(store, "late", "one", session="1", admitted_at=86400.0 * 3 - 1800)
    berlin = ZoneInfo("Europe/Berlin")
    for zone, day in ((UTC, "1970-01-03"), (berlin, "1970-01-04")):
        rows = collect(store, LIST, {"day": day}, zone=zone)["rows"]
        assert [row["id"] for row in rows] == ["late"]
    assert collect(store, LIST, {"day": "1970-01-03"}, zone=berlin)["rows"] == []


def test_a_filter_by_why_a_turn_was_not_learned_from(store: Store) -> None:
    add_turn(store, "a", "one", session="1")
    add_turn(store, "b", "two", session="2")
    with store.write() as conn:
        turn_states.drop(conn, "a", ReasonCode.TIMEOUT, "nobody answered in time", at=20.0)
    data = collect(store, LIST, {"why": "timeout"})
    assert [row["id"] for row in data["rows"]] == ["a"]
    assert data["codes"] == [("timeout", "nobody reacted in time", 1)]


def test_search_finds_the_words_of_the_person_and_of_the_reply_without_case(store: Store) -> None:
    add_turn(store, "a", "Wie groß ist der ÄTNA?", session="1")
    add_turn(store, "b", 'What does "owl" mean?', session="2")
    assert pages(store, q="ätna GROSS") == [["a"]]
    assert pages(store, q='"OWL"') == [["b"]]
    assert pages(store, q="asked for") == [["b", "a"]], "words of the reply"
    assert pages(store, q="You help") == [[]], "instructions are not words of the conversation"
    assert pages(store, q="ätna owl") == [[]], "all words have to be in one turn"


def test_search_does_not_find_what_an_earlier_turn_brought(store: Store) -> None:
    is_match = make_search("owls")
    assert is_match is not None
    history = b'[{"role":"user","content":"owls"},{"role":"assistant","content":"ok"},'
    assert not is_match(history + b'{"role":"user","content":"thanks"}]', b"")
    assert is_match(history + b'{"role":"user","content":"Owls?"}]', b"")
    assert not is_match(b"owls, but no JSON", b""), "a damaged row fits no search"


def test_a_search_that_takes_long_says_until_when_it_has_searched(
    home: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than one step of the clock below.
    monkeypatch.setattr(conversations, "SEARCH_SECONDS", 0.5)
    wanted = ConversationFilter(is_match=make_search("unheard of"))
    clock = itertools.count()
    before = None
    steps = 0
    with home.read() as conn:
        while True:
            page = conversations.find_conversations(
                conn, wanted, before=before, limit=30, clock=lambda: float(next(clock))
            )
            steps += 1
            assert not page.sessions
            if page.before is None:
                break
            assert page.searched_until is not None
            assert before is None or page.before < before
            before = page.before
    assert steps > 2
    assert "Search further back" in _interrupted_search(home)


def _interrupted_search(home: Store) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversations, "SEARCH_SECONDS", -1.0)
        return show(home, LIST, {"q": "unheard"})


@pytest.mark.parametrize(
    "params",
    [{"day": "yesterday"}, {"verdict": "x"}, {"why": "x"}, {"before": "1e3"}, {"before": "1_0"}],
)
def test_an_address_that_means_nothing_is_refused(store: Store, params: dict[str, str]) -> None:
    with pytest.raises(NotFound):
        collect(store, LIST, params)


def test_an_empty_list_says_what_to_do(store: Store) -> None:
    assert "chat here" in show(store, LIST)
    assert "No conversation fits" in show(store, LIST, {"verdict": "good"})


def test_titles_are_the_first_words_of_the_person(store: Store) -> None:
    long = "Please explain " + "the old lighthouse " * 9
    add_turn(store, "a", f"[Mon 2026-03-02 10:11 UTC] {long}", session="1")
    add_turn(store, "b", "  ", session="2")
    titles = [row["title"] for row in collect(store, LIST)["rows"]]
    assert titles[0] == "conversation without text"
    assert titles[1].startswith("Please explain the old lighthouse")
    assert titles[1].endswith(" …")
    assert len(titles[1]) <= 70


def test_the_first_part_of_the_list_is_live_and_keeps_its_filters(home: Store) -> None:
    shown = show(home, LIST, {"verdict": "bad"})
    assert 'hx-get="/ui/conversations?verdict=bad"' in shown
    assert "hx-trigger" not in show(home, LIST, {"before": "500"})


# ------------------------------------------------------------------------------- one conversation


def test_a_conversation_shows_each_reply_with_its_reaction_and_verdict(store: Store) -> None:
    add_turn(store, "a", "What is an owl?")
    judge(store, "a", -1, "Too long, please.")
    add_turn(store, "b", "Too long, please.")
    data = collect(store, CONVERSATION, {"session": "b"})
    assert data["id"] == "a"
    first, second = data["turns"]
    assert [message["who"] for message in first["messages"]] == ["Instructions", "Person"]
    assert first["reply"]["text"] == world.WORDS
    assert first["verdict"]["word"] == "not good"
    assert second["training"].text == "Not learned from yet: nobody has reacted to it."
    shown = show(store, CONVERSATION, {"session": "a"})
    assert "<q>Too long, please.</q>" in shown
    assert 'hx-get="/ui/acts/score?turn=a"' in shown
    assert 'href="/ui/take-back?turn=a"' in shown


def test_replies_are_ticked_to_take_them_back(store: Store) -> None:
    add_turn(store, "a", "What is an owl?")
    add_turn(store, "b", "Too long, please.")
    shown = show(store, CONVERSATION, {"session": "a", "turn": "b"})
    tick = 'type="checkbox" name="turn" value="{0}" id="tick-{0}" form="ticked"{1}>'
    assert tick.format("a", "") in shown
    assert tick.format("b", " checked") in shown, "an update keeps it"
    assert '<form id="ticked" method="get" action="/ui/take-back">' in shown
    assert 'href="/ui/take-back?conversation=a"' in shown


def test_a_long_conversation_has_parts(store: Store) -> None:
    for number in range(90):
        add_turn(store, f"t{number:02}", f"question {number}")
    parts = []
    start: int | None = 0
    while start is not None:
        data = collect(store, CONVERSATION, {"session": "t50", "from": str(start)})
        parts.append([turn["id"] for turn in data["turns"]])
        start = data["later"]
    assert [len(part) for part in parts] == [40, 40, 10]
    assert list(itertools.chain(*parts)) == [f"t{number:02}" for number in range(90)]
    last = collect(store, CONVERSATION, {"session": "t50", "from": "81"})
    assert last["earlier"] == 41


def test_sessions_of_two_keys_with_one_name_are_two_conversations(store: Store) -> None:
    add_turn(store, "a", "mine", session="main", scope="one")
    add_turn(store, "b", "yours", session="main", scope="two")
    assert [row["title"] for row in collect(store, LIST)["rows"]] == ["yours", "mine"]
    assert [turn["id"] for turn in collect(store, CONVERSATION, {"session": "a"})["turns"]] == ["a"]


@pytest.mark.parametrize(("path", "name"), [(CONVERSATION, "session"), (TURN, "id")])
def test_an_unknown_conversation_or_turn_is_not_found(store: Store, path: str, name: str) -> None:
    with pytest.raises(NotFound):
        collect(store, path, {name: "nothing"})


def test_tool_calls_and_results_can_be_read(store: Store) -> None:
    messages = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "function": {"name": "look", "arguments": '{"at":"ünten"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "three files"},
    ]
    marks = message_hash.mark_messages(messages, world.KEY, world.NOTHING)
    request = world.request("a", messages=messages, marks=marks)
    with store.write() as conn:
        exchanges.admit(conn, [request])
        exchanges.finish(conn, [world.reply(request)])
    shown = show(store, TURN, {"id": "a"})
    assert "Calls the tool look" in shown
    assert "&#34;at&#34;: &#34;ünten&#34;" in shown
    assert "Result of a tool" in shown
    data = collect(store, TURN, {"id": "a"})
    assert [message["text"] for message in data["turn"]["messages"]] == ["three files"]
    assert len(data["turn"]["history"]) == 2


# --------------------------------------------------------------------------------------- one turn


def learn(store: Store, id_: str, credit: list[float]) -> None:
    with store.write() as conn:
        version = policies.next_version(conn)
        uses = [Use(policy=version, turn=id_, number=version)]
        policies.insert_version(conn, world.policy(version, version - 1), uses, PolicyState.LIVE)
        move_head(conn, DEFAULT_NAME, version)
        record_credit(conn, version, {id_: np.array(credit, np.float16)})


def test_the_tokens_of_a_reply_are_coloured_by_credit_or_by_log_probability(store: Store) -> None:
    add_turn(store, "a", "What is an owl?")
    judge(store, "a", 1)
    learn(store, "a", [0.5, 0.0, -0.02])
    tokens = collect(store, TURN, {"id": "a"})["tokens"]
    assert tokens["chosen"] == "credit-1"
    assert [token.classes for token in tokens["tokens"]] == ["tok-p tok-6", "", "tok-n tok-1"]
    assert tokens["tokens"][0].title == "credit in version 1 +0.5, log-probability -1.5"
    likely = collect(store, TURN, {"id": "a", "show": "logprob"})["tokens"]
    assert [token.classes for token in likely["tokens"]] == ["tok-s tok-2", "tok-s tok-1", ""]
    plain = collect(store, TURN, {"id": "a", "show": "plain"})["tokens"]
    assert {token.classes for token in plain["tokens"]} == {""}
    shown = show(store, TURN, {"id": "a", "show": "logprob"})
    assert 'href="/ui/turns/a?show=credit-1"' in shown
    assert "style=" not in shown


def test_credit_of_two_versions_can_be_compared(store: Store) -> None:
    add_turn(store, "a", "What is an owl?")
    judge(store, "a", 1)
    learn(store, "a", [0.5, 0.0, -0.02])
    learn(store, "a", [0.25, 0.0, 0.0])
    data = collect(store, TURN, {"id": "a"})
    names = [measure.name for measure in data["tokens"]["measures"]]
    assert names == ["credit-2", "credit-1", "logprob"]
    assert data["turn"]["versions"] == [1, 2]
    assert data["turn"]["training"].text == "Learned from in version 1, 2."


def test_a_turn_that_cannot_train_says_what_would_help(store: Store) -> None:
    sampling = Sampling(temperature=0.0)
    add_turn(store, "a", "What is an owl?", sampling=sampling)
    training = collect(store, TURN, {"id": "a"})["turn"]["training"]
    assert training.code is ReasonCode.GREEDY
    assert "serve.sampling_override" in training.cure
    assert "serve.sampling_override" in show(store, TURN, {"id": "a"})


def test_a_redacted_and_a_running_turn_are_shown_without_text(store: Store) -> None:
    request = world.request("secret", capture=Capture.REDACTED)
    running = world.request("running")
    with store.write() as conn:
        exchanges.admit(conn, [request, running])
        exchanges.finish(conn, [world.reply(request)])
    assert "is not stored" in show(store, TURN, {"id": "secret"})
    assert "not complete yet" in show(store, TURN, {"id": "running"})
    assert "conversation without text" in show(store, LIST)


def test_a_damaged_turn_is_shown_as_far_as_it_can_be_read(store: Store) -> None:
    add_turn(store, "a", "What is an owl?")
    judge(store, "a", 1)
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE bodies SET messages = x'7b'")
        conn.exec_driver_sql("UPDATE verdicts SET votes = x'7b'")
    for path, name in ((TURN, "id"), (CONVERSATION, "session")):
        assert "is not stored" in show(store, path, {name: "a"})
    assert "conversation without text" in show(store, LIST)


def test_practice_is_shown_by_itself(store: Store) -> None:
    add_turn(store, "a", "What is an owl?")
    with store.write() as conn:
        reactions.set_position(
            conn,
            "a",
            session="p",
            parent=None,
            kind=Kind.PRACTICE,
            relation="fresh",
            relation_of=None,
            unlinked=None,
        )
    assert "no more in this conversation" in show(store, CONVERSATION, {"session": "a"})
    assert world.WORDS in show(store, TURN, {"id": "a"})


def test_hostile_text_is_only_text_everywhere(store: Store) -> None:
    add_turn(store, "a", HOSTILE, agent=HOSTILE, user=HOSTILE, lessons={"ab": HOSTILE})
    with store.write() as conn:
        world.close(conn, "a", HOSTILE)
        turns.add_verdict(conn, world.verdict("a", score=-1, hints=(HOSTILE,), reason=HOSTILE))
    pages_ = [
        show(store, LIST, {"q": HOSTILE, "agent": HOSTILE}),
        show(store, LIST),
        show(store, CONVERSATION, {"session": "a"}),
        show(store, TURN, {"id": "a", "show": HOSTILE}),
        show(store, "/ui/now"),
    ]
    for shown in pages_:
        assert "<img" not in shown
        assert "<script>" not in shown
        assert "\u202e" not in shown
    assert all("&lt;img" in shown for shown in pages_[:4])
