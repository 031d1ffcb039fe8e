"""Output of `policies list` and `policies diff`, as text or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.common.statistics.rater_agreement import wilson_interval
from openclaw_rl.common.terminal import print_data
from openclaw_rl.settings.load import Config
from openclaw_rl.status.report import format_time, read_store, version_label
from openclaw_rl.store.lineage import policies, policy_marks, probe_answers, version_list
from openclaw_rl.store.lineage.policy_names import read_heads, require_name
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer
from openclaw_rl.store.lineage.version_stats import satisfaction_by_version, turns_by_version
from openclaw_rl.types import Policy

_GATE_PREFIX = "gate/"


def policy_rows(conn: Connection, limit: int, name: str | None = None) -> list[dict[str, Any]]:
    """Return the newest versions, of the policy `name` or of all, as plain JSON, oldest first.

    `satisfaction`: share of +1 among the scores of +1 and -1 of the turns that it answered, with `low` and `high`, its
    95% interval, and `of`, their number; None without such turns. `gate`: the figures of the gate.
    """
    heads = read_heads(conn)
    pinned = policy_marks.pinned_versions(conn)
    newest = version_list.newest_policies(conn, limit, name=name)
    versions = [policy.version for policy in newest]
    counts = turns_by_version(conn, versions)
    satisfied = satisfaction_by_version(conn, versions)
    return [
        {
            "version": policy.version,
            "policy": policy.name,
            "parent": policy.parent,
            "state": policy.state.value,
            "head": heads.get(policy.name) == policy.version,
            "pinned": policy.version in pinned,
            "files": policy.parent is None
            or (policy.path is not None and not policies.is_removed(policy)),
            "at": policy.created_at,
            "turns": counts[policy.version][0],
            "served": counts[policy.version][1],
            "satisfaction": _share(*satisfied[policy.version])
            if policy.version in satisfied
            else None,
            "gate": {
                name: value
                for name, value in policy.metrics.items()
                if name.startswith(_GATE_PREFIX)
            },
            "reason": policy.reason,
            "code": policy.reason_code,
        }
        for policy in newest
    ]


def _share(count: int, of: int) -> dict[str, float]:
    low, high = wilson_interval(count, of)
    return {"share": count / of, "low": low, "high": high, "of": of}


def version_answers(conn: Connection, policy: Policy) -> dict[str, tuple[str, str]]:
    """Return (question, answer) of a version by the name of the probe, as candidate or else as the head.

    The head's answers are those of the comparison with the newest of its children.
    """
    answers = probe_answers.answers_of_version(conn, policy.version)
    if answers:
        return {answer.probe: (answer.question, answer.candidate_answer) for answer in answers}
    for child in version_list.children_of(conn, policy.version):
        answers = probe_answers.answers_of_version(conn, child)
        if answers:
            return _head_answers(answers)
    return {}


def _head_answers(answers: Iterable[ProbeAnswer]) -> dict[str, tuple[str, str]]:
    return {answer.probe: (answer.question, answer.head_answer) for answer in answers}


def _answers_to(conn: Connection, head: int, candidate: int) -> dict[str, tuple[str, str]]:
    """Return (question, answer) of `head` in the comparison with `candidate`; empty if the gate made none."""
    answers = probe_answers.answers_of_version(conn, candidate)
    return _head_answers(answer for answer in answers if answer.head == head)


def difference_data(conn: Connection, version: int, other: int) -> dict[str, Any]:
    """Return metrics and changed probe answers of two versions as plain JSON. Raises `OpenClawError` for unknown ones.

    `probes`: how many probes both have answered. `changed`: those with different answers.
    """
    first = policies.require_version(conn, version)
    second = policies.require_version(conn, other)
    before = _answers_to(conn, version, other) or version_answers(conn, first)
    after = _answers_to(conn, other, version) or version_answers(conn, second)
    both = [name for name in before if name in after]
    names = sorted(first.metrics.keys() | second.metrics.keys())
    return {
        "versions": [version, other],
        "metrics": {name: [first.metrics.get(name), second.metrics.get(name)] for name in names},
        "probes": len(both),
        "changed": [
            {
                "probe": name,
                "question": before[name][0],
                "answers": [before[name][1], after[name][1]],
            }
            for name in both
            if before[name][1] != after[name][1]
        ],
    }


def show_policies(config: Config, limit: int, *, name: str | None = None, as_json: bool) -> None:
    """Print the newest versions, of the policy `name` or of all, one a row."""
    with read_store(config) as conn:
        if name is not None:
            require_name(conn, name)
        rows = policy_rows(conn, limit, name)
        frozen = policy_marks.frozen_since(conn)
    print_data({"frozen_since": frozen, "versions": rows}, _render_policies, as_json=as_json)


def _render_policies(data: Mapping[str, Any]) -> Group:
    rows = data["versions"]
    frozen = data["frozen_since"]
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for column in ("version", "state", "marks", "time", "turns", "served", "satisfaction"):
        table.add_column(column, justify="right" if column in ("turns", "served") else "left")
    for row in rows:
        table.add_row(
            version_label(row),
            row["state"],
            _format_marks(row),
            format_time(row["at"]),
            str(row["turns"]),
            str(row["served"]),
            _format_share(row["satisfaction"]),
        )
    reasons = [Text(f"v{row['version']}: {row['reason']}", "dim") for row in rows if row["reason"]]
    note = (
        []
        if frozen is None
        else [Text(f"training is frozen since {format_time(frozen)}", "yellow")]
    )
    return Group(table, *reasons, *note)


def _format_marks(row: Mapping[str, Any]) -> str:
    marks = [name for name in ("head", "pinned") if row[name]]
    if not row["files"]:
        marks.append("no files")
    return " ".join(marks)


def _format_share(share: Mapping[str, float] | None) -> str:
    return "" if share is None else "{share:.2f} ({low:.2f} to {high:.2f}) of {of}".format(**share)


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name.removeprefix(_GATE_PREFIX)} {value:.3g}" for name, value in sorted(metrics.items())
    )


def show_difference(config: Config, version: int, other: int, *, as_json: bool) -> None:
    """Print the metrics and the changed probe answers of two versions. Raises `OpenClawError` for an unknown one."""
    with read_store(config) as conn:
        data = difference_data(conn, version, other)
    print_data(data, _render_difference, as_json=as_json)


def _render_difference(data: Mapping[str, Any]) -> Group:
    columns = [f"v{version}" for version in data["versions"]]
    metrics = Table("metric", *columns, box=None, pad_edge=False, padding=(0, 1))
    for name, values in data["metrics"].items():
        metrics.add_row(name, *("" if value is None else f"{value:.6g}" for value in values))
    answers = Table("probe", *columns, box=None, pad_edge=False, padding=(0, 1))
    for row in data["changed"]:
        answers.add_row(
            Text(f"{row['probe']}: {row['question']}"), *(Text(answer) for answer in row["answers"])
        )
    count = f"\nprobes that both have answered: {data['probes']}; answers that differ: {len(data['changed'])}"
    return Group(metrics, Text(count), *([answers] if data["changed"] else []))
