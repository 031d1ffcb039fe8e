"""Data of `learned`: what each version was trained on, and how far each token of the replies was pushed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.assets import local_model_folder
from openclaw_rl.errors import ModelError, OpenClawError
from openclaw_rl.methods.types import Credit
from openclaw_rl.settings.load import Config
from openclaw_rl.status.conversations.conversation_text import titles_of_sessions
from openclaw_rl.status.inspect import TurnData, turns_data
from openclaw_rl.status.lessons_report import state_text
from openclaw_rl.store import exchanges, sessions
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lessons.practice_turns import contrast_turns
from openclaw_rl.store.lineage import policies, probe_answers, token_credit
from openclaw_rl.store.lineage.trained_turns import (
    TrainedTurn,
    nearest_ancestors,
    turns_by_hint,
    turns_of_versions,
    uses_in_lineage,
)
from openclaw_rl.store.lineage.version_list import creation_times
from openclaw_rl.train.retraining import RETRAINED_METRIC
from openclaw_rl.train.undo import lesson_id
from openclaw_rl.types import Exchange, Policy

TITLED_SESSIONS = 12
COUNTED_VERSIONS = 200
"""Newest versions of a lineage that are read."""
SplitTokens = Callable[[Sequence[int]], list[str]]
"""Maps token ids to the text that each adds to the reply."""


def collect_learned(
    conn: Connection,
    split_tokens: SplitTokens | None,
    *,
    version: int | None = None,
    since: float | None = None,
    session: str | None = None,
    limit: int,
    lessons_mode: str = "until_learned",
) -> dict[str, Any]:
    """Return what a version (None: the head) and its ancestors were trained on, as plain JSON, newest first.

    `since`: only versions made since then, in seconds since the epoch; `session`: only its turns, and the versions that
    were trained on them; `limit`: versions at most, which the counts do not depend on; `lessons_mode`: `serve.lessons`.
    Raises `OpenClawError` for an unknown version or session.

    Of a longer lineage, the newest `COUNTED_VERSIONS` are read, with a session those that used its turns; then
    `counted_versions` is their number.
    """
    newest = policies.head(conn).version
    if version is not None:
        newest = policies.require_version(conn, version).version
    if session is not None:
        lineage = sorted({one for one, _ in _uses_of_session(conn, newest, session)})
        is_whole = True
    else:
        lineage = nearest_ancestors(conn, newest, COUNTED_VERSIONS)
        is_whole = lineage[-1] == 0
    rows = turns_of_versions(conn, lineage)
    if since is not None:
        made_at = creation_times(conn, lineage)
        rows = [row for row in rows if made_at[row.version] >= since]
        # Those that were not read are older.
        is_whole = is_whole or made_at[lineage[-1]] < since
    if session is not None:
        rows = _rows_of_session(rows, session)
    turn_ids = _turns_by_version(rows)
    shown = list(reversed(turn_ids))[:limit]
    versions = {policy.version: policy for policy in policies.get_many(conn, shown)}
    first_uses = _first_uses(conn, newest, {turn for one in shown for turn in turn_ids[one]})
    once = {row.turn: row for row in rows}
    client_rows = [row for row in once.values() if row.source is None]
    sources = {row.turn: row.source for row in once.values() if row.source is not None}
    session_counts = Counter(row.session for row in client_rows).most_common()
    counted: dict[str, Any] = {} if is_whole else {"counted_versions": len(lineage)}
    return counted | {
        "version": newest,
        "in_words": _lessons_in_force(conn, lessons_mode),
        "turns": len(once),
        "practice": len(sources),
        "versions": [
            _version_data(conn, versions[v], turn_ids[v], first_uses, sources, split_tokens)
            for v in shown
        ],
        "agents": dict(Counter(row.agent for row in client_rows).most_common()),
        "sessions": dict(session_counts),
        # Of the most frequent ones.
        "session_titles": titles_of_sessions(
            conn, [name for name, _ in session_counts[:TITLED_SESSIONS]]
        ),
        "lessons": _lesson_counts(conn, once.keys()),
    }


def _uses_of_session(conn: Connection, version: int, session: str) -> list[tuple[int, str]]:
    """Return (version, turn) of the uses of a session's turns by `version` and its ancestors."""
    return uses_in_lineage(conn, version, sessions.session_turns(conn, session))


def _rows_of_session(rows: Sequence[TrainedTurn], session: str) -> list[TrainedTurn]:
    """Return the rows of a session. Raises `OpenClawError` without any."""
    matches = [row for row in rows if row.session == session]
    if not matches:
        raise OpenClawError(
            f"no turn of session {session!r} was trained on (`openclaw-rl inspect sessions`)"
        )
    return matches


def _turns_by_version(rows: Sequence[TrainedTurn]) -> dict[int, list[str]]:
    turn_ids: dict[int, list[str]] = {}
    for row in rows:
        turn_ids.setdefault(row.version, []).append(row.turn)
    return turn_ids


def _first_uses(conn: Connection, newest: int, turns: set[str]) -> dict[str, int]:
    """Return the oldest version of the lineage of `newest` that used each of the turns."""
    first_uses: dict[str, int] = {}
    for used_by, turn in uses_in_lineage(conn, newest, turns):
        first_uses[turn] = min(used_by, first_uses.get(turn, used_by))
    return first_uses


def _lessons_in_force(conn: Connection, mode: str) -> list[dict[str, str]]:
    """Return the lessons that no later one contradicts, newest first, and where each is. `mode`: `serve.lessons`."""
    in_force = lessons.list_lessons(
        conn, states=[state for state in LessonState if state is not LessonState.SUPERSEDED]
    )
    return [
        {"id": lesson.id, "text": lesson.text, "place": state_text(asdict(lesson), mode)}
        for lesson in reversed(in_force)
    ]


def _lesson_counts(conn: Connection, turns: KeysView[str]) -> list[dict[str, Any]]:
    """Return the lessons of these turns with the number of turns, most frequent first."""
    turns_of_hints = turns_by_hint(conn, turns)
    counts = Counter({hint: len(turns & of_hint) for hint, of_hint in turns_of_hints.items()})
    return [
        {"id": lesson_id(hint), "hint": hint, "turns": count}
        for hint, count in counts.most_common()
        if count
    ]


def _version_data(
    conn: Connection,
    policy: Policy,
    ids: Sequence[str],
    first_uses: Mapping[str, int],
    sources: Mapping[str, str],
    split_tokens: SplitTokens | None,
) -> dict[str, Any]:
    credit = token_credit.credit_of_version(conn, policy.version)
    read = {} if split_tokens is None else exchanges.get_readable(conn, ids)
    own_sources = [sources[id_] for id_ in ids if id_ in sources]
    texts = turns_data(conn, [*ids, *own_sources])
    contrasts = contrast_turns(conn, ids)
    return {
        "version": policy.version,
        "parent": policy.parent,
        "at": policy.created_at,
        "retrained": RETRAINED_METRIC in policy.metrics,
        "turns": [
            _turn_row(texts, id_, sources.get(id_))
            | {
                "contrast": id_ in contrasts,
                "replay": first_uses[id_] != policy.version,
                "credit": _credit_data(credit.get(id_), read.get(id_), split_tokens),
            }
            for id_ in ids
        ],
        "changed_answers": [
            {
                "probe": answer.probe,
                "question": answer.question,
                "before": answer.head_answer,
                "after": answer.candidate_answer,
                "verdict": answer.verdict,
                "reason": answer.reason,
            }
            for answer in probe_answers.changed_answers(conn, policy.version)
        ],
    }


def _turn_row(texts: Mapping[str, TurnData], id_: str, source: str | None) -> dict[str, Any]:
    """Return the texts of a turn. `source`: of practice, the turn whose prompt was asked again."""
    data = texts[id_]
    if source is not None:
        data = {**data, "user": texts[source]["user"]}
    keys = ("turn", "session", "user", "reply", "reaction", "verdict", "damaged")
    return {key: data[key] for key in keys} | {
        "agent": data.get("agent", ""),
        "practice_of": source,
    }


def _credit_data(
    credit: Credit | None, exchange: Exchange | None, split_tokens: SplitTokens | None
) -> dict[str, Any] | None:
    """Return sum and values of the credit, and the tokens; None if none was recorded."""
    if credit is None:
        return None
    return {
        "sum": float(credit.astype("f8").sum()),
        "values": [round(float(value), 4) for value in credit],
        "tokens": None if split_tokens is None else _reply_tokens(exchange, credit, split_tokens),
    }


def _reply_tokens(
    exchange: Exchange | None, credit: Credit, split_tokens: SplitTokens
) -> list[str] | None:
    """Return the texts of a reply's tokens; None if it is not stored, or has another length than its credit."""
    if exchange is None or exchange.reply is None:
        return None
    ids = exchange.reply.response_ids.tolist()
    return split_tokens(ids) if len(ids) == len(credit) else None


def make_token_splitter(config: Config) -> SplitTokens | None:
    """Return the function that splits replies into tokens; None if the model's tokenizer is not on this machine."""
    path = config.model.path
    if local_model_folder(path) is None:
        return None
    from openclaw_rl.render.detokenizer import Detokenizer
    from openclaw_rl.render.model_folder import ModelFiles
    from openclaw_rl.render.tokenizer import CachedTokenizer

    try:
        decoder = Detokenizer(CachedTokenizer(ModelFiles.from_config(config.model)).backend, ())
    except ModelError:
        # The folder may have changed; the store is readable without it.
        return None

    def split_tokens(ids: Sequence[int]) -> list[str]:
        stream = decoder.new_stream()
        pieces = [stream.push([i]) for i in ids]
        return [*pieces[:-1], pieces[-1] + stream.flush()] if pieces else []

    return split_tokens
