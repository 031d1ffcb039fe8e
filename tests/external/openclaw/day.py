"""What the person and the model say in a day, what else OpenClaw does in it, and what the store holds at its end."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.external.openclaw.agent import OpenClaw
from tests.external.openclaw.scripted_system import ScriptedSystem, wait_for

from openclaw_rl.common.message_hash import message_text, strip_client_text
from openclaw_rl.store import exchanges, turns
from openclaw_rl.types import Exchange, Kind, Message, Reaction, Turn, Verdict

# A transcript of this size is flushed to the agent's memory: after the first turn. Compaction is asked for.
SETTINGS: Mapping[str, Any] = {
    "agents": {
        "defaults": {
            "compaction": {
                "mode": "default",
                "keepRecentTokens": 300,
                "recentTurnsPreserve": 1,
                "memoryFlush": {"forceFlushTranscriptBytes": 400},
            }
        }
    }
}


def run(command: str) -> dict[str, Any]:
    return {"name": "exec", "arguments": {"command": command}}


READ = {"name": "read", "arguments": {"path": "notes.txt"}}
SUMMARY = "## Goal\nThe person asked about notes and two sums.\n\n## Progress\nBoth are done.\n\n## Next Steps\nNone."
PLAN = "The plan has three steps: read the notes, call the dentist, and then write down the time."
ALERT = "The printer is out of paper; shall I order some more of it?"
SCRIPT: Sequence[Mapping[str, Any]] = (
    {"when": "You are a context summarization", "say": SUMMARY},
    {"when": "<conversation>", "say": SUMMARY},
    {"when": "What is in notes.txt?", "calls": [READ]},
    {
        "when": "the dentist at ten",
        "say": "Your notes say: the dentist at ten. Shall I put it in the calendar?",
    },
    {"when": "no, shorter please", "say": "Dentist, ten o'clock."},
    {"when": "two things", "calls": [run("echo one-$((40+2))"), run("echo two-$((1+1))")]},
    {"when": "one-42", "say": "The first one says 42 and the second one says 2; both ran well."},
    {"when": "thanks, perfect", "say": "You are welcome; I am here for whatever comes next."},
    {"when": "Explain the plan", "say": PLAN},
    {"when": "good bye", "say": "Good bye, and have a nice day."},
    {
        "when": "memory flush",
        "calls": [{"name": "write", "arguments": {"path": "memory/x.md", "content": "ten"}}],
    },
    {"when": "memory/", "say": "NO_REPLY"},
    {"when": "Please plan my trip", "near": "concise session title", "say": "A trip to Oslo"},
    {"when": "Please plan my trip", "say": "A trip to Oslo: three museums in two days, by train."},
    {"when": "heartbeat monitor", "near": "all is quiet", "say": "NO_REPLY"},
    {"when": "heartbeat monitor", "say": ALERT},
    {"when": "Look at the notes", "calls": [{"name": "read", "arguments": {"path": "other.txt"}}]},
    {"when": "milk and bread", "say": "Milk, bread."},
    {"when": "and eggs", "say": "Milk, bread, eggs."},
    {"when": "yes, order it", "say": "Paper is ordered; it arrives on Monday morning."},
)
PERSON = "agent:main:openai-user:ann"
MAIN = "agent:main:main"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One exchange and what became of it."""

    exchange: Exchange
    turn: Turn
    kind: Kind
    reaction: Reaction | None
    verdict: Verdict | None

    @property
    def said(self) -> str:
        """The reply in words; a tool call as its name and arguments."""
        message = self.exchange.reply.message if self.exchange.reply else {}
        calls = [
            f"{c['function']['name']} {c['function']['arguments']}"
            for c in message.get("tool_calls") or ()
        ]
        return " | ".join([*([message_text(message)] if message.get("content") else []), *calls])

    @property
    def reacted(self) -> tuple[str, ...]:
        return tuple(words(m) for m in self.reaction.messages) if self.reaction else ()


def words(message: Message) -> str:
    """Without the time before them, and what OpenClaw writes into them."""
    return re.sub(r"^\[[^\]]*UTC\] ", "", strip_client_text(message_text(message)).strip())


@dataclass(frozen=True, kw_only=True)
class Day:
    """Everything that the store holds at its end."""

    system: ScriptedSystem
    answers: Mapping[str, str]  # what the person was told, by what they said
    seen: Sequence[Seen]

    def main(self) -> list[Seen]:
        return [s for s in self.seen if s.kind is Kind.MAIN]

    def side(self) -> list[Seen]:
        return [s for s in self.seen if s.kind is Kind.SIDE]

    def of(self, said: str) -> Seen:
        """The one main turn with this reply that ended well."""
        found = [s for s in self.main() if s.said == said and s.turn.relation != "regeneration"]
        found = [s for s in found if s.exchange.reply and s.exchange.reply.status == "done"]
        assert len(found) == 1, [s.said for s in self.seen]
        return found[0]

    def sessions(self) -> list[list[str]]:
        """What was said in each session, in order of their beginnings."""
        out: dict[str, list[str]] = {}
        for s in self.main():
            out.setdefault(s.turn.session, []).append(s.said)
        return list(out.values())


def live(system: ScriptedSystem, agent: OpenClaw) -> Day:
    """Talk for a day."""
    (agent.workspace / "notes.txt").write_text("the dentist at ten\n")
    (agent.workspace / "other.txt").write_text("milk and bread\n")
    answers: dict[str, str] = {}

    def say(text: str, key: str = PERSON) -> None:
        answers[text] = agent.say(text, session_key=key)

    say("What is in notes.txt?")
    wait_for(lambda: _replied(system, "NO_REPLY"), bool, what="no memory flush")
    say("no, shorter please")
    say("Now do two things for me.")
    agent.call("sessions.compact", {"key": PERSON})
    say("thanks, perfect!")
    _through_a_death(system, lambda: say("Explain the plan"))
    say("good bye")
    _main_session(agent, system, say)
    agent.call("sessions.create", {"agentId": "main", "message": "Please plan my trip to Oslo."})
    wait_for(
        lambda: _replied(system, "A trip to Oslo: three museums in two days, by train."),
        bool,
        what="no trip",
    )
    _again(system, "The first one says 42 and the second one says 2; both ran well.")
    agent.call("sessions.reset", {"key": PERSON})
    agent.call(
        "sessions.reset", {"key": PERSON}
    )  # two: the second ends a session in which nothing was said
    system.wait_until_settled()
    return Day(system=system, answers=answers, seen=_seen(system))


def _main_session(agent: OpenClaw, system: ScriptedSystem, say: Callable[[str, str], None]) -> None:
    """The session in which the agent is woken between the person's words."""
    _wake(agent, system, "all is quiet")
    say("Look at the notes, too.", MAIN)
    _wake(agent, system, "all is quiet again")
    say("and eggs", MAIN)
    _wake(agent, system, "the printer blinks")
    say("yes, order it", MAIN)


def _wake(agent: OpenClaw, system: ScriptedSystem, event: str) -> None:
    """An event wakes the agent at once, with the prompt of a heartbeat."""

    def woken() -> int:
        prompts = [
            message_text(m) for e in system.exchanges() if e.reply for m in e.request.messages[-2:]
        ]
        return sum(p.startswith("Follow the heartbeat monitor") for p in prompts)

    before = woken()
    agent.command(
        *("system", "event", "--text", event, "--mode", "now", "--token", "test-token"),
        *("--url", f"ws://127.0.0.1:{agent.port}"),
    )
    wait_for(woken, lambda n: n > before, what="no heartbeat")


def _through_a_death(system: ScriptedSystem, talk: Callable[[], None]) -> None:
    """The engine dies in the middle of the reply, and comes again."""
    talking = threading.Thread(target=talk)
    talking.start()
    wait_for(system.engine_ended, bool, what="the engine did not die")
    system.start_engine()
    talking.join(120)
    assert not talking.is_alive()


def _replied(system: ScriptedSystem, said: str) -> int:
    return sum(
        e.reply is not None and message_text(e.reply.message) == said for e in system.exchanges()
    )


def _again(system: ScriptedSystem, said: str) -> None:
    """The same request once more, as a client's regenerate button sends it: OpenClaw's HTTP door has none."""
    of = next(e for e in system.exchanges() if e.reply and message_text(e.reply.message) == said)
    body = {"model": "openclaw", "messages": of.request.messages, "tools": of.request.tools}
    headers = {"Authorization": f"Bearer {system.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{system.base_url}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def _seen(system: ScriptedSystem) -> list[Seen]:
    assert system.store is not None
    out = []
    with system.store.read() as conn:
        for id_ in conn.exec_driver_sql("SELECT id FROM exchanges ORDER BY seq").scalars():
            exchange, turn = exchanges.get(conn, id_), turns.get(conn, id_)
            assert exchange is not None
            assert turn is not None
            kind = Kind(
                conn.exec_driver_sql("SELECT kind FROM turns WHERE id = ?", (id_,)).scalar_one()
            )
            out.append(
                Seen(
                    exchange=exchange,
                    turn=turn,
                    kind=kind,
                    reaction=turns.current_reaction(conn, id_),
                    verdict=turns.current_verdict(conn, id_),
                )
            )
    return out
