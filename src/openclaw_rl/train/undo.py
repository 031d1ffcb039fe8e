"""`openclaw-rl undo`: take turns out of what was learned, as if they had never been trained on.

The head moves back to a version that no such turn has shaped. The other turns of the versions after it are trained on
again, batch by batch (`retraining`), which gives the weights that training without the undone turns gives.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from openclaw_rl.common.policy_digest import OPTIMIZER_FILE
from openclaw_rl.common.printable import cut_text
from openclaw_rl.errors import OpenClawError
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.store import events, sessions, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns, removal
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lineage import (
    head_moves,
    policies,
    policy_marks,
    retraining,
    version_files,
    version_stats,
)
from openclaw_rl.store.lineage.policy_names import (
    DEFAULT_NAME,
    SHARED_NAME,
    is_owned,
    name_of_turn,
    read_heads,
    stored_owner,
)
from openclaw_rl.store.lineage.retraining import RepeatedWork, UndoneVersions
from openclaw_rl.store.lineage.trained_turns import (
    lineage_until,
    nearest_ancestors,
    policies_with_turns,
    turns_by_hint,
    used_by_lineage,
    uses_in_lineage,
)
from openclaw_rl.store.lineage.version_stats import VersionFiles
from openclaw_rl.train.policy_folders import folder_bytes, has_metadata, is_copied_folder
from openclaw_rl.types import Policy, RepeatedBatch

# Hints that an error lists, and characters of a hint.
SHOWN_LESSONS = 20
SHOWN_CHARS = 200
# Letters or digits in words that select hints.
MIN_WORD_CHARS = 3
_LESSON_DIGITS = 8
# Versions that are read together in search of the safe one.
_ANCESTORS_AT_ONCE = 16
# Factor by which the machine may be slower or faster than when the times were recorded.
_SPREAD = 1.5
# Until the trainer sees the undo, at most.
_NOTICE_SECONDS = 2.0
# Of weights and optimizer state that are compared with their digests and loaded in a second.
_LOADED_BYTES = 2e8
# Metrics of a version: the time of its batch, and that of its step alone, which older releases recorded.
_BATCH_SECONDS = "seconds/batch"
_STEP_SECONDS = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """The effect of an undo on one policy."""

    name: str  # of the policy
    head: int
    # The version that answers while the rest is trained on again; the head if no version used the turns.
    safe: int
    # The safe version has its optimizer state, so that the result is the same to the bit.
    is_exact: bool
    turns: tuple[str, ...]  # that are taken out, oldest first
    used_by: tuple[int, ...]  # versions of the lineage that used them, oldest first
    undone_versions: tuple[int, ...]  # newest first
    # Trained on again, with those that were left of an earlier undo.
    work: RepeatedWork
    outstanding: int  # number of batches that were left of an earlier undo
    seconds: tuple[float, float]  # that the training takes, at least and at most
    disk_bytes: int  # of the new versions, before old ones are removed
    # The batches of `work` with their turns, which only the execution needs; None: not read.
    batches: tuple[RepeatedBatch, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedHint:
    """A hint or a lesson that `--lesson` means."""

    id: str
    text: str
    turns: tuple[str, ...]  # that have the hint, or that are the evidence of the lesson


def lesson_id(hint: str) -> str:
    """Return the short name of a hint."""
    return hashlib.sha256(hint.encode(errors="surrogatepass")).hexdigest()[:_LESSON_DIGITS]


def select_turns(
    conn: Connection,
    *,
    ids: Collection[str] = (),
    names: Collection[str] = (),
    since: float | None = None,
    lesson: str | None = None,
    policy: str | None = None,
) -> list[str]:
    """Return the turns to take out, oldest first: those that fit any of the conditions.

    `names`: sessions; `since`: main turns answered since then, in seconds since the epoch; `lesson`: see `match_hints`;
    `policy`: only turns that train this policy. Raises `OpenClawError` if a condition fits no turn.
    """
    selected: set[str] = set()
    for id_ in ids:
        if turns.get(conn, id_) is None:
            raise OpenClawError(
                f"no turn {id_!r}. `openclaw-rl learned` lists the turns that were trained on"
            )
        selected.add(id_)
    for name in names:
        of_session = sessions.session_turns(conn, name)
        if not of_session:
            raise OpenClawError(f"no session {name!r}. `openclaw-rl inspect sessions` lists them")
        selected.update(of_session)
    if since is not None:
        newest = sessions.turns_since(conn, since)
        if not newest:
            raise OpenClawError("no turn was answered since that time")
        selected.update(newest)
    if lesson is not None:
        selected |= _turns_of_lesson(conn, lesson)
    if policy is not None:
        selected = _turns_of_policy(conn, selected, policy)
    return sessions.sort_turns(conn, selected)


def _turns_of_lesson(conn: Connection, lesson: str) -> set[str]:
    matches = match_hints(conn, lesson)
    selected = set[str]()
    for match in matches:
        selected.update(match.turns)
    if selected:
        return selected
    id_ = matches[0].id
    raise OpenClawError(
        f"no turn is left that gave lesson {id_}. `openclaw-rl lessons forget` deletes it, and then "
        f"`openclaw-rl undo --lesson {id_}` takes out what was practised from it"
    )


def _turns_of_policy(conn: Connection, selected: Collection[str], policy: str) -> set[str]:
    per = stored_owner(conn)
    of_policy = {turn for turn in selected if name_of_turn(conn, per, turn) == policy}
    if selected and not of_policy:
        raise OpenClawError(
            f"none of these {len(selected)} turns trains policy {policy!r}. `openclaw-rl policies list` lists the "
            "policies"
        )
    return of_policy


def _hints_with(phrase: str, hints: Iterable[str], lesson: str) -> list[str]:
    """Return the hints that contain a phrase, in any case. `lesson`: as it was given. Raises `OpenClawError`."""
    if sum(map(str.isalnum, phrase)) < MIN_WORD_CHARS:
        raise OpenClawError(
            f"--lesson {lesson!r}: expected the id of a hint, or a part of its text with at least {MIN_WORD_CHARS} "
            "letters or digits, because less fits almost every hint. `openclaw-rl learned` lists the hints with ids"
        )
    return [hint for hint in hints if phrase in hint.casefold()]


def match_hints(conn: Connection, lesson: str) -> list[MatchedHint]:
    """Return the hints and lessons with this id, else those whose text contains the words, in any case.

    Raises `OpenClawError` if nothing matches, or for words that would match almost everything.
    """
    noted = lessons.get(conn, lesson)
    if noted is not None:
        return [_matched_lesson(conn, noted)]
    practised = practice_turns.turns_of_lessons(conn, [lesson])
    if practised:
        text = "(a lesson that was forgotten)"
        return [MatchedHint(id=lesson, text=text, turns=tuple(practised))]
    known = turns_by_hint(conn)
    phrase = lesson.strip().casefold()
    hints = [hint for hint in known if lesson == lesson_id(hint)]
    hints = hints or _hints_with(phrase, known, lesson)
    matches = []
    for hint in hints:
        matches.append(MatchedHint(id=lesson_id(hint), text=hint, turns=tuple(known[hint])))
    for other in lessons.list_lessons(conn):
        if phrase in other.text.casefold():
            matches.append(_matched_lesson(conn, other))
    if not matches:
        listed = _list_hints(list(known)[:SHOWN_LESSONS])
        raise OpenClawError(f"no hint has the text or the id {lesson!r}. The hints are:{listed}")
    return matches


def _list_hints(hints: Sequence[str]) -> str:
    """Return a line for each hint, with its id; " none" without hints."""
    lines = [f"\n  {lesson_id(hint)}  {cut_text(hint, SHOWN_CHARS)}" for hint in hints]
    return "".join(lines) or " none"


def _matched_lesson(conn: Connection, lesson: Lesson) -> MatchedHint:
    turns_of_lesson = tuple(one.turn for one in lessons.turns_of_lesson(conn, lesson.id))
    return MatchedHint(id=lesson.id, text=lesson.text, turns=turns_of_lesson)


def turns_by_policy(conn: Connection, selected: Collection[str]) -> dict[str, list[str]]:
    """Return the policies from which these turns are taken, each with its own, oldest first.

    A turn belongs to every policy whose lineage used it, or would in an undo in progress; else to that of its owner.
    Turns of practice that were made from the selected ones are taken, too.
    """
    out = {*selected, *practice_turns.turns_practised_from(conn, selected)}
    turn_sets: dict[str, set[str]] = {}
    used_by_head: dict[int, set[str]] = {}
    heads = read_heads(conn)
    for name in _policies_to_ask(conn, heads, out):
        head = heads[name]
        if head not in used_by_head:
            used_by_head[head] = used_by_lineage(conn, head, out)
        of_policy = set(used_by_head[head])
        for batch in retraining.outstanding_batches(conn, name):
            of_policy.update(out.intersection(batch.turns))
        turn_sets[name] = of_policy
    per = stored_owner(conn)
    for turn in out.difference(*turn_sets.values()):
        turn_sets.setdefault(name_of_turn(conn, per, turn), set()).add(turn)
    by_policy = {}
    for name, turn_ids in sorted(turn_sets.items()):
        if turn_ids:
            by_policy[name] = sessions.sort_turns(conn, turn_ids)
    return by_policy


def _policies_to_ask(
    conn: Connection, heads: Mapping[str, int], turn_ids: Collection[str]
) -> list[str]:
    """Return the policies that may have a version with one of the turns in their lineage, or in an undo in progress.

    The lineage of a policy has its own versions, and before them those of the default one that the shared parent and
    its ancestors are.
    """
    own = policies_with_turns(conn, turn_ids)
    shared = heads.get(SHARED_NAME, heads[DEFAULT_NAME])
    if own.get(DEFAULT_NAME, shared + 1) <= shared:
        return list(heads)
    undone = retraining.names_with_batches(conn)
    return [name for name in heads if name in own or name in undone]


def plan_undo(conn: Connection, selected: Sequence[str], name: str = DEFAULT_NAME) -> UndoPlan:
    """Plan to take these turns out of a policy, with the turns of practice that were made from them.

    A policy that is not trained under the home's `policy.per`, such as the shared parent, only goes back to the safe
    version. Raises `OpenClawError` if no version is left to begin from, or if batches are left to train on while
    training is frozen.
    """
    selected = sessions.sort_turns(
        conn, {*selected, *practice_turns.turns_practised_from(conn, selected)}
    )
    head = policies.head(conn, name)
    out = frozenset(selected)
    used_by = sorted({version for version, _ in uses_in_lineage(conn, head.version, out)})
    safe, is_exact = _find_safe_version(conn, used_by[0]) if used_by else (head, True)
    undone = tuple(lineage_until(conn, head.version, safe.version)[:-1])
    left = retraining.outstanding_batches(conn, name)
    work = RepeatedWork()
    if is_owned(stored_owner(conn), name):
        versions = UndoneVersions(
            versions=undone, safe=safe.version, left=tuple(left), taken_out=out
        )
        work = retraining.count_work(conn, versions)
    if work.sizes and policy_marks.frozen_since(conn) is not None:
        raise OpenClawError(
            "training is frozen, and this undo trains again. First: openclaw-rl policies unfreeze"
        )
    return UndoPlan(
        name=name,
        head=head.version,
        safe=safe.version,
        is_exact=is_exact,
        turns=tuple(selected),
        used_by=tuple(used_by),
        undone_versions=undone,
        work=work,
        outstanding=len(left),
        seconds=_estimate_seconds(conn, work.sizes, safe),
        disk_bytes=len(work.sizes) * folder_bytes(head.path),
    )


def _find_batches(conn: Connection, plan: UndoPlan) -> tuple[RepeatedBatch, ...]:
    """Return the batches that are trained on again, with their turns, which the plan may have already."""
    if plan.batches is not None:
        return plan.batches
    if not plan.work.sizes:
        return ()
    versions = UndoneVersions(
        versions=plan.undone_versions,
        safe=plan.safe,
        left=tuple(retraining.outstanding_batches(conn, plan.name)),
        taken_out=frozenset(plan.turns),
    )
    return tuple(retraining.batches_of_undone(conn, versions))


def _find_safe_version(conn: Connection, used_by: int) -> tuple[Policy, bool]:
    """Return the newest ancestor from which training can continue to the bit, and whether it can.

    What a home was started from cannot be trained again, so the search ends there. `used_by`: the oldest version that
    used the turns.
    """
    for files in _files_of_ancestors(conn, used_by):
        if files.path is not None and not files.has_file and not is_copied_folder(files.path):
            continue
        version = files.version
        policy = policies.get(conn, version)
        assert policy is not None, f"version {version} is in the lineage"
        if policy.path is None:
            return policy, True
        is_whole = policy.damage is None and not policies.is_removed(policy)
        if is_whole and policy.files.get(OPTIMIZER_FILE):
            return policy, True
        if not has_metadata(policy):
            continue
        if is_whole:
            return policy, False
        reason = policy.damage or policies.REMOVED_REASON
        raise OpenClawError(
            f"version {version}, which this home was started from, cannot be used: {reason}"
        )
    raise AssertionError("version 0 has no files that could be missing")


def _files_of_ancestors(conn: Connection, version: int) -> Iterator[VersionFiles]:
    """Yield the folders of the ancestors of a version, newest first, a few at a time."""
    while True:
        _, *older = nearest_ancestors(conn, version, 1 + _ANCESTORS_AT_ONCE)
        if not older:
            return
        yield from version_stats.files_of_versions(conn, older, OPTIMIZER_FILE)
        version = older[-1]


def _estimate_seconds(
    conn: Connection, sizes: Sequence[tuple[int, int]], safe: Policy
) -> tuple[float, float]:
    """Estimate the training time, at least and at most, from the recorded times of the batches that are repeated.

    The lower figure counts the share of the turns that are left. The upper one adds the start: the trainer sees the
    undo, ends the batch that it works on, and loads the safe version.
    """
    if not sizes:
        return 0.0, 0.0
    repeated = {version for version, _ in sizes}
    names = ("turns", _BATCH_SECONDS, _STEP_SECONDS)
    metrics = version_stats.metrics_of_versions(conn, repeated, names)
    times: dict[int, float] = {}
    turn_counts: dict[int, float] = {}
    for version, known in metrics.items():
        turn_counts[version] = max(1.0, known.get("turns", 1.0))
        seconds = known.get(_BATCH_SECONDS, known.get(_STEP_SECONDS))
        if seconds is not None:
            times[version] = seconds
    usual = sum(times.values()) / len(times) if times else 0.0
    least = 0.0
    most = 0.0
    for version, size in sizes:
        seconds = times.get(version, usual)
        share = size / turn_counts[version]
        least += seconds * min(1.0, share)
        most += seconds
    start = _NOTICE_SECONDS + usual + folder_bytes(safe.path) / _LOADED_BYTES
    return least / _SPREAD, most * _SPREAD + start


def plan_undos(conn: Connection, selected: Sequence[str]) -> list[UndoPlan]:
    """Plan the undo for each affected policy. Raises as `plan_undo` does."""
    by_policy = turns_by_policy(conn, selected)
    return [plan_undo(conn, turn_ids, name) for name, turn_ids in by_policy.items()]


def check_safe_files(store: Store, selected: Sequence[str]) -> list[UndoPlan]:
    """Plan the undo for each affected policy, and compare the files of the safe versions with their digests.

    A version that is found damaged is passed over. Raises `OpenClawError` if no version is left.
    """
    while True:
        with store.read() as conn:
            plans = [
                replace(plan, batches=_find_batches(conn, plan))
                for plan in plan_undos(conn, selected)
            ]
        if not any(_is_safe_version_damaged(store, plan) for plan in plans):
            return plans


def _is_safe_version_damaged(store: Store, plan: UndoPlan) -> bool:
    if plan.safe == plan.head:
        return False
    return version_files.examine_files(store, plan.safe) is not None


def _is_current(conn: Connection, plan: UndoPlan) -> bool:
    """Return whether a plan would be the same if it was made again, without reading the whole lineage again."""
    has_moved = (
        policies.head(conn, plan.name).version != plan.head
        or retraining.count_batches(conn, plan.name) != plan.outstanding
    )
    if has_moved or (plan.work.sizes and policy_marks.frozen_since(conn) is not None):
        return False
    practised = practice_turns.turns_practised_from(conn, plan.turns)
    return set(plan.turns).issuperset(practised) and _is_safe_still(conn, plan)


def _is_safe_still(conn: Connection, plan: UndoPlan) -> bool:
    """Return whether training can continue from the plan's safe version as it says."""
    safe = policies.get(conn, plan.safe)
    assert safe is not None, "versions are never deleted"
    if safe.version == plan.head or safe.path is None:
        return True
    if safe.damage is not None or policies.is_removed(safe):
        return False
    return not plan.is_exact or bool(safe.files.get(OPTIMIZER_FILE))


def apply_undo(conn: Connection, agreed: Sequence[UndoPlan], *, reason: str) -> list[UndoPlan]:
    """Execute the plans: move the heads, take the turns back, and write the batches that are trained on again.

    Versions that were published since planning go, too. Returns the plans as executed. A step in progress publishes
    nothing, because `policies.publish` requires the head as parent and refuses turns that were taken back. Raises
    `OpenClawError` if another version than an agreed one would answer.
    """
    now = time.time()
    plans = [
        plan if _is_current(conn, plan) else plan_undo(conn, plan.turns, plan.name)
        for plan in agreed
    ]
    for plan, old in zip(plans, agreed, strict=True):
        if plan.safe != old.safe and (old.used_by or plan.used_by):
            raise OpenClawError(
                f"version {old.safe} is no longer the version to return to. Repeat the command"
            )
    for plan in plans:
        if plan.undone_versions:
            head_moves.roll_back(
                conn,
                to=plan.safe,
                reason=reason,
                code=ReasonCode.TAKEN_BACK,
                at=now,
                name=plan.name,
            )
            retraining.replace_batches(conn, plan.name, _find_batches(conn, plan))
        removal.take_back(conn, plan.turns, reason, at=now)
        data: Mapping[str, object] = {
            "reason": reason,
            "turns": len(plan.turns),
            "versions": plan.undone_versions,
            "batches": len(plan.work.sizes),
        }
        events.append(conn, "policy.undone", str(plan.safe), data, now)
    return plans
