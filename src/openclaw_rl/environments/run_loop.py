"""Plays the episodes of a run in parallel: opens each at the gateway, lets its runner play, and posts the outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.common.printable import to_printable
from openclaw_rl.environments.episode_client import EpisodeClient, GroupComplete
from openclaw_rl.environments.leftovers import remove_leftovers
from openclaw_rl.environments.run_plan import PlannedEpisode, RunPlan
from openclaw_rl.environments.runner_lease import EpisodeLease, LeaseFolder
from openclaw_rl.environments.scratch_folder import new_scratch_folder
from openclaw_rl.environments.types import EpisodeRunner, PlayLimits, PlayOutcome, void_outcome
from openclaw_rl.errors import OpenClawError

log = logging.getLogger(__name__)
# Seconds beside the time for playing: build and verifier of a task folder may have their own.
_EXTRA_TTL = 3600
# Seconds.
_MAX_TTL = 604800
_MIN_VOID_ROW = 16
_LISTED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """The result of an episode. `earlier`: it was played before the run was continued."""

    episode: PlannedEpisode
    status: Literal["done", "void"]
    reward: float | None
    reason: str | None
    earlier: bool = False


@dataclass(slots=True, kw_only=True)
class EpisodeLoop:
    """Plays a plan. `gateway_pid`: returns the process id of the running gateway; a restart changes it."""

    plan: RunPlan
    runner: EpisodeRunner
    client: EpisodeClient
    leases: LeaseFolder
    limits: PlayLimits
    parallel: int
    gateway_pid: Callable[[], int | None]
    on_result: Callable[[EpisodeResult], None]
    _void_row: int = field(default=0, init=False)

    async def play_all(self, *, continued: bool) -> None:
        """Play every episode of the plan. `continued`: those that have ended already are left out.

        Raises `OpenClawError` if the gateway refuses an episode or does not answer, or if one episode after another is
        void. Whatever ends it, also a cancellation: no process or folder is left. A running episode is left only if the
        gateway did not take its outcome; its lease is then left to the reaper.
        """
        ended = await self._list_ended() if continued else {}
        todo = self._start_with_ended(ended)
        name = f"{self.plan.name}-shared"
        shared = EpisodeLease(episode=name, folder=new_scratch_folder(name))
        self.leases.add_lease(shared)
        await asyncio.to_thread(Path(shared.folder).mkdir, 0o700)
        self.runner.open_runner(shared.folder)
        try:
            await gather_tasks(self._play_next(todo) for _ in range(self.parallel))
        finally:
            await asyncio.shield(self._end_shared(shared))

    async def _end_shared(self, shared: EpisodeLease) -> None:
        await self.runner.close_runner()
        if await asyncio.to_thread(remove_leftovers, shared.folder):
            self.leases.remove_lease(shared.episode)

    async def _list_ended(self) -> Mapping[str, Mapping[str, Any]]:
        gate = asyncio.Semaphore(_LISTED_AT_ONCE)

        async def list_group(group: str) -> list[dict[str, Any]]:
            async with gate:
                return await self.client.list_group(group)

        groups = dict.fromkeys(episode.group for episode in self.plan.list_episodes())
        listed = await asyncio.gather(*(list_group(group) for group in groups))
        ended = {}
        for entries in listed:
            for entry in entries:
                if entry["status"] != "running":
                    ended[entry["id"]] = entry
        return ended

    def _start_with_ended(self, ended: Mapping[str, Mapping[str, Any]]) -> Iterator[PlannedEpisode]:
        """Report the episodes that have ended, and yield the others."""
        for episode in self.plan.list_episodes():
            entry = ended.get(episode.id)
            if entry is None:
                yield episode
                continue
            status = entry["status"]
            reward = entry["reward"]
            reason = entry["reason"]
            self.on_result(
                EpisodeResult(
                    episode=episode, status=status, reward=reward, reason=reason, earlier=True
                )
            )

    async def _play_next(self, todo: Iterator[PlannedEpisode]) -> None:
        for episode in todo:
            try:
                outcome = await self._run_episode(episode)
            except GroupComplete as error:
                # The run was interrupted for longer than its episodes live.
                self.on_result(
                    EpisodeResult(episode=episode, status="void", reward=None, reason=str(error))
                )
                continue
            self.on_result(
                EpisodeResult(
                    episode=episode,
                    status=outcome.status,
                    reward=outcome.reward,
                    reason=outcome.reason,
                )
            )
            self._void_row = self._void_row + 1 if outcome.status == "void" else 0
            if self._void_row >= max(_MIN_VOID_ROW, 2 * self.parallel):
                raise OpenClawError(
                    f"the last {self._void_row} episodes were void. The last one: {outcome.reason}"
                )

    @property
    def _ttl(self) -> int:
        """Seconds from the opening of an episode to its expiry."""
        return min(_MAX_TTL, int(self.limits.seconds) + _EXTRA_TTL)

    async def _run_episode(self, episode: PlannedEpisode) -> PlayOutcome:
        """Play one episode and post its outcome."""
        folder = new_scratch_folder(episode.id)
        # It may be opened only then.
        expires_at = time.time() + self._ttl + self.client.retry_seconds
        self.leases.add_lease(
            EpisodeLease(episode=episode.id, folder=folder, expires_at=expires_at)
        )
        try:
            outcome = await self._play_episode(episode, folder)
        except asyncio.CancelledError:
            await asyncio.shield(
                self._end_episode(episode, folder, void_outcome("the run was interrupted"))
            )
            raise
        except GroupComplete:
            self.leases.remove_lease(episode.id)
            raise
        except OpenClawError:
            # The gateway refused it or is away: the reaper posts the outcome.
            await asyncio.shield(asyncio.to_thread(remove_leftovers, folder))
            raise
        ending = asyncio.ensure_future(self._end_episode(episode, folder, outcome))
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            # The outcome is known: it is posted first.
            await asyncio.shield(ending)
            raise

    async def _play_episode(self, episode: PlannedEpisode, folder: str) -> PlayOutcome:
        task = episode.task
        began = time.monotonic()
        pid = self.gateway_pid()
        body = {
            "task": task.id,
            "group": {"id": episode.group, "size": self.plan.group_size},
            "split": task.split,
            "ttl": self._ttl,
        } | ({} if self.limits.replies is None else {"max_steps": self.limits.replies})
        ticket = await self.client.open_episode(episode.id, body)
        try:
            outcome = await self.runner.play_episode(task, ticket, folder, self.limits)
        except (OpenClawError, OSError) as error:
            outcome = void_outcome(f"the runner failed: {error}")
        except Exception as error:
            # Any error of an environment: the other episodes continue.
            log.exception("%s: the runner failed", episode.id)
            outcome = void_outcome(f"the runner failed: {type(error).__name__}: {error}")
        if outcome.status == "done":
            entry = await self.client.get_episode(episode.id)
            replies = [turn["status"] for turn in entry["turns"]]
            void = void_reason(
                replies, entry.get("failed_request"), restarted=self.gateway_pid() != pid
            )
            outcome = (
                outcome
                if void is None
                else void_outcome("; ".join(filter(None, (void, outcome.reason))))
            )
        log.info(
            "%s: %s %s (%.1f s) %s",
            episode.id,
            outcome.status,
            outcome.reward,
            time.monotonic() - began,
            to_printable(outcome.reason or ""),
        )
        return outcome

    async def _end_episode(
        self, episode: PlannedEpisode, folder: str, outcome: PlayOutcome
    ) -> PlayOutcome:
        """Clean up and post the outcome. Return the one that the gateway took."""
        is_gone = await asyncio.to_thread(remove_leftovers, folder)
        taken = await self.client.end_episode(episode.id, outcome)
        # Else the next run tries again.
        if is_gone:
            self.leases.remove_lease(episode.id)
        return taken


def void_reason(
    replies: list[str], failed_request: str | None = None, *, restarted: bool
) -> str | None:
    """Return why the reward of an episode says nothing about the policy; None if it does.

    `replies`: the state of each reply in the order of the requests. `failed_request`: the gateway's error that the last
    request got. `restarted`: the gateway was, during the episode.
    """
    if restarted:
        return "the gateway was restarted during the episode"
    if replies and replies[-1] == "failed":
        return "its last reply failed because of the gateway or the engine"
    if failed_request is not None:
        return f"its last request failed because of the gateway ({failed_request})"
    if "done" not in replies:
        return "it got no reply"
    return None


async def gather_tasks(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first error cancels the others, waits for them, and is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for one in work:
                tasks.create_task(one)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group
