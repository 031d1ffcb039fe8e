"""A day in OpenClaw's main session as it came over the wire: something wakes the agent between the person's words.

What a wake leaves in later requests (a mark of its own, merged with the person's words that followed, a line about the
run at the end of the first message) moves from one request to the next. The person's turns link all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.collect.world import KEY, TRANSIENT, Ask, Memory, Player, Stored, calls, result

from openclaw_rl.common import message_hash
from openclaw_rl.types import ExchangeStatus, Kind, Message

SYSTEM = "s You are a personal assistant running inside OpenClaw. " + "Rules. " * 300
HEARTBEAT_SYSTEM = SYSTEM + "No owner's tools."
RUN = "Runtime: agent=main | session=agent:main:main | sessionId=7f3a | host=vm | model=openclaw-rl/openclaw"
POLL = "[OpenClaw heartbeat poll]"
PROMPT = (
    "Follow the heartbeat monitor scratch context when provided. Recurring tasks are automations. If nothing needs "
    "attention, reply NO_REPLY.\nCurrent time: Saturday, November 21st, 2026 - 12:11 PM (UTC)"
)
REMINDER = (
    "A scheduled reminder has been triggered. The reminder content is:\n\nwater the plants\n\nHandle this reminder "
    "internally.\nCurrent time: Saturday, November 21st, 2026 - 12:23 PM (UTC)\nReference UTC: 2026-11-21 12:23 UTC"
)
EXEC = (
    "An async command completion event was triggered, but user delivery is disabled for this run. Handle the result "
    "internally and reply NO_REPLY only.\nCurrent time: Saturday, November 21st, 2026 - 12:22 PM (UTC)"
)
EXEC_MARK = "[OpenClaw exec completion]\nDisable automatic completion turns with tools.exec.notifyOnExit=false."
READ = calls(("call_1", "read", '{"path": "notes.txt"}'))
READ_BACK = calls(("call1", "read", '{"path":"notes.txt"}'))
NOTES = result("call1", "the dentist at ten")


def parts(*texts: str) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": t} for t in texts]}


def at(minute: int) -> str:
    return f"[Sat 2026-11-21 12:{minute} UTC] "


ALERT = "The printer is out of paper; shall I order some more of it?"
FIRST_ALONE = parts(at(12) + POLL, POLL, RUN)
FIRST = parts(at(13) + POLL, POLL, "What is in notes.txt?", RUN + " | channel=webchat")
THEN: list[str | Message] = [
    FIRST,
    READ_BACK,
    NOTES,
    "a The dentist.",
    parts(at(14) + POLL, POLL, "no, longer"),
]
LAST = [SYSTEM, *THEN, "a At ten.", f"u {at(15)}{POLL}", f"a {ALERT}"]

DAY = [
    Ask(name="poll", history=[HEARTBEAT_SYSTEM, f"u {PROMPT}\n\n{RUN}", "ctx x"], reply="NO_REPLY"),
    Ask(
        name="read",
        history=[SYSTEM, FIRST_ALONE, f"u {at(13)}What is in notes.txt?", "ctx x"],
        reply=READ,
    ),
    Ask(name="tell", history=[SYSTEM, FIRST, READ_BACK, NOTES, "ctx x"], reply="The dentist."),
    Ask(
        name="again",
        history=[
            HEARTBEAT_SYSTEM,
            FIRST,
            READ_BACK,
            NOTES,
            "a The dentist.",
            f"u {PROMPT}",
            "ctx x",
        ],
        reply="NO_REPLY",
    ),
    Ask(
        name="longer",
        history=[SYSTEM, *THEN[:-1], parts(at(13) + POLL, POLL), f"u {at(14)}no, longer", "ctx x"],
        reply="At ten.",
    ),
    Ask(
        name="alert",
        history=[HEARTBEAT_SYSTEM, *THEN, "a At ten.", f"u {PROMPT}", "ctx x"],
        reply=ALERT,
    ),
    Ask(name="order", history=[*LAST, f"u {at(16)}yes, order it", "ctx x"], reply="Ordered."),
    Ask(
        name="bye",
        history=[*LAST, f"u {at(16)}yes, order it", "a Ordered.", f"u {at(17)}thanks"],
        reply="Bye.",
    ),
]


@pytest.fixture(params=["memory", "store"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield Memory()
    else:
        stored = Stored(tmp_path / "store.db")
        yield stored
        stored.store.close()


def play(world: Player) -> None:
    for step in DAY:
        world.play(step)


def test_turns_of_a_person_link_across_wakes(world: Player) -> None:
    play(world)
    parents = {name: world.seen(name).parent for name in ("tell", "longer", "bye")}
    assert parents == {"tell": "read", "longer": "tell", "bye": "order"}
    reactions = [world.seen(name).answers for name in ("tell", "longer", "order", "bye")]
    assert reactions == [
        {"read": ("exact", ("the dentist at ten",))},
        {"tell": ("exact", (f"{at(14)}no, longer",))},
        {},  # the person answers the alert, not what was said before it
        {"order": ("exact", (f"{at(17)}thanks",))},
    ]


def test_wakes_are_side_traffic(world: Player) -> None:
    play(world)
    assert {s.name for s in DAY if world.seen(s.name).kind is Kind.SIDE} == {
        "poll",
        "again",
        "alert",
    }
    assert world.state("alert") == ("dropped", "side")


def test_requests_are_in_the_session_that_openclaw_names(world: Player) -> None:
    play(world)
    assert {world.seen(s.name).session for s in DAY} == {"7f3a"}


@pytest.mark.parametrize(
    "prompt",
    [
        REMINDER,
        EXEC,
        "[cron:fb9fb8a0-3afa-4a73-bf34-ea6321686035 plants] Remind me of the plants.\n\nThis is an unattended run.",
        f"{PROMPT}\n\n{RUN}",
    ],
)
def test_prompts_of_openclaw_are_client_prompts(prompt: str) -> None:
    world = Memory()
    world.play(Ask(name="woken", history=[SYSTEM, f"u {prompt}"], reply="Done."))
    assert world.seen("woken").kind is Kind.SIDE


@pytest.mark.parametrize(
    ("system", "user"),
    [
        (
            "Generate a concise session title (3-6 words) from the user's first message. Return it only.",
            "Plan a trip.",
        ),
        (
            "You are a context summarization assistant. Your task is to read a conversation.",
            "<conversation> ...",
        ),
        (
            "",
            "Based on this conversation, generate a short 1-2 word filename slug (lowercase).\n\nuser: hi",
        ),
        (
            "You write the live status line for an AI assistant that is working on a chat request.",
            "reading a file",
        ),
    ],
)
def test_other_calls_of_openclaw_are_side_traffic(system: str, user: str) -> None:
    world = Memory()
    world.play(
        Ask(
            name="small", history=[*([f"s {system}"] if system else []), f"u {user}"], reply="Notes"
        )
    )
    assert world.seen("small").kind is Kind.SIDE


@pytest.mark.parametrize(
    "words", ["Follow the heartbeat of the story.", "What is [OpenClaw heartbeat poll] about?"]
)
def test_a_person_may_mention_wakes(words: str) -> None:
    world = Memory()
    world.play(Ask(name="typed", history=[SYSTEM, f"u {at(13)}{words}\n\n{RUN}"], reply="Fine."))
    assert world.seen("typed").kind is Kind.MAIN


def test_the_mark_of_an_ended_command_is_no_text() -> None:
    left = message_hash.mark_messages(
        [parts(at(12) + EXEC_MARK), parts(at(13) + POLL, "and now?")], KEY, TRANSIENT
    )
    plain = message_hash.mark_messages(
        [{"role": "user", "content": at(13) + "and now?"}], KEY, TRANSIENT
    )
    assert [m.chain for m in left] == [m.chain for m in plain]


@pytest.mark.parametrize("retried", [13, 14])
def test_an_aborted_turn_is_sent_again_with_changed_text(retried: int) -> None:
    """The engine failed in the middle of the reply. OpenClaw stamps the retry with its own minute."""
    asked = [SYSTEM, f"u {at(13)}Explain the plan."]
    again = (
        f"u {at(retried)}[Queued user message from a previous active turn; preserved as context only. Continue with "
        "the active prompt below.]\nExplain the plan.\n\nContinue the current task from the existing transcript, "
        "preserving completed work. Do not restart the task or repeat completed actions."
    )
    world = Memory()
    world.play(Ask(name="broken", history=asked, reply="The pl", status=ExchangeStatus.FAILED))
    world.play(Ask(name="again", history=[SYSTEM, again], reply="Three steps."))
    world.play(
        Ask(name="next", history=[*asked, "a Three steps.", f"u {at(14)}thanks"], reply="Bye.")
    )
    assert (world.seen("again").relation, world.seen("again").relation_of) == ("retry", "broken")
    assert world.seen("next").answers == {"again": ("exact", (f"{at(14)}thanks",))}


@pytest.mark.parametrize(
    ("said", "origin"),
    [
        (f"hi\n\n{RUN}", ("7f3a", "main")),
        (RUN, ("7f3a", "main")),
        (f"{RUN}\nis what it printed; why?", None),
        ("Runtime: agent=main", None),
    ],
)
def test_the_session_is_read_at_the_end_of_the_message(
    said: str, origin: tuple[str, str] | None
) -> None:
    assert message_hash.openclaw_session({"role": "user", "content": said}) == origin
    assert message_hash.openclaw_session({"role": "assistant", "content": said}) is None


def test_a_summary_keeps_the_session() -> None:
    """After a compaction: a short reply is not found in a changed history, but the session goes on."""
    world = Memory()
    play(world)
    summary = parts(
        "The history before this point was compacted into the following summary:\n\n<summary>", RUN
    )
    world.play(
        Ask(
            name="after",
            history=[SYSTEM, summary, "a Bye.", f"u {at(30)}hello again"],
            reply="Hello.",
        )
    )
    seen = world.seen("after")
    assert (seen.session, seen.parent, seen.answers) == ("7f3a", None, {})
