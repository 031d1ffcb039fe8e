"""Trajectories, stores that hold every kind of turn, and importing on the starter policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from sqlalchemy import Connection
from tests.model_identity import identity_of

from openclaw_rl.common import message_hash
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, Config, from_flat
from openclaw_rl.store import exchanges, reactions, sessions, turn_states, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.feedback import records
from openclaw_rl.store.lineage import policies
from openclaw_rl.trajectories import files as reading
from openclaw_rl.trajectories import importer
from openclaw_rl.trajectories.operations import export_sessions, session_json
from openclaw_rl.trajectories.report import ImportReport
from openclaw_rl.types import (
    Capture,
    ExchangeStatus,
    Feedback,
    FinishReason,
    Kind,
    Reaction,
    Reply,
    Request,
    Sampling,
    Span,
    Verdict,
    Vote,
)

RENDERER = Renderer(ModelFiles.from_path(STARTER))
IDENTITY = identity_of(ModelFiles.from_path(STARTER))
THANKS = "User accepted the change and said 'perfect, thanks!'"
PRINTED = {
    "session_id": "user_session_abc123",
    "turns": [
        {
            "type": "main",
            "prompt": "Help me refactor this function to use async/await",
            "response": "Here's the refactored version: ...",
            "next_state": THANKS,
            "trainable": True,
        },
        {"type": "side", "prompt": "What is 2+2?", "response": "4", "trainable": False},
    ],
}
"""The format as the program's descriptions print it."""


def main(prompt: str, response: str, **more: Any) -> dict[str, Any]:
    return {"type": "main", "prompt": prompt, "response": response, **more}


def put(file: Path, *trajectories: Any) -> Path:
    """As lines of JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(t) + "\n" for t in trajectories), encoding="utf-8")
    return file


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A store of its own, and importing into it."""

    config: Config
    store: Store

    @staticmethod
    def open(folder: Path, **settings: Any) -> Home:
        config = from_flat(
            {"home": str(folder)} | {k.replace("__", "."): v for k, v in settings.items()}
        )
        folder.mkdir(parents=True, exist_ok=True)
        return Home(config=config, store=Store.open(config.store_path))

    def bring(self, *files: Path, score: bool = False) -> ImportReport:
        """Import; without scores, so that nothing needs torch, unless they are asked for."""
        shared: AbstractContextManager[object] = nullcontext()
        if self.config.model == Config().model:  # loading its tokenizer takes a tenth of a second
            shared = patch.object(importer, "Renderer", lambda files, **options: RENDERER)
        with shared:
            built = importer.TrajectoryImporter(self.config, self.store, score=score)
        with ImportReport(self.config.logs_dir / "refused.jsonl") as report:
            built.run(
                (e for f in reading.find_files(files) for e in reading.read_entries(f)), report
            )
        return report

    def exports(self) -> list[bytes]:
        with self.store.read() as conn:
            return [
                raw
                for s in list(sessions.iter_sessions(conn))
                if (raw := session_json(conn, s)) is not None
            ]


def exported_file(home: Home, file: Path, form: str = "trajectories") -> Path:
    """Export all sessions to the file, and return it."""
    export_sessions(home.config, str(file), names=(), since=None, form=form)
    return file


# ----------------------------------------------------------------- stores with every kind of turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What happens to one call."""

    prompt: str
    answer: str
    fate: str
    sampling: Sampling
    score: int | None
    hints: tuple[str, ...]
    feedback: str | None
    masked: bool
    agent: str


FATES = (
    "served",
    "closed",
    "judged",
    "tools",
    "failed",
    "cancelled",
    "redacted",
    "side",
    "timeout",
    "liked",
    "length",
)
words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=20
)
broken = st.text(
    st.sampled_from("a \ud83d\ude00é"), min_size=1, max_size=5
)  # halves of a surrogate pair
said = words | broken
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([1.0, 0.7, 0.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    seed=st.none() | st.integers(0, 2**31),
    stop=st.lists(words, max_size=2).map(tuple),
    logit_bias=st.dictionaries(st.integers(0, 1000), st.floats(-2, 2), max_size=2),
)
plots = st.builds(
    Plot,
    prompt=said,
    answer=said.filter(lambda w: message_hash.normalise_text(w) != ""),
    fate=st.sampled_from(FATES),
    sampling=samplings,
    score=st.sampled_from([1, 0, -1, None]),
    hints=st.lists(words, max_size=2).map(tuple),
    feedback=st.none() | words,
    masked=st.booleans(),
    agent=st.sampled_from(["", "work"]),
)
stories = st.lists(st.lists(plots, min_size=1, max_size=4), min_size=1, max_size=3)


def plot(fate: str) -> Plot:
    """A plain one."""
    return Plot(
        prompt="What now?",
        answer="This and that.",
        fate=fate,
        sampling=Sampling(),
        score=1,
        hints=(),
        feedback=None,
        masked=False,
        agent="",
    )


def live(store: Store, story: Sequence[Sequence[Plot]]) -> None:
    """Serve, link and judge as the stages do; a session for each list."""
    with store.write() as conn:
        policies.ensure_root(conn, base="starter", identity=IDENTITY, at=1.0)
        for number, session in enumerate(story):
            parent: str | None = None
            history: list[dict[str, Any]] = [{"role": "system", "content": "You help."}]
            for place, plot in enumerate(session):
                id_ = f"chatcmpl-{number}-{place}"
                reply = _serve(conn, id_, plot, history)
                happened(conn, id_, plot, f"session {number}", parent)
                history = [*history, {"role": "user", "content": plot.prompt}, dict(reply.message)]
                parent = id_


def _serve(conn: Connection, id_: str, plot: Plot, history: list[dict[str, Any]]) -> Reply:
    messages = [*history, {"role": "user", "content": plot.prompt}]
    marks = message_hash.mark_messages(messages, b"k" * 32, EphemeralMatcher(()))
    redacted = plot.fate == "redacted"
    request = Request(
        id=id_,
        scope="key",
        agent=plot.agent,
        user="me",
        capture=Capture.REDACTED if redacted else Capture.FULL,
        messages=messages,
        tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}]
        if plot.fate == "tools"
        else [],
        template={"enable_thinking": False} if plot.masked else {},
        lessons={"0badcafe": "Keep it short."} if plot.masked else {},
        marks=marks,
        sampling=plot.sampling,
        prompt_ids=RENDERER.render(
            [m | {"content": _tokenisable(m["content"])} for m in messages]
        ).prompt_ids,
        version=3,
        identity=IDENTITY,
        admitted_at=10.25,
    )
    exchanges.admit(conn, [request])
    reply = _reply(request, plot)
    exchanges.finish(conn, [reply])
    return reply


def _tokenisable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _reply(request: Request, plot: Plot) -> Reply:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "x"}'},
    }
    message: dict[str, Any] = {"role": "assistant", "content": plot.answer}
    if plot.fate == "tools":
        message["tool_calls"] = [call]
    ids = np.append(
        RENDERER.tokenizer.encode(_tokenisable(plot.answer)), RENDERER.stop_token_ids[0]
    ).astype(np.int32)
    r = len(ids)
    mask = np.ones(r, bool)
    mask[r // 2 :] = not plot.masked
    status = {"failed": ExchangeStatus.FAILED, "cancelled": ExchangeStatus.CANCELLED}.get(
        plot.fate, ExchangeStatus.DONE
    )
    finish = FinishReason.LENGTH if plot.fate == "length" else FinishReason.STOP
    return Reply(
        id=request.id,
        status=status,
        message=message,
        response_ids=ids,
        logprobs=-np.linspace(0, 3.7, r, dtype=np.float32),
        mask=mask,
        spans=(Span(start=0, end=1, version=3), Span(start=1, end=r, version=4)),
        finish_reason=finish if status is ExchangeStatus.DONE else None,
        mark=message_hash.mark_message(
            message, index=2, chain=request.marks[-1].chain, key=b"k" * 32
        ),
        error="the engine went away" if status is ExchangeStatus.FAILED else None,
        first_token_at=10.5,
        finished_at=11.125,
    )


def happened(conn: Connection, id_: str, plot: Plot, session: str, parent: str | None) -> None:
    """What became of the reply."""
    kind = Kind.SIDE if plot.fate == "side" else Kind.MAIN
    relation = "continuation" if parent else "fresh"
    reactions.set_position(
        conn,
        id_,
        session=session,
        parent=parent,
        kind=kind,
        relation=relation,
        relation_of=None,
        unlinked=None,
    )
    if plot.fate == "side":
        turn_states.drop(
            conn, id_, ReasonCode.SIDE, 'side traffic: a message says "title"', at=12.0
        )
    if plot.fate == "timeout":
        turn_states.drop(conn, id_, ReasonCode.TIMEOUT, "no reaction within 24 h", at=12.0)
    said: list[dict[str, Any]] = [{"role": "user", "content": f"about {plot.answer}"}]
    if plot.fate == "tools":
        said = [
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}]},
            *said,
        ]
    if plot.fate in ("closed", "judged", "tools", "length"):
        reactions.record_reaction(
            conn, id_, messages=said, signature=b"s" * 16, source="later", how="exact", at=12.5
        )
    if plot.fate == "liked" or (plot.feedback and plot.fate == "judged"):
        given = Feedback(
            id=f"f-{id_}", scope="key", target=id_, score=1, comment=plot.feedback, given_at=12.75
        )
        records.add_feedback(conn, [given])
        reactions.record_pending_feedback(conn, id_, 12.75)
    state = turns.get(conn, id_)
    assert state is not None
    reaction = turns.current_reaction(conn, id_)
    if (
        plot.fate in ("judged", "tools", "liked", "length")
        and reaction is not None
        and state.state == "closed"
    ):
        votes = (Vote(score=plot.score, reason="why"), Vote(score=None, error="time-out"))
        verdict = Verdict(
            turn=id_,
            revision=reaction.revision,
            judge="llm",
            score=plot.score,
            votes=votes,
            hints=plot.hints,
            explicit=plot.fate == "liked",
            weight=0.5,
            reason="said so",
            at=13.5,
        )
        turns.add_verdict(conn, verdict)


def nouns(store: Store) -> dict[str, tuple[Any, ...]]:
    """By turn: what an import must give back. What belongs to a home alone is left out (see docs/guides/data.md)."""
    with store.read() as conn:
        out: dict[str, tuple[Any, ...]] = {}
        for session in list(sessions.iter_sessions(conn)):
            for item in sessions.stored_turns(conn, session):
                request, reply = item.exchange.request, item.reply
                marks = tuple((m.index, m.role, m.distinctive) for m in request.marks)
                asked = replace(
                    request,
                    scope="",
                    session=None,
                    kind=None,
                    origin=None,
                    marks=(),
                    messages=list(request.messages),
                )
                out[item.turn.id] = (
                    _plain(replace(asked, tools=list(request.tools))),
                    () if request.capture is Capture.REDACTED else marks,
                    _plain(replace(reply, mark=None)),
                    item.turn,
                    item.kind,
                    item.cause,
                    _reaction(item.reaction),
                    item.verdict and replace(item.verdict, revision=0),
                )
        return out


def _reaction(found: Reaction | None) -> Any:
    if found is None:
        return None
    return (
        found.messages,
        found.how,
        found.source,
        found.at,
        [replace(f, scope="") for f in found.feedback],
    )


def _plain(value: Any) -> tuple[tuple[str, Any], ...]:
    """A noun with its arrays as bytes, so that it can be compared."""
    read: Callable[[Any], Any] = lambda v: (  # noqa: E731
        (v.dtype.str, v.tobytes()) if isinstance(v, np.ndarray) else v
    )
    return tuple((name, read(getattr(value, name))) for name in value.__dataclass_fields__)
