"""Health snapshot of a home: its newest turns, verdicts, steps and log lines; and a diagnosis, found in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common import disk_space
from openclaw_rl.common.log_codes import EndCause, LogCode
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.common.policy_digest import find_damage
from openclaw_rl.common.progress import Wait
from openclaw_rl.common.statistics.rater_agreement import Kappa
from openclaw_rl.errors import DiskFull
from openclaw_rl.methods.registry import make_method
from openclaw_rl.reasons import Reason
from openclaw_rl.settings.load import Config
from openclaw_rl.status.readable_turns import readable_reactions
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.lessons.lessons import Lesson, LessonState, list_lessons
from openclaw_rl.store.lineage import policies, retraining, version_files
from openclaw_rl.store.lineage.policy_marks import HeadMove, last_automatic_rollback
from openclaw_rl.store.lineage.policy_names import owner_filter, stored_owner, waiting_names
from openclaw_rl.store.lineage.training_queue import count_trainable
from openclaw_rl.store.lineage.version_stats import judge_user_agreement
from openclaw_rl.store.trust.judge_trust import kappa_by_judge, read_trust
from openclaw_rl.train.file_monitor import EXAMINED_VERSIONS
from openclaw_rl.train.tracking import METRICS_FILE
from openclaw_rl.types import Verdict

# Number of turns, verdicts and steps in a snapshot.
MAX_ITEMS = 50
# Seconds: older log lines are ignored.
LOG_WINDOW = 3600.0
# Seconds: a worker that crashed longer ago has recovered.
_CRASH_INTERVAL = 900.0
_LOG_SUFFIX = ".log"
# Bytes that are read at the end of a file.
_TAIL_BYTES = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a worker's log. Lines of earlier versions have no codes."""

    file: str
    message: str
    at: float  # seconds since the epoch
    code: LogCode | None = None
    worker: str = ""  # the one that the line is about; empty: the one that wrote it
    cause: EndCause | None = None  # of the end of a worker

    @property
    def subject(self) -> str:
        """The worker that the line is about."""
        return self.worker or self.file.removesuffix(_LOG_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """State of a home at one moment."""

    config: Config
    now: float  # seconds since the epoch
    log_lines: Sequence[LogLine]  # of the last hour, oldest first
    steps: Sequence[Mapping[str, Any]]  # newest rows of metrics.jsonl, oldest first
    heartbeat_notes: Mapping[str, str]  # worker -> the note of its last heartbeat
    heartbeat_waits: Mapping[str, frozenset[Wait]]  # worker -> what its last heartbeat waits for
    full_disks: Sequence[
        str
    ]  # the folders that the system writes to without space, each with the space that is left
    worker_problems: Sequence[
        str
    ]  # reason and cure of each worker, without the engine, that is parked or crashes
    verdicts: Sequence[Verdict]  # newest verdicts of the judge, newest first
    empty_reactions: int  # number of these verdicts whose reaction has no text and no feedback
    main_turns: int  # number of the newest main turns
    unlinked_reasons: Sequence[
        Reason
    ]  # of those main turns: why no earlier turn was found in a history that has replies
    isolated_turns: (
        int  # number of those main turns that have neither an earlier turn nor a reaction
    )
    waiting_turns: int  # turns that wait for their verdict
    longest_wait: float  # seconds that the first of them has waited
    trainable_turns: int  # length of the method's training queue
    damaged_versions: Sequence[
        str
    ]  # a line for each version whose files do not match their digests
    waiting_undo: Sequence[str]  # a line for an undo in progress while no trainer runs
    automatic_rollback: (
        HeadMove | None
    )  # the last move of the head, if the satisfaction watch made it
    agreement: tuple[
        int, int
    ]  # (turns on which judge and user feedback agree, turns that have both)
    untrusted_judges: Mapping[str, Kappa]  # judges whose verdicts are not trained on
    withdrawn_lessons: Sequence[Lesson]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A problem of a running system: its name, the evidence and the cure."""

    name: str
    evidence: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys and their new values
    advice: str


def take_snapshot(
    config: Config, conn: Connection, now: float, *, examine: bool = False
) -> HealthSnapshot:
    """Take the snapshot of a home. `now`: seconds since the epoch; `examine`: read the files of the newest versions."""
    verdicts = turns.newest_judge_verdicts(conn, MAX_ITEMS)
    links = turns.newest_main_links(conn, MAX_ITEMS)
    unjudged, since = turns.count_unjudged(conn)
    beats = heartbeats.read_heartbeats(conn)
    log_lines = _recent_log_lines(config.logs_dir, now)
    return HealthSnapshot(
        config=config,
        now=now,
        log_lines=log_lines,
        steps=_newest_steps(config),
        heartbeat_notes={beat.name: beat.note for beat in beats},
        heartbeat_waits={beat.name: beat.waits for beat in beats},
        full_disks=find_full_disks(config),
        worker_problems=_find_worker_problems(beats, log_lines, now),
        verdicts=verdicts,
        empty_reactions=sum(_is_empty_reaction(conn, v.turn) for v in verdicts),
        main_turns=len(links),
        unlinked_reasons=[reason for _, reason, _ in links if reason is not None],
        isolated_turns=sum(parent is None and not revision for parent, _, revision in links),
        waiting_turns=unjudged,
        longest_wait=0.0 if since is None else now - since,
        trainable_turns=training_queue_length(config, conn),
        damaged_versions=version_files.damage_reports(conn)
        + (_unrecorded_damage(conn) if examine else []),
        waiting_undo=[] if _has_trainer(beats, now) else retraining.progress_reports(conn),
        automatic_rollback=last_automatic_rollback(conn),
        agreement=judge_user_agreement(conn),
        untrusted_judges=_untrusted_kappas(conn),
        withdrawn_lessons=list_lessons(conn, states=[LessonState.WITHDRAWN]),
    )


def _newest_steps(config: Config) -> Sequence[Mapping[str, Any]]:
    """Return the newest metrics of steps, at most `MAX_ITEMS`."""
    rows = list(_json_lines(config.logs_dir / METRICS_FILE))
    return [row for row in rows if "version" in row][-MAX_ITEMS:]


def _has_trainer(beats: Sequence[heartbeats.Heartbeat], now: float) -> bool:
    return any(beat.name == "train" and beat.is_alive(now) for beat in beats)


def _unrecorded_damage(conn: Connection) -> list[str]:
    """Return a line for each of the newest versions with damage that no worker has found yet."""
    if policies.get(conn, 0) is None:
        return []
    newest = policies.newest_of_each(conn, EXAMINED_VERSIONS)
    reports = []
    for policy in policies.get_many(conn, newest):
        if policy.path is None or policy.damage is not None or policies.is_removed(policy):
            continue
        try:
            damage = find_damage(policy.path, policy.digest, policy.files)
        except OSError as error:
            damage = str(error)
        if damage is not None:
            reports.append(
                f"version {policy.version} is damaged: {damage}. It is left out when the system starts"
            )
    return reports


def find_full_disks(config: Config) -> list[str]:
    """Return for each folder that the system writes to on a full disk, why work pauses."""
    chosen = (config.data.export_dir, config.train.checkpoint.save_dir)
    problems = []
    for folder in (config.home_dir, *(Path(path).expanduser() for path in chosen if path)):
        try:
            disk_space.require_space(folder)
        except DiskFull as error:
            problems.append(str(error))
    return problems


def _untrusted_kappas(conn: Connection) -> dict[str, Kappa]:
    untrusted = read_trust(conn).common
    return {judge: kappa for judge, kappa in kappa_by_judge(conn).items() if judge in untrusted}


def _find_worker_problems(
    beats: Sequence[heartbeats.Heartbeat], log_lines: Sequence[LogLine], now: float
) -> list[str]:
    """Return a line for each worker that is parked, or that crashed twice and may crash again."""
    crashes: dict[str, list[LogLine]] = {}
    for line in log_lines:
        if line.code is LogCode.WORKER_ENDED:
            crashes.setdefault(line.subject, []).append(line)
    problems: dict[str, str] = {}
    for worker, lines in crashes.items():
        is_recent = abs(now - lines[-1].at) < _CRASH_INTERVAL
        if len(lines) > 1 and is_recent:
            problems[worker] = f"{len(lines)} crashes in the last hour: {lines[-1].message}"
    for beat in beats:
        is_recent = abs(now - beat.at) <= LOG_WINDOW
        if beat.state == heartbeats.PARKED and is_recent:
            problems[beat.name] = f"{beat.name} {beat.note}"
    # It has a diagnosis of its own.
    problems.pop("engine", None)
    return list(problems.values())


def _is_empty_reaction(conn: Connection, turn: str) -> bool:
    reaction = readable_reactions(conn, [turn]).get(turn)
    if reaction is None or reaction.feedback:
        return False
    return not any(message_text(message).strip() for message in reaction.messages)


def training_queue_length(config: Config, conn: Connection) -> int:
    """Return the number of turns that the method of the settings can train on now."""
    # No trainer or gateway has ever started.
    if policies.get(conn, 0) is None:
        return 0
    method = make_method(config.train)
    per = stored_owner(conn)
    return sum(
        count_trainable(
            conn,
            max_uses=config.train.batch.max_uses,
            need_score=method.uses_reward,
            need_hint=method.uses_hints,
            owner=owner_filter(per, name),
        )
        for name in waiting_names(conn, per)
    )


def _recent_log_lines(logs: Path, now: float) -> list[LogLine]:
    log_lines = []
    for path in sorted(logs.glob(f"*{_LOG_SUFFIX}")):
        for row in _json_lines(path):
            if "message" in row and isinstance(row.get("at"), int | float):
                log_lines.append(_to_log_line(path.name, row))
    recent = [line for line in log_lines if abs(now - line.at) <= LOG_WINDOW]
    return sorted(recent, key=lambda line: line.at)


def _to_log_line(file: str, row: Mapping[str, Any]) -> LogLine:
    code = row.get("code")
    cause = row.get("cause")
    return LogLine(
        file=file,
        message=str(row["message"]),
        at=float(row["at"]),
        code=LogCode(code) if code in set(LogCode) else None,
        worker=str(row.get("worker", "")),
        cause=EndCause(cause) if cause in set(EndCause) else None,
    )


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects at the end of a file, one per line. Other lines are skipped."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        raw = file.read().decode(errors="replace")
    return [line for line in map(_parse_object, raw.splitlines()) if line]


def _parse_object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
