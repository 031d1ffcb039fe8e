"""Heads, candidates and policies as the store has them, for the version manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from openclaw_rl.common.logging_metrics import GatewayMetrics
from openclaw_rl.errors import ModelError
from openclaw_rl.store import events
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks, version_files
from openclaw_rl.store.lineage.policy_marks import CanaryMark
from openclaw_rl.store.lineage.policy_names import count_changes, head_version, read_heads
from openclaw_rl.types import Policy, PolicyState


class StoredHeads:
    """Read again when the store has changed."""

    def __init__(
        self, store: Store, metrics: GatewayMetrics, has_changed: Callable[[], bool]
    ) -> None:
        """`has_changed` returns whether a head may have moved since its last call."""
        self._store = store
        self._has_changed = has_changed
        self._metrics = metrics
        # By version; those that were needed so far.
        self._policies: dict[int, Policy] = {}
        # By name, of all policies.
        self._heads: dict[str, int] = {}
        # Of heads, canaries and states that the store counted at the last look.
        self._changes: int | None = None
        self.head = 0
        """Head of the default policy."""
        self.canaries: Mapping[str, CanaryMark] = {}
        """By the name of their policy."""
        self.candidates: set[int] = set()
        """Versions that were candidates when they were last read."""
        self.recorded: int | None = None
        """The serving version that the store knows."""

    @property
    def was_read(self) -> bool:
        return bool(self._heads)

    def head_of(self, policy: str) -> int:
        """Return the head of a policy: its own, or that of the default policy."""
        return head_version(self._heads, policy)

    def refresh(self, in_use: Mapping[int, int]) -> bool:
        """Read the heads if the store has changed. Return whether that of the default policy has moved.

        `in_use`: version -> number of its replies; the candidates among them are not forgotten yet.
        """
        if self._heads and not self._has_changed():
            return False
        with self._store.read() as conn:
            changes = count_changes(conn)
            # Most commits are of conversations. A candidate that was decided may still have replies.
            if changes == self._changes and not self.candidates:
                return False
            policy = policies.head(conn)
            heads = read_heads(conn)
            states = policies.count_by_state(conn)
            self.canaries = policy_marks.all_canaries(conn)
            self.candidates.update(canary.version for canary in self.canaries.values())
            candidates = policies.get_many(conn, self.candidates)
        for candidate in candidates:
            if not in_use.get(candidate.version):
                self._forget_decided(candidate)
        has_moved = policy.version != self.head or not self._policies
        self._policies[policy.version] = policy
        self.head = policy.version
        self._heads = heads
        self._changes = changes
        self._show(policy, states)
        return has_moved

    def _show(self, head: Policy, states: Mapping[PolicyState, int]) -> None:
        """Set the metrics of the head and of the number of versions in each state."""
        self._metrics.head.set(head.version)
        for state in PolicyState:
            self._metrics.versions.labels(state.value).set(states.get(state, 0))
        self._metrics.training.set_metrics(head.version, head.metrics)

    def _forget_decided(self, candidate: Policy) -> None:
        """Count a promoted candidate as a version like others, and unload a rejected one, whose files are gone."""
        if candidate.state is PolicyState.CANDIDATE:
            return
        self.candidates.discard(candidate.version)
        if candidate.state is PolicyState.REJECTED:
            self._policies.pop(candidate.version, None)

    def knows(self, version: int) -> bool:
        return version in self._policies

    def add(self, policy: Policy) -> None:
        """Remember a policy that a request named."""
        self._policies[policy.version] = policy
        if policy.state is PolicyState.CANDIDATE:
            self.candidates.add(policy.version)

    def known(self, version: int) -> Policy:
        """Return a policy that was found before."""
        return self._policies[version]

    async def find(self, version: int) -> Policy:
        """Return the policy of a version that is in the store: a head, a pinned version or a parent."""
        if version not in self._policies:
            policy = await asyncio.to_thread(self.read_policy, version)
            assert policy is not None, "heads, pinned versions and parents are in the store"
            self._policies[version] = policy
        return self._policies[version]

    def read_policy(self, version: int) -> Policy | None:
        """Return the policy as the store has it now."""
        with self._store.read() as conn:
            return policies.get(conn, version)

    def record_serving(self, version: int) -> None:
        """Record the serving version, whose files the trainer then keeps."""
        with self._store.write(durable=False) as conn:
            events.move_cursor(conn, policies.SERVED_CURSOR, version)
        self.recorded = version

    def examine_files(self, version: int, *, trusts_known: bool = True) -> str | None:
        """Return why the files of a version cannot be served, or None. `trusts_known`: as in `version_files`."""
        try:
            return version_files.examine_files(
                self._store, version, for_engine=True, trusts_known=trusts_known
            )
        except ModelError as error:
            return str(error)
