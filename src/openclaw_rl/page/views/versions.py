"""Views of the versions: the line of descent as a picture, each version, and the acts of the owner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.printable import cut_text
from openclaw_rl.page.lineage_graph import draw_lineage
from openclaw_rl.page.view import NotFound, View, ViewRequest
from openclaw_rl.page.views import act_list, answers
from openclaw_rl.page.word_diff import compare_words
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.status.conversations.turn_words import questions_of_turns
from openclaw_rl.status.report import GATE_FIGURES
from openclaw_rl.status.version_words import (
    PolicyLine,
    VersionPlace,
    version_place,
    version_sentence,
)
from openclaw_rl.store import own_prompts
from openclaw_rl.store.acts import ActKind, details_of_act, newest_acts
from openclaw_rl.store.lineage import policies, policy_marks, probe_answers, version_list
from openclaw_rl.store.lineage.policy_names import (
    DEFAULT_NAME,
    head_version,
    read_heads,
)
from openclaw_rl.store.lineage.version_list import BatchTurn
from openclaw_rl.store.lineage.version_stats import turns_by_version
from openclaw_rl.types import Policy, PolicyState

VERSIONS_A_PAGE = 60
_TURNS_SHOWN = 20
_PEOPLE_SHOWN = 12
_ANSWERS_SHOWN = 12
_ASKED_CHARS = 160
# Newest acts among which the receipt of a version that was taken back is looked up.
_UNDOS_READ = 50
STATE_TAGS: Mapping[VersionPlace, tuple[str, str]] = {
    VersionPlace.IN_USE: ("●", "good"),
    VersionPlace.EARLIER: ("•", ""),
    VersionPlace.ON_TRIAL: ("◐", "warn"),
    VersionPlace.EXAMINED: ("◌", "warn"),
    VersionPlace.REFUSED: ("✗", "bad"),
    VersionPlace.ROLLED_BACK: ("↩", "warn"),
    VersionPlace.LEFT: ("–", ""),
}
"""Place of a version -> its sign, and the class of its tag."""
_GATE_WORDS = (
    "liked replies likelier, disliked ones less likely",
    "liked replies at least as likely",
    "the same, after a step on this batch alone",
    "agreement of its reactions with what was learned before",
    "distance of its praised replies from usual ones",
    "questions with one right answer",
    "replies that end, and are not empty",
    "replies that the judge prefers",
)
GATE_NAMES: Mapping[str, str] = dict(zip(GATE_FIGURES, _GATE_WORDS, strict=True))
METRIC_NAMES: Mapping[str, str] = {
    "turns": "replies it was trained on, with practice and replays",
    "tokens": "tokens that counted",
    "reward/mean": "mean score of these replies, from −1 to 1",
    "loss/total": "loss",
    "kl": "distance from the base model (nats per token)",
    "kl/step": "distance from the version before (nats per token)",
    "gradient/norm": "size of the gradient",
    "entropy": "variety of its replies (nats per token)",
    "truncated": "share of replies that were cut",
    "learning_rate": "learning rate",
    "seconds/batch": "seconds of training",
    "gate/seconds": "seconds of the gate",
}
"""Metric -> what it says, in plain words."""


def collect_versions(request: ViewRequest) -> Mapping[str, Any]:
    """Return one page of the versions of a policy, with their picture."""
    counts = version_list.count_by_name(request.conn)
    name = request.text("policy") or next(iter(counts), DEFAULT_NAME)
    line = read_line(request.conn, name)
    listed = version_list.newest_versions(
        request.conn, name, before=request.integer("before"), limit=VERSIONS_A_PAGE + 1
    )
    if not listed and name not in read_heads(request.conn):
        raise NotFound(f"There is no policy {name[:80]!r}.")
    shown = listed[:VERSIONS_A_PAGE]
    turns = turns_by_version(request.conn, [version.version for version in shown])
    rows = []
    for version in shown:
        place = version_place(version, line)
        rows.append(
            {
                "version": version.version,
                "place": place,
                "sign": STATE_TAGS[place][0],
                "kind": STATE_TAGS[place][1],
                "reason": version.reason or "",
                "at": version.created_at,
                "trained": turns[version.version][0],
                "answered": turns[version.version][1],
            }
        )
    graph = draw_lineage(shown, line.lineage)
    return {
        "name": name,
        "names": counts,
        "line": line,
        "rows": rows,
        "graph": graph,
        "has_reasons": any(row["reason"] for row in rows),
        "marks": list(zip(graph.nodes, rows, strict=True)),
        "next": shown[-1].version if len(listed) > VERSIONS_A_PAGE else None,
        "before": request.integer("before"),
        "frozen_since": policy_marks.frozen_since(request.conn),
    }


def collect_version(request: ViewRequest) -> Mapping[str, Any]:
    """Return one version: why it is in use or not, what the gate found, and what it was trained on."""
    policy = _require_version(request)
    version = policy.version
    line = read_line(request.conn, policy.name)
    place = version_place(policy, line)
    counts = turns_by_version(request.conn, [version])[version]
    batch = version_list.batch_turns(request.conn, version, _TURNS_SHOWN)
    return {
        "policy": policy,
        "version": version,
        "line": line,
        "place": place,
        "kind": STATE_TAGS[place][1],
        "sentence": version_sentence(policy, line),
        "receipt": _find_receipt(request.conn, policy),
        "has_files": _has_files(policy),
        "is_pinned": version in policy_marks.pinned_versions(request.conn),
        "can_roll_back": place is VersionPlace.EARLIER and _is_servable(policy),
        "can_promote": place in (VersionPlace.ROLLED_BACK, VersionPlace.LEFT)
        and version > 0
        and _is_servable(policy),
        "can_compare": version > 0 and _is_servable(policy),
        "trained": counts[0],
        "answered": counts[1],
        "people": version_list.answered_by_person(request.conn, version, _PEOPLE_SHOWN),
        "turns": _turn_rows(request.conn, batch),
        "gate": _named(policy.metrics, GATE_NAMES),
        "metrics": _named(policy.metrics, METRIC_NAMES),
        "all_metrics": sorted(policy.metrics.items()),
        "answers": _changed_answers(request.conn, version),
    }


def collect_comparison(request: ViewRequest) -> Mapping[str, Any]:
    """Return the prompts that the base and a version are to answer."""
    version = _require_version(request).version
    turns = own_prompts.prompts_of_version(request.conn, version, answers.PROMPTS)
    return {"turns": turns, "version": version}


def _find_receipt(conn: Connection, policy: Policy) -> str | None:
    """Return the act that took a version back; None if it was not taken back, or long ago."""
    if policy.reason_code is not ReasonCode.TAKEN_BACK:
        return None
    for act in newest_acts(conn, _UNDOS_READ, ActKind.UNDO):
        details = details_of_act(conn, act.id) or {"plans": []}
        if any(policy.version in plan["undone"] for plan in details["plans"]):
            return act.id
    return None


def read_line(conn: Connection, name: str) -> PolicyLine:
    """Return the line of descent of a policy."""
    head = head_version(read_heads(conn), name)
    canary = policy_marks.find_canary(conn, name)
    return PolicyLine(
        name=name,
        head=head,
        lineage=frozenset(policies.lineage(conn, head)),
        canary=None if canary is None else canary.version,
    )


def _require_version(request: ViewRequest) -> Policy:
    version = request.integer("version")
    policy = None if version is None else policies.get(request.conn, version)
    if policy is None:
        newest = policies.next_version(request.conn) - 1
        raise NotFound(f"There is no version {version}. The newest is {newest}.")
    return policy


def _has_files(policy: Policy) -> bool:
    return policy.version == 0 or (policy.path is not None and not policies.is_removed(policy))


def _is_servable(policy: Policy) -> bool:
    """Return whether a version has sound files, and nobody refused it."""
    is_decided = policy.state in (PolicyState.LIVE, PolicyState.ROLLED_BACK)
    return is_decided and _has_files(policy) and policy.damage is None


def _turn_rows(conn: Connection, batch: Sequence[BatchTurn]) -> list[dict[str, Any]]:
    """Return what was asked in the turns of a batch; of practice, in the turn whose prompt was asked again."""
    sources = [item.source or item.turn for item in batch]
    questions = questions_of_turns(conn, sources)
    return [
        {
            "turn": item.turn,
            "is_practice": item.source is not None,
            "asked": cut_text(questions.get(source, ""), _ASKED_CHARS),
        }
        for item, source in zip(batch, sources, strict=True)
    ]


def _named(
    metrics: Mapping[str, float], names: Mapping[str, str]
) -> list[tuple[str, float, float | None]]:
    """Return (words, value, number of comparisons) of the metrics that have words and a finite value."""
    rows = []
    for name, words in names.items():
        value = metrics.get(name)
        if value is not None and math.isfinite(value):
            rows.append((words, value, metrics.get(f"{name}/count")))
    return rows


def _changed_answers(conn: Connection, version: int) -> list[dict[str, Any]]:
    """Return the answers to the gate's questions that changed, with their differences marked."""
    rows = []
    for answer in probe_answers.changed_answers(conn, version)[:_ANSWERS_SHOWN]:
        before, after = compare_words(answer.head_answer, answer.candidate_answer)
        rows.append({"answer": answer, "before": before, "after": after})
    return rows


VIEWS: Sequence[View] = (
    View(path="/ui/versions", template="versions.html", collect=collect_versions),
    View(path="/ui/versions/acts", template="acts.html", collect=act_list.collect_acts),
    View(path="/ui/versions/{version}", template="version.html", collect=collect_version),
    View(
        path="/ui/versions/{version}/comparison",
        template="comparison.html",
        collect=collect_comparison,
    ),
)
