"""The questions of a newcomer, each answered by clicks on visible words, at most three of them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.external.page.conftest import Visitor, talk
from tests.external.page.walk import Walk

from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import cards
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem
from openclaw_rl.testing import write_adapter
from openclaw_rl.types import Policy, PolicyState

MAX_CLICKS = 3
WISH = "Please be brief."
"""A reaction from which the rules of the judge learn a lesson."""
UNCLEAR = "hm, the weather is odd today"
TITLE = "What is the capital of France?"
REASON = "it answers questions with one right answer worse"


@pytest.fixture(scope="module")
def refused(home: Path) -> int:
    """A version that the gate has refused, in the store before the system starts."""
    with Store.open(home / "store.db") as store, store.write() as conn:
        head = policies.head(conn)
        version = policies.next_version(conn)
        path = home / "policies" / f"{version:06}-refused"
        digest = write_adapter(path)
        policy = Policy(
            version=version,
            parent=head.version,
            state=PolicyState.REJECTED,
            path=str(path),
            digest=digest,
            base=head.base,
            identity=head.identity,
            reason=REASON,
            reason_code=ReasonCode.WORSE,
            created_at=time.time(),
        )
        policies.insert_version(conn, policy, (), PolicyState.REJECTED)
    return version


@pytest.fixture(scope="module")
def taught(refused: int, system: SubprocessSystem) -> SubprocessSystem:
    """The system, after a person has said today what replies should be like."""
    talk(system, "Why is the sky blue?", WISH)
    deadline = time.monotonic() + 300
    with Store.open(system.config.store_path, create=False) as store:
        while time.monotonic() < deadline:
            with store.read() as conn:
                shown = cards.newest_cards(conn, states=list(LessonState), limit=20)
            if any(card.quote and card.quote.words == WISH for card in shown):
                return system
            time.sleep(0.2)
    raise AssertionError("the judge has learned no lesson")


@pytest.fixture
def walk(taught: SubprocessSystem, visitor: Visitor) -> Iterator[Walk]:
    walk = Walk(visitor)
    yield walk
    assert walk.clicks <= MAX_CLICKS
    visitor.check()


def test_what_did_it_learn_from_me_today(walk: Walk) -> None:
    walk.follow("What it learned")
    walk.sees(re.compile(r"Today it learned \d+ new lessons? from you|You said \d+ lessons? again"))
    walk.sees(f"“{WISH}”")


def test_why_is_a_version_not_in_use(walk: Walk, refused: int) -> None:
    walk.follow("Versions")
    walk.follow(f"Version {refused}")
    walk.sees(f"Version {refused} is not in use: the gate refused it, because {REASON}.")


def test_which_of_my_sentences_was_misunderstood(walk: Walk) -> None:
    walk.follow("Not understood")
    walk.sees(f"“{UNCLEAR}”")


def test_what_would_be_lost_if_i_take_back_this_session(walk: Walk) -> None:
    walk.follow("Conversations")
    walk.follow(TITLE)
    walk.follow("Take this conversation back")
    walk.sees("Nothing has changed yet. This is what would happen:")
    walk.sees(re.compile("repl(y|ies).* taken out"))
    walk.sees("What goes")


def test_is_it_better_than_the_base(walk: Walk) -> None:
    walk.sees(
        re.compile(
            r"People liked \d+ of \d+ replies of the base, and \d+ of \d+ of versions? .*: "
            r"(better than the base|worse than the base|not enough reactions yet to say which is better)\."
        )
    )


def test_its_replies_stand_beside_those_of_the_base(walk: Walk, system: SubprocessSystem) -> None:
    with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
        head = policies.head(conn).version
    walk.follow("Versions")
    walk.follow(f"Version {head}")
    walk.press("Compare replies")
    walk.sees("Before: the base model")
    walk.sees(f"After: version {head}")
