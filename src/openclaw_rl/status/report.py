"""Output of `status`: data from the store as tables, or as JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.common.progress import Activity, WorkKind, describe_activity
from openclaw_rl.common.terminal import print_data
from openclaw_rl.errors import OpenClawError
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.status.engine_gaps import engine_gaps
from openclaw_rl.status.reasons import group_reasons
from openclaw_rl.status.sentences import health_sentence, score_word, understood_sentence
from openclaw_rl.status.trust import trust_data, trust_lines
from openclaw_rl.status.understanding import COUNTED_VERDICTS, understanding_data
from openclaw_rl.status.withdrawn_lessons import withdrawal_text, withdrawn_rows
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import counts, examinations, practice_turns
from openclaw_rl.store.lineage import (
    policies,
    policy_marks,
    retraining,
    version_files,
    version_list,
)
from openclaw_rl.store.lineage.policy_names import (
    DEFAULT_NAME,
    heads_in_use,
    require_owner,
)
from openclaw_rl.store.lineage.version_stats import (
    count_agreement,
    judge_user_pairs,
    turns_by_version,
)
from openclaw_rl.train.tracking import off_policy_summary
from openclaw_rl.types import Policy, PolicyState

_OVERRIDE = "the owner can set serve.sampling_override: "
CURES = {
    ReasonCode.GREEDY: _OVERRIDE + "{temperature: 1}",
    ReasonCode.RAW_LOGPROBS: _OVERRIDE + "{temperature: 1}",
    ReasonCode.TOP_P: _OVERRIDE + "{top_p: 1}",
    ReasonCode.TOP_K: _OVERRIDE + "{top_k: 0}",
    ReasonCode.MIN_P: _OVERRIDE + "{min_p: 0}",
    ReasonCode.MIN_TOKENS: "the client can omit min_tokens",
    ReasonCode.PENALTIES: _OVERRIDE + "{presence_penalty: 0, frequency_penalty: 0}",
    ReasonCode.NOT_STORED: "the owner can set serve.honor_store: false",
    ReasonCode.LOGIT_BIAS: "the client can omit logit_bias",
    ReasonCode.CONTROL_TOKEN: "the owner can set serve.special_tokens: text (or model)",
    ReasonCode.UNREAD_CALLS: "the owner can choose a model whose calls are read (docs/guides/models.md)",
    ReasonCode.IMAGES: "the client can send the accessibility tree of a page, or other text, instead",
    ReasonCode.FORCED_FORMAT: "the client can ask for the format in the prompt, with tool_choice auto and no "
    "response_format",
}
"""Reason for which turns are untrainable -> what makes the next ones trainable."""
_GATE_FIGURES = "held_out liked batch_alone agreement outlier_distance correctness form preference"
GATE_FIGURES = tuple(f"gate/{name}" for name in _GATE_FIGURES.split())
"""Metrics of the gate that `status` shows."""
# Reasons of one agent, the most frequent first.
_SHOWN_REASONS = 3
_SHOWN_VERSIONS = 10
COUNTED_VERSIONS = 100
"""Newest versions over which engines are compared with the trainer."""
COUNTED_TURNS = 5000
"""Newest turns of which the untrainable ones are counted by agent."""


def open_store(config: Config) -> Store:
    """Open the home's store. Raises `StoreError` if it does not exist, `ConfigError` for another `policy.per`."""
    store = Store.open(config.store_path, create=False)
    try:
        with store.read() as conn:
            require_owner(conn, config.policy.given)
    except OpenClawError:
        store.close()
        raise
    return store


@contextmanager
def read_store(config: Config) -> Iterator[Connection]:
    """Open a snapshot of the home's store. Raises as `open_store` does."""
    with open_store(config) as store, store.read() as conn:
        yield conn


# ----------------------------------------------------------------------------------------- status


def collect_status(conn: Connection, now: float) -> dict[str, Any]:
    """Return the data of `status` as plain JSON."""
    head = policies.head(conn)
    dropped = turns.count_dropped(conn)
    untrainable = turns.count_untrainable(conn)
    known = version_list.newest_policies(conn, COUNTED_VERSIONS)
    newest = known[-_SHOWN_VERSIONS:]
    turn_counts = turns_by_version(conn, [policy.version for policy in newest])
    scores_by_judge = judge_user_pairs(conn)
    agree, of = count_agreement(scores_by_judge)
    move = policy_marks.last_automatic_rollback(conn)
    return {
        "head": head.version,
        "heads": heads_in_use(conn),
        "loops": worker_rows(conn, now),
        "turns": turns.count_by_state(conn),
        "dropped": {reason.detail: count for reason, count in dropped.items()},
        "untrainable": {reason.detail: count for reason, count in untrainable.items()},
        "reasons": {
            "dropped": _reason_rows(dropped),
            "untrainable": _reason_rows(untrainable),
            "unlinked": _reason_rows(turns.count_unlinked(conn)),
        },
        "practice": {
            "turns": practice_turns.count_all(conn),
            "seconds_of_last_hour": round(practice_turns.seconds_of_last_hour(conn, now), 1),
            "lessons": counts.count_by_state(conn),
        },
        "lesson_capacity": examinations.measured_capacity(conn, head.identity),
        "withdrawn_lessons": withdrawn_rows(conn),
        "verdicts": {str(score): n for score, n in turns.count_by_score(conn).items()},
        "understanding": understanding_data(conn),
        "agreement": {"agree": agree, "of": of},
        **trust_data(conn, scores_by_judge),
        "versions": [_policy_row(p, *turn_counts[p.version]) for p in newest],
        "states": version_list.states_in_order(conn),
        "kept_versions": version_list.count_with_files(conn),
        "damaged": version_files.damage_reports(conn),
        "undo": retraining.progress_reports(conn),
        "automatic_rollback": None if move is None else asdict(move),
        "frozen_since": policy_marks.frozen_since(conn),
        "engine_gap": engine_gaps(known),
        "untrainable_agents": untrainable_agents(turns.trainable_by_agent(conn, COUNTED_TURNS)),
        # Of which the two above are.
        "counted": {"versions": COUNTED_VERSIONS, "turns": COUNTED_TURNS},
    }


def worker_rows(conn: Connection, now: float) -> list[dict[str, Any]]:
    """Return the last heartbeat of each worker as plain JSON."""
    return [
        {
            "name": b.name,
            "pid": b.pid,
            "age": round(now - b.at, 1),
            "alive": b.is_alive(now),
            "state": b.state,
            "note": b.note,
            "waits": sorted(b.waits),
            "advanced": round(now - b.advanced_at, 1),
            "activity": None
            if b.activity is None
            else asdict(b.activity) | {"left": _seconds_left(b.activity, now)},
        }
        for b in heartbeats.read_heartbeats(conn)
    ]


def _reason_rows(counts: Mapping[Reason, int]) -> list[dict[str, Any]]:
    """Return the groups of reasons as plain JSON, most frequent first."""
    return [
        {"code": group.code.value, "reason": group.label, "count": group.count}
        for group in group_reasons(counts)
    ]


def untrainable_agents(counts: Mapping[str, Mapping[Reason | None, int]]) -> list[dict[str, Any]]:
    """Return for each agent with untrainable turns: their share, and share and cure of the most frequent reasons."""
    out = []
    for agent, by_reason in sorted(counts.items()):
        total = sum(by_reason.values())
        groups = group_reasons(
            {reason: count for reason, count in by_reason.items() if reason is not None}
        )
        reasons = [
            {
                "code": group.code.value,
                "reason": group.label,
                "share": group.count / total,
                "cure": CURES.get(group.code, ""),
            }
            for group in groups
        ]
        if reasons:
            share = sum(group.count for group in groups) / total
            out.append({"agent": agent, "share": share, "reasons": reasons[:_SHOWN_REASONS]})
    return out


def _policy_row(policy: Policy, used: int, served: int) -> dict[str, Any]:
    return {
        "version": policy.version,
        "policy": policy.name,
        "parent": policy.parent,
        "state": policy.state.value,
        "turns": used,
        "served": served,
        "metrics": dict(policy.metrics),
        "reason": policy.reason,
        "code": policy.reason_code,
        "at": policy.created_at,
    }


def show_status(config: Config, *, as_json: bool) -> None:
    """Print the status once (`watch` updates it continuously)."""
    # Imported here because `watch` does not need it.
    from openclaw_rl.status import diagnose

    address = running_address(config.home_dir)
    with read_store(config) as conn:
        status = collect_status(conn, time.time()) | diagnose.diagnosis_names(config, conn)
    status["summary"] = health_sentence(status["troubles"], status["loops"], status["heads"])
    status["gateway"] = None if address is None else asdict(address)
    status["disk"] = {
        "policies": folder_size(config.policies_dir),
        "store": store_size(config.store_path),
    }
    print_data(status, _render_status, as_json=as_json)


def _render_status(status: Mapping[str, Any]) -> Group:
    seen = ", ".join(status["troubles"])
    cure = Text(
        f"\nproblems: {seen} (`openclaw-rl doctor --troubles` shows the cures)" if seen else "",
        "red",
    )
    is_running = status["gateway"] is not None
    return Group(
        _render_address(status["gateway"]),
        Text(f"{status['summary']}\n" if is_running else "", "red" if seen else "green"),
        _render_workers(status),
        _render_turns(status),
        _render_versions(status),
        _render_newest_step(status["versions"]),
        _render_gate(status["versions"]),
        cure,
    )


def _render_address(gateway: Mapping[str, Any] | None) -> Text:
    if gateway is None:
        return Text("no gateway runs on this home: `openclaw-rl up` starts one\n", "yellow")
    return Text(f"listening at {gateway['url']}/v1, model {gateway['model']}\n")


def _render_workers(status: Mapping[str, Any]) -> Table:
    table = Table(title="workers", title_justify="left", box=None, padding=(0, 2))
    for column in ("worker", "pid", "last heartbeat", "note"):
        table.add_column(column)
    for row in status["loops"]:
        heard = Text(f"{row['age']:.0f} s ago")
        if not row["alive"]:
            heard = Text(f"{row['age']:.0f} s ago: not responding", "red")
        note = Text(describe_work(row), "red" if shows_problem(row) else "")
        table.add_row(row["name"], str(row["pid"]), heard, note)
    return table


def describe_work(row: Mapping[str, Any]) -> str:
    """Return what a worker does, by its heartbeat as `collect_status` returns it.

    Such as `training version 2 on 4 turns; busy: training pass 2 of 3, about 40 s`.
    """
    return "; ".join(filter(None, (str(row["note"]), describe_long_work(row))))


def describe_long_work(row: Mapping[str, Any]) -> str:
    """Return the work that takes a worker long, and when it ends; "" if there is no such work."""
    activity = row.get("activity")
    if activity is None or not row["alive"]:
        return ""
    kind = WorkKind(activity["kind"])
    number = activity["number"]
    total = activity["total"]
    busy = f"busy: {describe_activity(Activity(kind=kind, number=number, total=total))}"
    if activity["left"] is not None:
        busy += f", about {activity['left']:.0f} s" if activity["left"] >= 1 else ", about to end"
    if row["advanced"] >= heartbeats.TIMEOUT:
        busy += f"; no progress for {row['advanced']:.0f} s"
    return busy


def _seconds_left(activity: Activity, now: float) -> float | None:
    """Return the seconds until the last of the passes ends, at the speed so far; None if it is not known."""
    if activity.remaining is None or activity.began_at is None:
        return None
    return round(max(0.0, activity.remaining - max(0.0, now - activity.began_at)), 1)


def shows_problem(row: Mapping[str, Any]) -> bool:
    """Return whether the heartbeat of a worker, as `collect_status` returns it, reports a problem."""
    return row["state"] in heartbeats.PROBLEM_STATES


def _render_turns(status: Mapping[str, Any]) -> Table:
    table = Table(
        title="\nturns", title_justify="left", box=None, padding=(0, 2), show_header=False
    )
    table.add_column(justify="right")
    table.add_column()
    total = sum(status["turns"].values()) or 1
    for state, count in status["turns"].items():
        table.add_row(str(count), state)
    for title in ("dropped", "untrainable", "unlinked"):
        for row in status["reasons"][title][:5]:
            table.add_row(f"{row['count'] / total:.0%}", _labelled(title, row["reason"]))
    for row in status["untrainable_agents"]:
        table.add_row("", _render_untrainable_agent(row))
    for text in (*_verdict_lines(status), *_lesson_lines(status), *_judge_lines(status)):
        table.add_row("", text)
    for engine, gap in status["engine_gap"].items():
        difference = f"mean |log-prob difference| {gap['mean']:.2g} nats per token, over {gap['tokens']:.0f} tokens"
        of_versions = f"of the newest {status['counted']['versions']} versions"
        table.add_row("", _labelled(f"{engine} engine vs trainer", f"{difference} {of_versions}"))
    return table


def _verdict_lines(status: Mapping[str, Any]) -> Iterator[Text]:
    counts = [
        f"{count} {score_word(None if key == 'None' else int(key))}"
        for key, count in status["verdicts"].items()
    ]
    yield _labelled("verdicts", ", ".join(counts) or "none yet")
    for kind, row in status["understanding"].items():
        share = understood_sentence(kind, row)
        yield _labelled("understood", f"{share}, among the newest {COUNTED_VERDICTS} verdicts")
        for quoted in row["not_understood"]:
            yield Text(f'  not understood: "{quoted["text"]}"', "dim")


def _lesson_lines(status: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the lines on lessons and practice; none before the first lesson."""
    practice = status["practice"]
    if not practice["lessons"]:
        return
    yield _labelled(
        "lessons", ", ".join(f"{n} {state}" for state, n in practice["lessons"].items())
    )
    capacity = status["lesson_capacity"]
    if capacity is not None:
        yield _labelled("lessons in a prompt", f"at most {capacity}, as measured")
    for row in status["withdrawn_lessons"]:
        text = f"{row['text']} ({withdrawal_text(row['withdrawal'])})"
        yield Text(f"withdrawn lesson {row['id']}: {text}", "red")
    seconds = practice["seconds_of_last_hour"]
    yield _labelled("practice", f"{practice['turns']} replies; {seconds:.0f} s in the last hour")


def _judge_lines(status: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the lines on how the judges agree with people."""
    agreement = status["agreement"]
    if agreement["of"]:
        yield _labelled("judge agrees with feedback", f"{agreement['agree']} of {agreement['of']}")
    yield from trust_lines(status)


def _render_untrainable_agent(row: Mapping[str, Any]) -> Text:
    who = f"agent {row['agent']}" if row["agent"] else "clients without an agent name"
    lines = [f"{row['share']:.0%} of the turns of {who} cannot train:"]
    for reason_row in row["reasons"]:
        cure = f"; {reason_row['cure']}" if reason_row["cure"] else ""
        lines.append(f"{reason_row['share']:.0%}: {reason_row['reason']}{cure}")
    return Text("\n".join(lines), "yellow")


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}:", "dim"), " ", text)


def _render_versions(status: Mapping[str, Any]) -> Group:
    states = ", ".join(f"{n} {state}" for state, n in status["states"].items())
    heads = status["heads"]
    policy_count = f"; {len(heads)} policies, see `policies list`" if len(heads) > 1 else ""
    title = Text(f"\npolicy versions ({states}; head v{status['head']}{policy_count})", "italic")
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for column in ("version", "state", "turns", "served", "reward", "loss", "kl", "grad", "time"):
        table.add_column(
            column, justify="left" if column in ("version", "state") else "right", no_wrap=True
        )
    for row in status["versions"]:
        metrics = row["metrics"]
        numbers = [
            _format_number(metrics.get(name))
            for name in ("reward/mean", "loss/total", "kl", "gradient/norm")
        ]
        state = Text(row["state"], {"live": "green", "rejected": "red"}.get(row["state"], ""))
        table.add_row(
            version_label(row),
            state,
            str(row["turns"]),
            str(row["served"]),
            *numbers,
            format_time(row["at"]),
        )
    reasons = [f"v{row['version']}: {row['reason']}" for row in status["versions"] if row["reason"]]
    disk = status["disk"]
    sizes = f"store {_format_size(disk['store'])}; weights of {status['kept_versions']} versions"
    space = Text(f"\non disk: {sizes} {_format_size(disk['policies'])}")
    notes = [Text(reason, "dim") for reason in reasons]
    return Group(title, table, *notes, *_version_warnings(status), space)


def version_label(row: Mapping[str, Any]) -> str:
    """Return a version with its parent, if that is not the version before, and with its policy."""
    label = f"v{row['version']}"
    if row["parent"] not in (None, row["version"] - 1):
        label += f" of v{row['parent']}"
    if row["policy"] != DEFAULT_NAME:
        label += f" {row['policy'][:32]}"
    return label


def _version_warnings(status: Mapping[str, Any]) -> Iterator[Text]:
    for report in status["undo"]:
        yield Text(report, "yellow")
    for report in status["damaged"]:
        yield Text(report, "red")
    move = status["automatic_rollback"]
    if move:
        left = ", ".join(f"v{version}" for version in reversed(move["left"]))
        text = f"from {left} to v{move['to']} at {format_time(move['at'])}: {move['reason']}"
        yield Text(f"rolled back by itself {text}", "red")
    if status["frozen_since"] is not None:
        yield Text(f"training is frozen since {format_time(status['frozen_since'])}", "yellow")


def _render_newest_step(versions: Sequence[Mapping[str, Any]]) -> Text:
    row = versions[-1]
    summary = off_policy_summary(row["metrics"])
    return Text(f"\nnewest step (v{row['version']}): {summary}" if summary else "", style="dim")


def _render_gate(versions: Sequence[Mapping[str, Any]]) -> Text:
    """Return the gate's figures of the newest version that is live or a candidate: mean differences from its parent."""
    in_use = [row for row in versions if row["state"] in (PolicyState.LIVE, PolicyState.CANDIDATE)]
    for row in reversed(in_use):
        figures = _gate_figures(row["metrics"])
        if figures:
            return Text(f"gate of v{row['version']}: {figures}", style="dim")
    return Text()


def _gate_figures(metrics: Mapping[str, float]) -> str:
    figures = {name: value for name, value in metrics.items() if name in GATE_FIGURES}
    labels = {name: name.removeprefix("gate/").replace("_", " ") for name in figures}
    return ", ".join(f"{labels[name]} {value:+.2f}" for name, value in figures.items())


def _format_number(value: Any) -> str:
    return "" if value is None else f"{value:.2g}"


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder. What is removed meanwhile or cannot be read does not count."""
    sizes = 0
    # Unlike Path.rglob, it passes over a folder that is gone.
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                sizes += (Path(place) / name).stat().st_size
    return sizes


def store_size(path: Path) -> int:
    """Return the bytes of the store, with its write-ahead log."""
    return sum(
        file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists()
    )


def _format_size(size: float) -> str:
    """Return a number of bytes with a unit, e.g. `3.1 MB`."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def format_time(at: float) -> str:
    """Return a time (seconds since the epoch) as month, day, hour and minute of the local time zone."""
    return datetime.fromtimestamp(at).strftime("%m-%d %H:%M")
