"""Output of `inspect`: sessions, turns and policy versions from the store, as text or as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.assets import local_model_folder
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.terminal import TerminalConsole, print_data
from openclaw_rl.errors import DamagedRow, ModelError, OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.status.conversations.conversation_text import (
    conversation_messages,
    titles_of_sessions,
)
from openclaw_rl.status.conversations.turn_words import last_user_text
from openclaw_rl.status.report import read_store
from openclaw_rl.store import exchanges, sessions, turns
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.trained_turns import versions_of_turns
from openclaw_rl.types import Exchange, Message, Origin, Reaction, Reply, Turn, Verdict

TurnData = Mapping[str, Any]
# Columns of a text, in a list of turns and for one turn.
_SHORT_WIDTH = 100
_WHOLE_WIDTH = 2000
_PAGE_TURNS = 200
"""Turns read at once."""
_MAX_ANCESTORS = 12
"""Versions of a lineage that are shown."""


def template_summary(config: Config) -> Text:
    """Return one line on the model's chat template: its model family, and how it renders earlier turns."""
    path = config.model.path
    if local_model_folder(path) is None:
        return Text(
            f"chat template: from {path}; `openclaw-rl doctor` shows how it renders earlier turns",
            "dim",
        )
    from openclaw_rl.render.model_folder import ModelFiles
    from openclaw_rl.render.renderer import Renderer
    from openclaw_rl.render.template_probe import UNREAD_CALLS_NOTE

    try:
        renderer = Renderer(ModelFiles.from_config(config.model))
    except ModelError as error:
        # The folder may have changed; the store is readable without it.
        return Text(f"chat template: {error}", "red")
    line = f"chat template: {renderer.family.name} format; {renderer.history_description}"
    if not renderer.reads_calls:
        return Text(f"{line}; {UNREAD_CALLS_NOTE}", "yellow")
    return Text(line, "dim")


# ----------------------------------------------------------------------------------- data as JSON


def session_rows(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Return the newest sessions as plain JSON: title, turns by state, and the first message."""
    newest = sessions.newest_sessions(conn, limit)
    names = [name for name, _ in newest]
    titles = titles_of_sessions(conn, names)
    first_texts = _first_user_texts(conn, names)
    return [
        {
            "session": name,
            "title": titles[name],
            "turns": states.total(),
            "states": dict(states),
            "first_message": first_texts[name],
        }
        for name, states in newest
    ]


def session_data(conn: Connection, session: str) -> dict[str, Any]:
    """Return one session with its turns as plain JSON. Raises `OpenClawError` if it does not exist."""
    ids = sessions.session_turns(conn, session)
    if not ids:
        raise OpenClawError(f"no session {session!r}. `openclaw-rl inspect sessions` lists them.")
    return {"session": session, "turns": list(turns_data(conn, ids).values())}


def turn_data(conn: Connection, id_: str) -> dict[str, Any]:
    """Return one turn as plain JSON: texts, states, verdict, training. Raises `OpenClawError` if it does not exist.

    `user` is None if the text is not stored. `damaged`: why the rest cannot be read, else None.
    """
    return turns_data(conn, [id_])[id_]


def turns_data(conn: Connection, ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return `turn_data` of several turns by their ids, in their order. Raises `OpenClawError` as it does."""
    data: dict[str, dict[str, Any]] = {}
    wanted = list(dict.fromkeys(ids))
    for first in range(0, len(wanted), _PAGE_TURNS):
        data |= _page_data(conn, wanted[first : first + _PAGE_TURNS])
    return data


def _page_data(conn: Connection, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    turns_by_id = turns.get_many(conn, ids)
    versions = versions_of_turns(conn, ids)
    data: dict[str, dict[str, Any]] = {}
    for id_ in ids:
        if id_ not in turns_by_id:
            raise OpenClawError(
                f"no turn {id_!r}. `openclaw-rl inspect session ID` lists a session's turns."
            )
        data[id_] = _turn_columns(turns_by_id[id_], versions.get(id_, []))
    try:
        texts = _exchange_data(conn, ids)
    except DamagedRow:
        # Whichever of them it is, the others are read.
        texts = {}
        for id_ in ids:
            texts |= _readable_data(conn, id_)
    return {id_: columns | texts[id_] for id_, columns in data.items()}


def _readable_data(conn: Connection, id_: str) -> dict[str, dict[str, Any]]:
    """Return `_exchange_data` of one turn, or why it cannot be read."""
    try:
        return _exchange_data(conn, [id_])
    except DamagedRow as error:
        names = ("user", "reply", "reaction", "verdict")
        return {id_: {"damaged": str(error)} | dict.fromkeys(names)}


def _turn_columns(turn: Turn, versions: Sequence[int]) -> dict[str, Any]:
    return {
        "turn": turn.id,
        "session": turn.session,
        "state": turn.state.value,
        "drop_reason": turn.reason,
        "drop_code": turn.cause,
        "untrainable": turn.untrainable,
        "untrainable_code": turn.untrainable_code,
        "relation": turn.relation,
        "relation_of": turn.relation_of,
        "parent": turn.parent,
        "unlinked": turn.unlinked,
        "unlinked_code": turn.unlinked_code,
        "trained_into": list(versions),
        "damaged": None,
    }


def _exchange_data(conn: Connection, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the texts, tokens and verdicts of turns, by turn. Raises `DamagedRow`."""
    read = exchanges.get_many(conn, ids)
    reactions = turns.current_reactions(conn, ids)
    verdicts = turns.current_verdicts(conn, ids)
    return {id_: _text_data(read[id_], reactions.get(id_), verdicts.get(id_)) for id_ in ids}


def _text_data(
    exchange: Exchange, reaction: Reaction | None, verdict: Verdict | None
) -> dict[str, Any]:
    request = exchange.request
    return {
        "version": request.version,
        "identity": request.identity,
        "origin": request.origin.value if request.origin else None,
        "agent": request.agent,
        "sampling": asdict(request.sampling),
        "user": last_user_text(conversation_messages(request)) or None,
        "messages": len(request.messages),
        "tools": len(request.tools),
        "prompt_tokens": len(request.prompt_ids),
        "lessons": dict(request.lessons),
        "reply": None if exchange.reply is None else _reply_data(exchange, exchange.reply),
        "reaction": None if reaction is None else _reaction_data(reaction),
        "verdict": None if verdict is None else _verdict_data(verdict),
    }


def _reply_data(exchange: Exchange, reply: Reply) -> dict[str, Any]:
    admitted = exchange.request.admitted_at
    return {
        "message": dict(reply.message),
        "status": reply.status.value,
        "finish_reason": reply.finish_reason.value if reply.finish_reason else None,
        "tokens": len(reply.response_ids),
        "mean_logprob": float(reply.logprobs.mean()) if len(reply.logprobs) else None,
        "seconds_to_first_token": None
        if reply.first_token_at is None
        else reply.first_token_at - admitted,
        "seconds": reply.finished_at - admitted,
    }


def _reaction_data(reaction: Reaction) -> dict[str, Any]:
    return {
        "link": reaction.how,
        "revision": reaction.revision,
        "messages": [dict(message) for message in reaction.messages],
        "feedback": [
            {"score": f.score, "comment": f.comment, "correction": f.correction}
            for f in reaction.feedback
        ],
    }


def _verdict_data(verdict: Verdict) -> dict[str, Any]:
    return {
        "score": verdict.score,
        "weight": verdict.weight,
        "judge": verdict.judge,
        "hints": list(verdict.hints),
        "reason": verdict.reason,
        "votes": [asdict(vote) for vote in verdict.votes],
    }


def policy_data(conn: Connection, version: int) -> dict[str, Any]:
    """Return one version with the turns it was trained on as plain JSON. Raises `OpenClawError` if it does not exist.

    `lineage`: the version and its ancestors, newest first.
    """
    policy = policies.require_version(conn, version)
    return {
        "version": version,
        "policy": policy.name,
        "parent": policy.parent,
        "state": policy.state.value,
        "reason": policy.reason,
        "code": policy.reason_code,
        "lineage": policies.lineage(conn, version),
        "path": None if policies.is_removed(policy) else policy.path,
        "damage": policy.damage,
        "base": policy.base,
        "digest": policy.digest,
        "metrics": dict(policy.metrics),
        "at": policy.created_at,
        "turns": list(
            turns_data(conn, [use.turn for use in policies.uses_of_version(conn, version)]).values()
        ),
    }


def _first_user_texts(conn: Connection, names: Sequence[str]) -> dict[str, str | None]:
    """Return the first message of the person in these sessions, by session."""
    first = sessions.oldest_turns(conn, names)
    read = exchanges.get_readable(conn, list(first.values()))
    texts: dict[str, str | None] = {}
    for name, id_ in first.items():
        exchange = read.get(id_)
        messages = [] if exchange is None else conversation_messages(exchange.request)
        texts[name] = last_user_text(messages) or None
    return texts


# --------------------------------------------------------------------------------------------------------- as text


def show_sessions(config: Config, limit: int, *, as_json: bool) -> None:
    """Print the newest sessions: number of turns, their states, and the first message."""
    with read_store(config) as conn:
        rows = session_rows(conn, limit)

    def render(data: Mapping[str, Any]) -> Group:
        width = TerminalConsole().width
        lines = [line for row in data["sessions"] for line in _session_lines(row, width)]
        return Group(template_summary(config), *(lines or ["no conversations yet"]))

    print_data({"sessions": rows}, render, as_json=as_json, highlight=False)


def _session_lines(row: Mapping[str, Any], width: int) -> list[RenderableType]:
    states = ", ".join(f"{n} {state}" for state, n in row["states"].items())
    title = Text(shorten_line(row["title"], width), "bold")
    return [title, Text.assemble("  ", (row["session"], "dim"), f"  {states}")]


def show_session(config: Config, session: str, *, as_json: bool) -> None:
    """Print every turn of one session. Raises `OpenClawError` if the session does not exist."""
    with read_store(config) as conn:
        data = session_data(conn, session)

    def render(data: Mapping[str, Any]) -> Group:
        panels = [_turn_panel(turn, whole=False) for turn in data["turns"]]
        return Group(template_summary(config), *panels)

    print_data(data, render, as_json=as_json)


def show_turn(config: Config, turn: str, *, as_json: bool) -> None:
    """Print one turn in full. Raises `OpenClawError` if the turn does not exist."""
    with read_store(config) as conn:
        data = turn_data(conn, turn)

    def render(data: Mapping[str, Any]) -> Group:
        return Group(template_summary(config), _turn_panel(data, whole=True))

    print_data(data, render, as_json=as_json)


def show_policy(config: Config, version: int, *, as_json: bool) -> None:
    """Print one version: lineage, metrics, the turns it was trained on. Raises `OpenClawError` if it does not exist."""
    with read_store(config) as conn:
        data = policy_data(conn, version)
    print_data(data, _render_policy, as_json=as_json)


def _render_policy(data: Mapping[str, Any]) -> Group:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    version = data["version"]
    reason = f": {data['reason']}" if data["reason"] else ""
    table.add_row("state", data["state"] + reason)
    table.add_row("lineage", _lineage_text(data["lineage"]))
    no_weights = "not kept" if version else data["base"]
    table.add_row("weights", data["path"] or no_weights)
    if data["damage"]:
        table.add_row("damage", Text(data["damage"], "red"))
    table.add_row("digest", data["digest"][:16] or "of the base")
    for name, value in sorted(data["metrics"].items()):
        table.add_row(name, f"{value:.6g}")
    panel = Panel(table, title=f"version {version}", title_align="left")
    turn_panels = [_turn_panel(turn, whole=False) for turn in data["turns"]]
    return Group(panel, _turn_count(turn_panels), *turn_panels)


def _turn_count(panels: Sequence[Panel]) -> str:
    """Return the line above the panels of the turns that a version was trained on."""
    if not panels:
        return "trained on 0 turns"
    return f"trained on {len(panels)} turn{'' if len(panels) == 1 else 's'}:"


def _lineage_text(lineage: Sequence[int]) -> str:
    """Return the newest versions of a lineage, at most `_MAX_ANCESTORS`."""
    versions = [f"v{version}" for version in lineage[:_MAX_ANCESTORS]]
    if len(lineage) > _MAX_ANCESTORS:
        versions.append("...")
    return " <- ".join(versions)


def _turn_panel(turn: TurnData, *, whole: bool) -> Panel:
    body = Table(box=None, show_header=False, padding=(0, 1))
    body.add_column(style="dim", no_wrap=True)
    body.add_column()
    rows = _turn_rows(turn, _WHOLE_WIDTH if whole else _SHORT_WIDTH)
    if whole and not turn["damaged"]:
        rows += _detail_rows(turn)
    for label, value in rows:
        body.add_row(label, value if isinstance(value, Text) else Text(str(value)))
    title = Text.assemble(turn["turn"], "  ", (turn["state"], "bold"))
    return Panel(body, title=title, title_align="left")


def _turn_rows(turn: TurnData, width: int) -> list[tuple[str, str | Text]]:
    lines: list[tuple[str, str | Text]] = [("user", shorten_line(turn["user"], width))]
    if turn["damaged"]:
        lines = [("damaged", Text(turn["damaged"], style="red"))]
    if turn["reply"] is not None:
        lines.append(("reply", Text(reply_text(turn["reply"]["message"], width), style="cyan")))
    if turn["drop_reason"]:
        lines.append(("drop reason", Text(turn["drop_reason"], style="red")))
    if turn["untrainable"]:
        lines.append(("untrainable", Text(turn["untrainable"], style="yellow")))
    reaction = turn["reaction"]
    if reaction:
        text = _reaction_text(reaction, width) or "nothing was said"
        lines.append(("reaction", f"{text}  ({reaction['link']} link)"))
    if turn["verdict"]:
        lines.append(("verdict", verdict_text(turn["verdict"])))
    if turn["trained_into"]:
        lines.append(("trained into", ", ".join(f"version {v}" for v in turn["trained_into"])))
    return lines


def _reaction_text(reaction: Mapping[str, Any], width: int) -> str:
    """Return the messages of a reaction and its feedback, in one line."""
    messages = [shorten_line(message_text(message), width) for message in reaction["messages"]]
    feedback = [_feedback_text(row) for row in reaction["feedback"]]
    return " ".join([" / ".join(messages), *feedback])


def _feedback_text(feedback: Mapping[str, Any]) -> str:
    text = feedback["comment"] or feedback["correction"] or ""
    return f"score {feedback['score']}, {text}".rstrip(", ")


def reply_text(message: Message, width: int) -> str:
    calls = [
        f"{c['function']['name']}({c['function']['arguments']})"
        for c in message.get("tool_calls") or ()
    ]
    return shorten_line(" ".join([message_text(message), *calls]), width)


def verdict_text(verdict: Mapping[str, Any]) -> str:
    score = "no opinion" if verdict["score"] is None else f"{verdict['score']:+d}"
    hints = f", hint: {'; '.join(verdict['hints'])}" if verdict["hints"] else ""
    weight = f" with weight {verdict['weight']:g}" if verdict["weight"] != 1 else ""
    return f"{score} by {verdict['judge']}{weight}{hints}  {verdict['reason']}"


_ORIGIN_WORDS = {
    Origin.TOKENS: "imported as tokens: off-policy",
    Origin.TEXT: "imported as text: off-policy",
    Origin.TEACHER: "practice: by the base, with the lessons in its prompt",
    Origin.CONTRAST: "practice: by the base, under a wish that contradicts the lesson",
}


def _detail_rows(turn: TurnData) -> list[tuple[str, str | Text]]:
    sampling = turn["sampling"]
    lines: list[tuple[str, str | Text]] = [
        ("session", turn["session"]),
        (
            "relation",
            turn["relation"] + (f" of {turn['relation_of']}" if turn["relation_of"] else ""),
        ),
        ("parent", turn["parent"] or turn["unlinked"] or "none: first turn of the conversation"),
        ("version", f"{turn['version']}, identity {turn['identity'][:12]}"),
        *([("origin", Text(_ORIGIN_WORDS[turn["origin"]], "yellow"))] if turn["origin"] else []),
        ("sampling", f"temperature {sampling['temperature']:g}, top_p {sampling['top_p']:g}"),
        (
            "prompt",
            f"{turn['prompt_tokens']} tokens, {turn['messages']} messages, {turn['tools']} tools",
        ),
        *(("lesson", f"{text}  ({id_})") for id_, text in turn["lessons"].items()),
    ]
    reply = turn["reply"]
    if reply is not None and reply["tokens"]:
        mean = reply["mean_logprob"]
        finish = reply["finish_reason"] or reply["status"]
        lines.append(
            ("response", f"{reply['tokens']} tokens, mean logprob {mean:.3f}, finish {finish}")
        )
        first = reply["seconds_to_first_token"]
        if first is not None:
            whole = reply["seconds"]
            lines.append(
                (
                    "latency",
                    f"{first * 1000:.0f} ms to the first token, {whole * 1000:.0f} ms in total",
                )
            )
    return lines


def shorten_line(text: str | None, width: int) -> str:
    """Return the text in one line of at most `width` columns, cut between two words if its second half has a space."""
    if text is None:
        return "(redacted)"
    line = " ".join(text.split())
    if cell_len(line) <= width:
        return line
    head = chop_cells(line, width - 1)[0]
    return (head.rpartition(" ")[0] + " " if " " in head[len(head) // 2 :] else head) + "…"
