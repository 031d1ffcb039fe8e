"""Output of `status` and `inspect`: data from the store as tables."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.message_hash import message_text, strip_client_text
from openclaw_rl.errors import ModelError, OpenClawError
from openclaw_rl.settings.load import STARTER, Config
from openclaw_rl.store import exchanges, heartbeats, policies, sessions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.version_stats import judge_user_agreement, turns_by_version
from openclaw_rl.train.tracking import off_policy_summary
from openclaw_rl.types import Exchange, Message, Policy, Request, Turn, Verdict

HEARTBEAT_TIMEOUT = 10.0  # seconds without a heartbeat after which a worker counts as stopped

_OVERRIDE = "the owner can set serve.sampling_override: "
CURES = {
    "greedy sampling": _OVERRIDE + "{temperature: 1}",
    "raw log-probabilities": _OVERRIDE + "{temperature: 1}",
    "top_p": _OVERRIDE + "{top_p: 1}",
    "top_k": _OVERRIDE + "{top_k: 0}",
    "min_p": _OVERRIDE + "{min_p: 0}",
    "penalties": _OVERRIDE + "{presence_penalty: 0, frequency_penalty: 0}",
    "logit_bias": "the client can omit logit_bias",
    "a forced format": "the client can ask for the format in the prompt, with tool_choice auto and no response_format",
}
"""Start of a reason for which turns are untrainable -> what makes the next ones trainable."""


def open_store(config: Config) -> Store:
    """Open the home's store. Raises `OpenClawError` if it does not exist."""
    if not config.store_path.exists():
        raise OpenClawError(
            f"{config.store_path}: there is no store yet. `openclaw-rl up` creates it; --home selects another home."
        )
    return Store.open(config.store_path, create=False)


@contextmanager
def read_store(config: Config) -> Iterator[Connection]:
    """Open a snapshot of the home's store. Raises `OpenClawError` if it does not exist."""
    with open_store(config) as store, store.read() as conn:
        yield conn


# ------------------------------------------------------------------------------------------------------------- status


def collect_status(conn: Connection, now: float) -> dict[str, Any]:
    """Return the data of `status` as plain JSON."""
    head = policies.head(conn)
    known = policies.list_all(conn)
    newest = known[-10:]
    counts = turns_by_version(conn, [policy.version for policy in newest])
    agree, of = judge_user_agreement(conn)
    return {
        "head": head.version,
        "loops": [
            {
                "name": b.name,
                "pid": b.pid,
                "age": round(now - b.at, 1),
                "alive": b.is_alive(now, HEARTBEAT_TIMEOUT),
                "note": b.note,
            }
            for b in heartbeats.read_heartbeats(conn)
        ],
        "turns": turns.count_by_state(conn),
        **turns.count_by_reason(conn),
        "verdicts": {str(score): n for score, n in turns.count_by_score(conn).items()},
        "agreement": {"agree": agree, "of": of},
        "versions": [_policy_row(p, *counts[p.version]) for p in newest],
        "states": Counter(p.state.value for p in known),
        "engine_gap": engine_gaps(known),
        "untrainable_agents": untrainable_agents(turns.trainable_by_agent(conn)),
    }


def engine_gaps(known: Sequence[Policy]) -> dict[str, dict[str, float]]:
    """Return per engine the mean |log pi - log mu| in nats on tokens sampled by the same weights, and their number."""
    sums: dict[str, list[float]] = {}
    for policy in known:
        for name, tokens in policy.metrics.items():
            if name.startswith("gap/") and name.endswith("/tokens"):
                engine = name.removeprefix("gap/").removesuffix("/tokens")
                total = sums.setdefault(engine, [0.0, 0.0])
                total[0] += policy.metrics[f"gap/{engine}"] * tokens
                total[1] += tokens
    return {engine: {"mean": gap / tokens, "tokens": tokens} for engine, (gap, tokens) in sums.items() if tokens}


def untrainable_agents(counts: Mapping[str, Mapping[str | None, int]]) -> list[dict[str, Any]]:
    """Return for each agent with untrainable turns: their share, the most frequent reason, and its cure."""
    out = []
    for agent, by_reason in sorted(counts.items()):
        reasons = {reason: n for reason, n in by_reason.items() if reason is not None}
        if reasons:
            first = max(reasons, key=lambda reason: reasons[reason])
            cure = next((cure for start, cure in CURES.items() if first.startswith(start)), "")
            share = sum(reasons.values()) / sum(by_reason.values())
            out.append({"agent": agent, "share": share, "reason": first, "cure": cure})
    return out


def _policy_row(policy: Policy, used: int, served: int) -> dict[str, Any]:
    return {
        "version": policy.version,
        "parent": policy.parent,
        "state": policy.state.value,
        "turns": used,
        "served": served,
        "metrics": dict(policy.metrics),
        "reason": policy.reason,
        "at": policy.created_at,
    }


def show_status(config: Config, *, as_json: bool) -> None:
    """Print the status once (`watch` updates it continuously)."""
    from openclaw_rl.status import diagnose  # imported here because `watch` does not need it

    console = Console()
    with read_store(config) as conn:
        status = collect_status(conn, time.time()) | diagnose.diagnosis_names(config, conn)
    if as_json:
        console.print_json(json.dumps(status))
    else:
        console.print(_render_status(status))


def _render_status(status: Mapping[str, Any]) -> Group:
    seen = ", ".join(status["troubles"])
    cure = Text(f"\nproblems: {seen} (`openclaw-rl doctor --troubles` shows the cures)" if seen else "", "red")
    return Group(
        _render_workers(status),
        _render_turns(status),
        _render_versions(status),
        _render_newest_step(status["versions"]),
        cure,
    )


def _render_workers(status: Mapping[str, Any]) -> Table:
    table = Table(title="workers", title_justify="left", box=None, padding=(0, 2))
    for column in ("worker", "pid", "last heartbeat", "note"):
        table.add_column(column)
    for row in status["loops"]:
        heard = f"{row['age']:.0f} s ago" if row["alive"] else f"[red]{row['age']:.0f} s ago: not responding[/]"
        style = "red" if str(row["note"]).startswith("degraded") else ""
        table.add_row(row["name"], str(row["pid"]), heard, Text(str(row["note"]), style=style))
    return table


def _render_turns(status: Mapping[str, Any]) -> Table:
    table = Table(title="\nturns", title_justify="left", box=None, padding=(0, 2), show_header=False)
    table.add_column(justify="right")
    table.add_column()
    total = sum(status["turns"].values()) or 1
    for state, count in status["turns"].items():
        table.add_row(str(count), state)
    for title in ("dropped", "untrainable"):
        for reason, count in list(merge_reasons(status[title]).items())[:5]:
            table.add_row(f"{count / total:.0%}", f"[dim]{title}:[/] {reason}")
    for row in status["untrainable_agents"]:
        who = f"agent {row['agent']}" if row["agent"] else "clients without an agent name"
        words = f"{row['share']:.0%} of the turns of {who} cannot train: {row['reason']}"
        table.add_row("", Text(words + (f"; {row['cure']}" if row["cure"] else ""), "yellow"))
    scores = {"1": "good", "-1": "bad", "0": "neutral", "None": "no opinion"}
    words = ", ".join(f"{n} {scores.get(k, k)}" for k, n in status["verdicts"].items())
    table.add_row("", f"[dim]verdicts:[/] {words or 'none yet'}")
    if status["agreement"]["of"]:
        table.add_row("", "[dim]judge agrees with feedback:[/] {agree} of {of}".format(**status["agreement"]))
    for engine, gap in status["engine_gap"].items():
        words = f"mean |log-prob difference| {gap['mean']:.2g} nats per token, over {gap['tokens']:.0f} tokens"
        table.add_row("", f"[dim]{engine} engine vs trainer:[/] {words}")
    return table


def _render_versions(status: Mapping[str, Any]) -> Table:
    states = ", ".join(f"{n} {state}" for state, n in status["states"].items())
    table = Table(title=f"\npolicy versions ({states}; head v{status['head']})", title_justify="left", box=None)
    for column in ("version", "parent", "state", "trained on", "served", "reward", "loss", "kl", "grad norm", "time"):
        table.add_column(column, justify="left" if column == "state" else "right")
    for row in status["versions"]:
        metrics = row["metrics"]
        numbers = [_format_number(metrics.get(k)) for k in ("reward/mean", "loss/total", "kl", "gradient/norm")]
        state = {"live": "[green]live[/]", "rejected": "[red]rejected[/]"}.get(row["state"], row["state"])
        parent = "" if row["parent"] is None else f"v{row['parent']}"
        table.add_row(
            *(f"v{row['version']}", parent, state, str(row["turns"]), str(row["served"])),
            *numbers,
            _format_time(row["at"]),
        )
        if row["reason"]:
            table.add_row("", "", Text(str(row["reason"]), style="dim"))
    return table


def merge_reasons(reasons: Mapping[str, int]) -> dict[str, int]:
    """Merge reasons that differ only in the details after their first colon. Most frequent first."""
    kinds: dict[str, int] = {}
    for reason, count in reasons.items():
        kind = str(reason).split(":")[0]
        kinds[kind] = kinds.get(kind, 0) + count
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def _render_newest_step(versions: Sequence[Mapping[str, Any]]) -> Text:
    row = versions[-1]
    words = off_policy_summary(row["metrics"])
    return Text(f"\nnewest step (v{row['version']}): {words}" if words else "", style="dim")


def _format_number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}"


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%m-%d %H:%M:%S")


# ------------------------------------------------------------------------------------------------------------ inspect


def template_summary(config: Config) -> Text:
    """Return one line on the model's chat template: its model family, and how it renders earlier turns."""
    path = config.model.path
    if path != STARTER and not Path(path).expanduser().is_dir():
        return Text(f"chat template: from {path}; `openclaw-rl doctor` shows how it renders earlier turns", "dim")
    from openclaw_rl.render.model_folder import ModelFiles
    from openclaw_rl.render.renderer import Renderer

    try:
        renderer = Renderer(ModelFiles.from_config(config.model))
    except ModelError as error:  # the folder may have changed; the store is readable without it
        return Text(f"chat template: {error}", "red")
    return Text(f"chat template: {renderer.family.name} format; {renderer.history_description}", "dim")


def show_sessions(config: Config, limit: int) -> None:
    """Print the newest sessions: number of turns, their states, and the first message."""
    console = Console()
    with read_store(config) as conn:
        found = [(name, states, _first_user_text(conn, name)) for name, states in sessions.newest_sessions(conn, limit)]
    table = Table(box=None, padding=(0, 2))
    table.add_column("session", no_wrap=True)  # so that the id can be copied
    for column in ("turns", "states"):
        table.add_column(column, no_wrap=True)
    table.add_column("first message", overflow="ellipsis", max_width=60)
    for session, states, first in found:
        tally = ", ".join(f"{n} {state}" for state, n in states.items())
        table.add_row(session, str(states.total()), tally, Text(first))
    console.print(template_summary(config))
    console.print(table if found else "no conversations yet")


def _first_user_text(conn: Connection, session: str) -> str:
    exchange = exchanges.get(conn, sessions.session_turns(conn, session)[0])
    if exchange is None or not exchange.request.messages:
        return "(redacted)"
    return _truncate_text(_last_user_text(_conversation_messages(exchange.request)))


def _conversation_messages(request: Request) -> list[Message]:
    """Return the messages of the conversation, without ephemeral ones (`serve.ephemeral_patterns`)."""
    return [request.messages[m.index] for m in request.marks] if request.messages else []


def _last_user_text(messages: Sequence[Message]) -> str:
    return next((strip_client_text(message_text(m)).strip() for m in reversed(messages) if m.get("role") == "user"), "")


def _truncate_text(text: str, width: int = 70) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def show_session(config: Config, session: str) -> None:
    """Print every turn of one session. Raises `OpenClawError` if the session does not exist."""
    with read_store(config) as conn:
        panels = [_turn_panel(conn, turn, whole=False) for turn in sessions.session_turns(conn, session)]
    if not panels:
        raise OpenClawError(f"no session {session!r}. `openclaw-rl inspect sessions` lists them.")
    Console().print(Group(template_summary(config), *panels))


def show_turn(config: Config, turn: str) -> None:
    """Print one turn in full. Raises `OpenClawError` if the turn does not exist."""
    with read_store(config) as conn:
        panel = _turn_panel(conn, turn, whole=True)
    Console().print(Group(template_summary(config), panel))


def _turn_panel(conn: Connection, id_: str, *, whole: bool) -> Panel:
    exchange, turn = exchanges.get(conn, id_), turns.get(conn, id_)
    if exchange is None or turn is None:
        raise OpenClawError(f"no turn {id_!r}. `openclaw-rl inspect session ID` lists a session's turns.")
    body = Table(box=None, show_header=False, padding=(0, 1))
    body.add_column(style="dim", width=12)
    body.add_column()
    for label, value in _turn_rows(conn, exchange, turn, whole=whole):
        body.add_row(label, value if isinstance(value, Text) else Text(str(value)))
    return Panel(body, title=f"{id_}  [bold]{turn.state.value}[/]", title_align="left")


def _turn_rows(conn: Connection, exchange: Exchange, turn: Turn, *, whole: bool) -> list[tuple[str, str | Text]]:
    request, reply = exchange.request, exchange.reply
    width = 2000 if whole else 100
    lines: list[tuple[str, str | Text]] = [
        ("user", _truncate_text(_last_user_text(_conversation_messages(request)), width) or "(redacted)")
    ]
    if reply is not None:
        lines.append(("reply", Text(_reply_text(reply.message, width), style="cyan")))
    if turn.reason:
        lines.append(("drop reason", Text(turn.reason, style="red")))
    if turn.untrainable:
        lines.append(("untrainable", Text(turn.untrainable, style="yellow")))
    if reaction := turns.current_reaction(conn, turn.id):
        words = " / ".join(_truncate_text(message_text(m), width) for m in reaction.messages)
        given = [f"score {f.score}, {f.comment or f.correction or ''}".rstrip(", ") for f in reaction.feedback]
        lines.append(("reaction", f"{' '.join([words, *given])}  ({reaction.how} link)"))
    if verdict := turns.current_verdict(conn, turn.id):
        lines.append(("verdict", _verdict_text(verdict)))
    if learned := policies.versions_with_turn(conn, turn.id):
        lines.append(("trained into", ", ".join(f"version {v}" for v in learned)))
    return lines + (_detail_rows(exchange, turn) if whole else [])


def _reply_text(message: Message, width: int) -> str:
    calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or ()]
    return _truncate_text(" ".join([message_text(message), *calls]), width)


def _verdict_text(verdict: Verdict) -> str:
    score = "no opinion" if verdict.score is None else f"{verdict.score:+d}"
    hints = f", hint: {'; '.join(verdict.hints)}" if verdict.hints else ""
    return f"{score} by {verdict.judge}{hints}  {verdict.reason}"


def _detail_rows(exchange: Exchange, turn: Turn) -> list[tuple[str, str | Text]]:
    request, reply = exchange.request, exchange.reply
    lines: list[tuple[str, str | Text]] = [
        ("session", turn.session),
        ("relation", turn.relation + (f" of {turn.relation_of}" if turn.relation_of else "")),
        ("parent", turn.parent or turn.unlinked or "none: first turn of the conversation"),
        ("version", f"{request.version}, identity {request.identity[:12]}"),
        *([("origin", Text(f"imported as {request.origin}: off-policy", "yellow"))] if request.origin else []),
        ("sampling", f"temperature {request.sampling.temperature:g}, top_p {request.sampling.top_p:g}"),
        ("prompt", f"{len(request.prompt_ids)} tokens, {len(request.messages)} messages, {len(request.tools)} tools"),
    ]
    if reply is not None and len(reply.response_ids):
        mean = float(reply.logprobs.mean())
        finish = reply.finish_reason.value if reply.finish_reason else reply.status.value
        lines.append(("response", f"{len(reply.response_ids)} tokens, mean logprob {mean:.3f}, finish {finish}"))
        if reply.first_token_at is not None:
            first, whole = reply.first_token_at - request.admitted_at, reply.finished_at - request.admitted_at
            lines.append(("latency", f"{first * 1000:.0f} ms to the first token, {whole * 1000:.0f} ms in total"))
    return lines


def show_policy(config: Config, version: int) -> None:
    """Print one version: lineage, metrics, the turns it was trained on. Raises `OpenClawError` if it does not exist."""
    console = Console()
    with read_store(config) as conn:
        policy = policies.get(conn, version)
        if policy is None:
            known = [p.version for p in policies.list_all(conn)]
            raise OpenClawError(f"no policy version {version}; expected {min(known)} to {max(known)}.")
        lineage = policies.lineage(conn, version)
        panels = [_turn_panel(conn, use.turn, whole=False) for use in policies.uses_of_version(conn, version)]
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("state", policy.state.value + (f": {policy.reason}" if policy.reason else ""))
    table.add_row("lineage", " <- ".join(f"v{v}" for v in lineage[:12]) + (" <- ..." if len(lineage) > 12 else ""))
    table.add_row("weights", f"{policy.path or policy.base}  {policy.digest[:16]}")
    for name, value in sorted(policy.metrics.items()):
        table.add_row(name, f"{value:.6g}")
    console.print(Panel(table, title=f"version {version}", title_align="left"))
    console.print(Group(f"trained on {len(panels)} turns:", *panels))
