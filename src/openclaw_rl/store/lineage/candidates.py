"""Candidates: versions whose step is done, and which the gate examines before they answer anyone.

A candidate has its uses recorded, so that its turns are in no other batch. The head never points at one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, bindparam, delete, select, update

from openclaw_rl.errors import StaleLease
from openclaw_rl.reasons import Reason
from openclaw_rl.store import events, leases, turn_states
from openclaw_rl.store import schema as t
from openclaw_rl.store.lineage import lost_uses, policies, policy_marks
from openclaw_rl.store.lineage.policy_names import move_head
from openclaw_rl.store.rows import numbers_to_json, to_json
from openclaw_rl.types import Lease, Policy, PolicyState, Use

_of_version = t.policies.c.version == bindparam("of")
_set_live = (
    update(t.policies)
    .where(_of_version)
    .values(state=PolicyState.LIVE.value, metrics=bindparam("found"))
)
_set_metrics = update(t.policies).where(_of_version).values(metrics=bindparam("found"))
_set_rejected = (
    update(t.policies)
    .where(_of_version)
    .values(
        state=PolicyState.REJECTED.value,
        reason=bindparam("new_reason"),
        reason_code=bindparam("new_code"),
        metrics=bindparam("found"),
        path=None,
        files=to_json({}),
        damage=None,
    )
)
_discount_uses = (
    update(t.turns)
    .where(t.turns.c.id.in_(select(t.uses.c.turn).where(t.uses.c.policy == bindparam("of"))))
    .values(uses=t.turns.c.uses - 1, lost=t.turns.c.lost - 1)
)
_delete_uses = delete(t.uses).where(t.uses.c.policy == bindparam("of"))


def add_candidate(
    conn: Connection,
    lease: Lease,
    policy: Policy,
    uses: Sequence[Use],
    now: float,
    *,
    lease_now: float | None = None,
) -> None:
    """Insert the policy as CANDIDATE with its uses, and append "policy.candidate"; the head stays.

    Arguments and errors are those of `policies.publish`.
    """
    leases.check(conn, lease, now if lease_now is None else lease_now)
    _check_parent(conn, policy)
    policies.insert_version(conn, policy, uses, PolicyState.CANDIDATE)
    events.append(
        conn,
        "policy.candidate",
        str(policy.version),
        {"parent": policy.parent, "turns": len(uses)},
        now,
    )


def list_candidates(conn: Connection) -> list[Policy]:
    """Return the versions that are candidates, oldest first; a policy has at most one."""
    query = select(t.policies.c.version).where(t.policies.c.state == PolicyState.CANDIDATE.value)
    return policies.get_many(conn, conn.execute(query).scalars().all())


def record_metrics(conn: Connection, candidate: Policy, metrics: Mapping[str, float]) -> None:
    """Store the metrics of a candidate."""
    conn.execute(_set_metrics, {"of": candidate.version, "found": numbers_to_json(metrics)})


def promote_candidate(
    conn: Connection,
    lease: Lease,
    candidate: Policy,
    metrics: Mapping[str, float],
    now: float,
    *,
    lease_now: float | None = None,
) -> Policy:
    """Make the candidate the head, store its metrics, and append "policy.live". Return it as it is stored now.

    Raises `StaleLease` if the lease is lost or expired, if the head is no longer the candidate's parent, or if it is no
    candidate any more.
    """
    leases.check(conn, lease, now if lease_now is None else lease_now)
    _require_candidate(conn, candidate)
    _check_parent(conn, candidate)
    turns = [use.turn for use in policies.uses_of_version(conn, candidate.version)]
    undone = turn_states.taken_back(conn, turns)
    if undone:
        raise StaleLease(
            f"turns of policy {candidate.version} were taken back: {', '.join(undone)}"
        )
    conn.execute(_set_live, {"of": candidate.version, "found": numbers_to_json(metrics)})
    move_head(conn, candidate.name, candidate.version)
    lost_uses.regain_uses(conn, candidate.name, [candidate.version])
    policy_marks.end_canary(conn, candidate.name)
    data = {"parent": candidate.parent, "turns": len(turns)}
    events.append(conn, "policy.live", str(candidate.version), data, now)
    return replace(candidate, state=PolicyState.LIVE, metrics=metrics)


def reject_candidate(
    conn: Connection,
    lease: Lease,
    candidate: Policy,
    reason: Reason,
    metrics: Mapping[str, float],
    now: float,
    *,
    lease_now: float | None = None,
    frees_turns: bool = False,
) -> Policy:
    """Mark the candidate as REJECTED, without files, and append "policy.rejected". Return it as it is stored now.

    `frees_turns`: its uses are removed, because nothing speaks against its turns; otherwise they stay, and the batch is
    bisected. The caller removes the folder afterwards. Raises `StaleLease` as `promote_candidate` does.
    """
    leases.check(conn, lease, now if lease_now is None else lease_now)
    _require_candidate(conn, candidate)
    values = {
        "new_reason": reason.detail,
        "new_code": reason.code,
        "found": numbers_to_json(metrics),
    }
    conn.execute(_set_rejected, {"of": candidate.version} | values)
    policy_marks.end_canary(conn, candidate.name)
    if frees_turns:
        conn.execute(_discount_uses, {"of": candidate.version})
        conn.execute(_delete_uses, {"of": candidate.version})
    data = {"reason": reason.detail, "code": reason.code}
    events.append(conn, "policy.rejected", str(candidate.version), data, now)
    return replace(
        candidate,
        state=PolicyState.REJECTED,
        reason=reason.detail,
        reason_code=reason.code,
        metrics=metrics,
        path=None,
        files={},
    )


def _check_parent(conn: Connection, policy: Policy) -> None:
    current = policies.head(conn, policy.name).version
    if current != policy.parent:
        raise StaleLease(
            f"policy {policy.version} has parent {policy.parent}, but the head is now {current}."
        )


def _require_candidate(conn: Connection, candidate: Policy) -> None:
    stored = policies.get(conn, candidate.version)
    if stored is None or stored.state is not PolicyState.CANDIDATE:
        state = "gone" if stored is None else stored.state.value
        raise StaleLease(f"policy {candidate.version} was to be decided on, but it is {state}.")
