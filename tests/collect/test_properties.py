"""What holds for any traffic: no link across keys, no wrong link from short replies, the same links in any company."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collect.world import Ask, End, Memory, Stored

from openclaw_rl.types import ExchangeStatus

SHORT = ("OK", "Yes.", "")
LONG = (
    "There is a good Italian place by the river.",
    "How about the new noodle bar on Mill Street?",
)
DONE = ExchangeStatus.DONE
Turn = tuple[str, str, str, ExchangeStatus]  # move, word, reply, how it ended
Script = Sequence[tuple[int, Turn]]  # who, and what


class Talk:
    """A person who goes on, goes back, edits and asks again, with few words, so that much looks the same."""

    def __init__(self, player: Memory | Stored, prefix: str = "", scope: str = "key") -> None:
        self._player, self._prefix, self._scope = player, prefix, scope
        self._history: list[str] = []
        self._n = 0
        self.asked: dict[str, Ask] = {}
        self.replied: dict[str, str] = {}

    def turn(self, move: str, word: str, reply: str, status: ExchangeStatus, tag: str) -> str:
        if move == "back":
            self._history = self._history[:-2]
        elif move == "edit" and self._history:
            self._history[0] = f"u edited {word}"
        elif move == "new":
            self._history = []
        if move != "again":
            self._history = [*self._history, f"u {self._prefix}{word}"]
        self._n += 1
        name = f"{self._scope}-{tag}-{self._n}"
        ask = Ask(name=name, history=list(self._history), scope=self._scope)
        self._player.play(ask)
        self._player.play(End(name=name, reply=reply, status=status))
        self.asked[name], self.replied[name] = ask, reply
        if status is DONE:
            self._history = [*self._history, f"a {reply}"]
        return name


turns = st.tuples(
    st.sampled_from(["on", "on", "on", "again", "back", "edit", "new"]),
    st.sampled_from(["hi", "no", "why?"]),
    st.sampled_from(SHORT + LONG),
    st.sampled_from([DONE, DONE, DONE, ExchangeStatus.FAILED, ExchangeStatus.CANCELLED]),
)
short_turns = st.tuples(
    st.sampled_from(["on", "on", "again", "back", "edit", "new"]),
    st.sampled_from(["hi", "no"]),
    st.sampled_from(SHORT),
    st.sampled_from([DONE, DONE, ExchangeStatus.CANCELLED]),
)
scripts = st.lists(st.tuples(st.integers(0, 2), turns), min_size=1, max_size=25)


@given(scripts)
@settings(max_examples=60, deadline=None)
def test_conversations_of_different_keys_are_never_linked(script: Script) -> None:
    world = Memory()
    talks = [Talk(world, scope=f"key{n}") for n in range(3)]
    for n, (move, word, reply, status) in script:
        name = talks[n].turn(move, word, reply, status, "x")
        seen = world.seen(name)
        others = [*seen.answers, *(x for x in (seen.parent, seen.relation_of) if x)]
        assert all(other.startswith(f"key{n}-") for other in others), (name, seen)


@given(st.lists(st.tuples(st.integers(0, 1), short_turns), min_size=2, max_size=25))
@settings(max_examples=80, deadline=None)
def test_short_replies_link_only_after_an_equal_history(script: Script) -> None:
    world = Memory()
    talks = [Talk(world), Talk(world)]
    for n, (move, word, reply, status) in script:
        name = talks[n].turn(move, word, reply, status, f"p{n}")
        asked = {k: v for t in talks for k, v in t.asked.items()}
        replied = {k: v for t in talks for k, v in t.replied.items()}
        history = list(asked[name].history)
        seen = world.seen(name)
        for earlier in {*seen.answers, *([seen.parent] if seen.parent else [])}:
            whole = [*asked[earlier].history, f"a {replied[earlier]}"]
            assert history[: len(whole)] == whole, (name, earlier)
        for turn, (how, words) in seen.answers.items():
            after = history[len(asked[turn].history) + 1 :]
            assert how == "exact"
            assert words == tuple(_words(after)), (name, turn)


def _words(after: Sequence[str]) -> list[str]:
    out: list[str] = []
    for line in after:
        if line.startswith("a "):
            break
        out.append(line.removeprefix("u "))
    return out


@given(scripts, scripts, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_unrelated_traffic_changes_nothing(
    script: Script, noise: Script, rng: random.Random
) -> None:
    """The same talk alone, and with a stranger's talk (other words) mixed in at random through the same key."""
    alone, mixed = Memory(), Memory()
    talk, same, stranger = Talk(alone), Talk(mixed), Talk(mixed, prefix="stranger: ")
    rest = [step for _, step in noise]
    for _, step in script:
        name = talk.turn(*step, "mine")
        while rest and rng.random() < 0.5:
            move, word, reply, status = rest.pop()
            stranger.turn(move, word, f"{reply} (to the stranger)", status, "theirs")
        same.turn(*step, "mine")
        assert alone.seen(name) == mixed.seen(name)


@given(st.lists(turns, min_size=1, max_size=8))
@settings(max_examples=8, deadline=None)
def test_events_processed_twice_change_nothing(script: Sequence[Turn]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = Stored(Path(folder) / "store.db")
        talk = Talk(world)
        for step in script:
            talk.turn(*step, "x")
        before = world.snapshot()
        world.replay()
        assert world.snapshot() == before
        world.store.close()
