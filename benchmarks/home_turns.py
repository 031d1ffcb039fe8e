"""Conversations of made-up people, written into a store by the store's own functions; the same in each run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from sqlalchemy import Connection

from openclaw_rl.common import message_hash
from openclaw_rl.judge.user_feedback import JUDGE_NAME as FEEDBACK_JUDGE
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import exchanges, reactions, turn_states, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback.records import add_feedback
from openclaw_rl.types import (
    ExchangeStatus,
    Feedback,
    FinishReason,
    Kind,
    Message,
    Reply,
    Request,
    Sampling,
    Span,
    Verdict,
    Vote,
)

SESSION_TURNS = 10
TOPICS = ("owls", "trains", "rivers", "cheese", "engines", "poems", "taxes", "gardens")
REACTIONS = {
    1: "Great, that is what I wanted about {}. Next question.",
    -1: "No, that is too long. Please answer in one sentence about {}.",
    0: "By the way, what else is there about {}?",
    None: "Hm, {} then. I do not know what to say.",
}
HINT = "Answer in one sentence."
NO_TRANSIENT_TEXT = message_hash.EphemeralMatcher(())
WORDS = (
    *("water", "stone", "light", "river", "morning", "engine", "letter", "window", "answer"),
    *("market", "silver", "garden", "winter", "number", "silent", "people", "forest", "summer"),
    *("bridge", "island", "copper", "yellow", "simple", "travel"),
)
# One turn in so many is sampled greedily, which cannot train.
_GREEDY_SHARE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call. `words`: the person's next message; `score`: of its verdict."""

    request: Request
    reply: Reply
    score: int | None
    parent: str | None
    words: str | None


@dataclass(slots=True, kw_only=True)
class TurnWriter:
    """Makes calls, and writes them with their reactions, verdicts and feedback. `number`: of the last turn."""

    store: Store
    scope: str
    identity: str
    number: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    arrays: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))
    lengths: dict[str, int] = field(default_factory=dict)
    """Tokens of the replies by turn, until they are cleared."""

    def write(self, conn: Connection, calls: list[Call]) -> list[str]:
        """Write calls in the order of their times. Return the turns that have a verdict with a score."""
        calls.sort(key=lambda call: call.request.admitted_at)
        exchanges.insert_started(conn, [call.request for call in calls])
        exchanges.insert_finished(conn, [call.reply for call in calls])
        return [call.request.id for call in calls if self._settle(conn, call)]

    def session(
        self, name: str, *, agents: Sequence[str], users: Sequence[str], version: int, at: float
    ) -> Iterator[Call]:
        """Yield the calls of a conversation of one of the agents with one of the users, from `at` on."""
        topic = self.chance.choice(TOPICS)
        agent = self.chance.choice(agents)
        user = self.chance.choice(users)
        history: list[Message] = [{"role": "system", "content": self.text(120)}]
        marks: tuple[message_hash.Mark, ...] = ()
        words = f"Could you explain the {self.chance.choice(WORDS)} of {topic} to me, please?"
        parent = None
        for step in range(SESSION_TURNS):
            history = [*history, {"role": "user", "content": words}]
            marks = self.mark(history, marks)
            score = self.chance.choices((1, -1, 0, None), (40, 25, 15, 20))[0]
            words = REACTIONS[score].format(topic)
            request = self.request(
                history, marks, agent=agent, user=user, session=name, version=version, at=at
            )
            is_last = step == SESSION_TURNS - 1
            call = self.call(request, None if is_last else score, parent, words)
            history = [*history, call.reply.message]
            parent = request.id
            at += 60 + self.chance.random() * 120
            yield call

    def mark(
        self, history: Sequence[Message], known: tuple[message_hash.Mark, ...]
    ) -> tuple[message_hash.Mark, ...]:
        """Return the marks of the messages. `known`: those of the first of them."""
        return message_hash.mark_messages(
            history, self.store.secret, NO_TRANSIENT_TEXT, known=known, upto=len(known)
        )

    def request(
        self,
        history: Sequence[Message],
        marks: tuple[message_hash.Mark, ...],
        *,
        agent: str,
        version: int,
        at: float,
        user: str = "",
        session: str | None = None,
        episode: str | None = None,
    ) -> Request:
        self.number += 1
        return Request(
            id=f"chatcmpl-{self.number:024x}",
            scope=self.scope,
            agent=agent,
            user=user,
            session=session,
            episode=episode,
            messages=history,
            marks=marks,
            sampling=Sampling(temperature=0.0 if self.number % _GREEDY_SHARE == 0 else 1.0),
            prompt_ids=self.arrays.integers(0, 500, 40 * len(history), np.int32),
            lessons={"0000000000": HINT} if self.number % 3 == 0 else {},
            version=version,
            identity=self.identity,
            admitted_at=at,
        )

    def call(
        self, request: Request, score: int | None, parent: str | None, words: str | None
    ) -> Call:
        """Return the request with a reply of some words."""
        length = self.chance.randrange(20, 60)
        message = {"role": "assistant", "content": self.text(length)}
        chain = request.marks[-1].chain
        reply = Reply(
            id=request.id,
            status=ExchangeStatus.DONE,
            message=message,
            response_ids=self.arrays.integers(0, 500, length, np.int32),
            logprobs=-self.arrays.exponential(0.7, length).astype(np.float32),
            mask=np.ones(length, np.bool_),
            spans=(Span(start=0, end=length, version=request.version),),
            finish_reason=FinishReason.STOP,
            mark=message_hash.mark_message(
                message, index=len(request.messages), chain=chain, key=self.store.secret
            ),
            first_token_at=request.admitted_at + 0.3,
            finished_at=request.admitted_at + 2.0,
        )
        self.lengths[request.id] = length
        return Call(request=request, reply=reply, score=score, parent=parent, words=words)

    def text(self, words: int) -> str:
        return " ".join(self.chance.choices(WORDS, k=words)).capitalize() + "."

    def _settle(self, conn: Connection, call: Call) -> bool:
        """Link a turn, and give it its reaction, its verdict and sometimes explicit feedback.

        Return whether its verdict has a score.
        """
        turn = call.request.id
        session = call.request.session or call.request.episode or turn
        reactions.set_position(
            conn,
            turn,
            session=session,
            parent=call.parent,
            kind=Kind.MAIN,
            relation="fresh" if call.parent is None else "continuation",
            relation_of=None,
            unlinked=None,
        )
        if call.words is None or call.request.episode is not None:
            return False
        at = call.reply.finished_at + 30
        number = int(turn.rpartition("-")[2], 16)
        if number % 40 == 0:
            turn_states.drop(conn, turn, ReasonCode.TIMEOUT, "nobody answered in time", at=at)
            return False
        reactions.record_reaction(
            conn,
            turn,
            messages=[{"role": "user", "content": call.words}],
            signature=turn.encode(),
            source=None,
            how="exact",
            at=at,
        )
        if number % 2000 == 7:
            # It waits for its verdict.
            return False
        hints = (HINT,) if call.score == -1 else ()
        vote = Vote(score=call.score, hint=hints[0] if hints else None, reason="It says so.")
        verdict = Verdict(
            turn=turn,
            revision=1,
            judge="rules@1",
            score=call.score,
            votes=(vote,),
            hints=hints,
            reason="1 of 1 votes",
            reason_code=ReasonCode.UNREADABLE if call.score is None else None,
            at=at + 1,
        )
        turns.add_verdict(conn, verdict)
        if number % 20 == 3:
            self._score(conn, verdict)
        return call.score is not None

    def _score(self, conn: Connection, verdict: Verdict) -> None:
        score = verdict.score or 1
        feedback = Feedback(
            id=f"fb-{verdict.turn}",
            scope=self.scope,
            target=verdict.turn,
            score=score,
            comment="As I said.",
            given_at=verdict.at + 1,
        )
        add_feedback(conn, [feedback])
        reactions.record_pending_feedback(conn, verdict.turn, verdict.at + 1)
        explicit = replace(
            verdict,
            revision=2,
            judge=FEEDBACK_JUDGE,
            score=score,
            explicit=True,
            reason_code=None,
            at=verdict.at + 2,
        )
        turns.add_verdict(conn, explicit)
