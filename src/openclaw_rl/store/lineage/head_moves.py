"""Moves of a head to another version: back to an ancestor, or to a version that is not on its lineage."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select, update

from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.store import events
from openclaw_rl.store import schema as t
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lineage import lost_uses, policies, policy_marks
from openclaw_rl.store.lineage.policy_names import DEFAULT_NAME, move_head
from openclaw_rl.types import Policy, PolicyState

_mark_rolled_back = (
    update(t.policies)
    .where(t.policies.c.version.in_(bindparam("versions", expanding=True)))
    .values(
        state=PolicyState.ROLLED_BACK.value,
        reason=bindparam("new_reason"),
        reason_code=bindparam("new_code"),
    )
)
_mark_live = (
    update(t.policies)
    .where(t.policies.c.version.in_(bindparam("versions", expanding=True)))
    .values(state=PolicyState.LIVE.value, reason=None, reason_code=None)
)


def roll_back(
    conn: Connection,
    *,
    to: int,
    reason: str,
    code: ReasonCode = ReasonCode.ROLLED_BACK,
    at: float,
    automatic: bool = False,
    name: str = DEFAULT_NAME,
) -> Policy:
    """Move a policy's head back to `to`, and append "policy.rolled_back".

    The versions up to the old head that are on no head's lineage any more become ROLLED_BACK. `automatic`: the
    satisfaction watch asked for it. Raises `ValueError` if `to` is not an ancestor of the head.
    """
    old = policies.head(conn, name).version
    undone = policies.lineage(conn, old, above=to)
    if not undone or policies.get_parent(conn, undone[-1]) != to:
        ancestors_of_head = policies.lineage(conn, old)[1:]
        raise ValueError(
            f"roll back to {to}: expected an ancestor of the head {old}, one of {ancestors_of_head}"
        )
    _leave_versions(conn, name, old, to, undone, Reason(code, reason), automatic, at)
    data = {"versions": undone, "reason": reason, "code": code, "automatic": automatic}
    events.append(conn, "policy.rolled_back", str(to), data, at)
    target = policies.get(conn, to)
    assert target is not None, f"version {to} is in the lineage"
    return target


def promote(conn: Connection, *, to: int, reason: str, at: float) -> None:
    """Make `to`, which is not on the lineage of its policy's head, that head; event "policy.promoted".

    `to` and its ancestors become LIVE. The versions that leave the head's lineage become ROLLED_BACK with `reason`.
    Raises `ValueError` if `to` is unknown or on the head's lineage.
    """
    target = policies.get(conn, to)
    new_lineage = policies.lineage(conn, to)
    name = DEFAULT_NAME if target is None else target.name
    old_lineage = policies.lineage(conn, policies.head(conn, name).version)
    if target is None or to in old_lineage:
        raise ValueError(
            f"promote {to}: expected a version that is not on the lineage of the head {old_lineage[0]}"
        )
    left = [version for version in old_lineage if version not in new_lineage]
    _leave_versions(
        conn, name, old_lineage[0], to, left, Reason(ReasonCode.PROMOTED, reason), False, at
    )
    joined = [version for version in new_lineage if version not in old_lineage]
    conn.execute(_mark_live, {"versions": joined})
    lost_uses.regain_uses(conn, name, joined)
    events.append(conn, "policy.promoted", str(to), {"versions": left, "reason": reason}, at)


def _leave_versions(
    conn: Connection,
    name: str,
    old: int,
    to: int,
    left: list[int],
    reason: Reason,
    automatic: bool,
    at: float,
) -> None:
    """Move the head from `old` to `to`, and mark the versions that are on no lineage any more as rolled back.

    The weights of `to` do not follow the lessons that were learned by those versions. A canary of the policy ends: it
    was compared with `old`.
    """
    move_head(conn, name, to)
    policy_marks.end_canary(conn, name)
    lost_uses.lose_uses(conn, name, left)
    abandoned = _abandoned(conn, left)
    conn.execute(
        _mark_rolled_back,
        {"versions": abandoned, "new_reason": reason.detail, "new_code": reason.code},
    )
    lessons.unlearn_versions(conn, abandoned, at=at)
    policy_marks.record_head_move(
        conn, name, old=old, to=to, left=left, reason=reason.detail, automatic=automatic, at=at
    )


def _abandoned(conn: Connection, left: Sequence[int]) -> list[int]:
    """Return those of the versions that are on no head's lineage any more. `left`: newest first.

    A version stays on a lineage if it is a head, or if a live child of it does. Live children that are not in `left`
    are on one, because nothing else makes them live.
    """
    abandoned = set(left) - policies.heads_among(conn, left)
    for child, parent in _live_children(conn, left):
        if child not in abandoned:
            abandoned.discard(parent)
    return sorted(abandoned)


def _live_children(conn: Connection, versions: Sequence[int]) -> list[tuple[int, int]]:
    """Return (child, parent) of the live children of these versions, the newest child first."""
    p = t.policies.c
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(versions), t.VARIABLES_AT_ONCE):
        some = p.parent.in_(versions[start : start + t.VARIABLES_AT_ONCE])
        query = select(p.version, p.parent).where(some, p.state == PolicyState.LIVE.value)
        pairs += [(child, parent) for child, parent in conn.execute(query)]
    return sorted(pairs, reverse=True)
