"""Watches the progress of one worker, and says when it hangs."""

from __future__ import annotations

from openclaw_rl.common.progress import Activity
from openclaw_rl.supervisor.hang_verdict import Hang, Quiet, add_interval, find_hang, find_limits
from openclaw_rl.supervisor.process_usage import ProcessUsage

# Seconds between two checks of the heartbeats.
CHECK_INTERVAL = 1.0
# Seconds without an advance from which on the usage of the process is read, which costs time.
QUIET_SECONDS = 2.0


class HeartbeatMonitor:
    """Measures what one worker has had of the machine since its work last advanced.

    Only time between two checks counts, and a long gap counts little: if the machine or the supervisor was suspended,
    the workers may have been, too. A worker is starting, which may include loading a model, until it sends a heartbeat
    that says otherwise.
    """

    def __init__(self, *, hang: float, start: float) -> None:
        """`hang`, `start`: limits in seconds without an advance, for a running and for a starting worker."""
        self.quiet = Quiet()
        self.started_at: float | None = None
        """When the start was seen to have ended, in monotonic seconds; None while the worker starts."""
        self._running_limit = hang
        self._starting_limit = start
        self._has_started = False
        # Counted seconds of the longest piece of work since the start.
        self._longest = 0.0
        self._last_advance: float | None = None
        self._checked_at: float | None = None
        # At the last check.
        self._usage: ProcessUsage | None = None

    @property
    def silence_limit(self) -> float:
        """Seconds without an advance after which a worker that waits counts as hung."""
        return self._running_limit if self._has_started else self._starting_limit

    @property
    def needs_usage(self) -> bool:
        """Whether the next check needs the usage of the process."""
        return self.quiet.passed >= QUIET_SECONDS

    def record_check(
        self,
        advanced_at: float | None,
        now: float,
        *,
        is_own_beat: bool = True,
        starting: bool = False,
        activity: Activity | None = None,
        usage: ProcessUsage | None = None,
    ) -> Hang | None:
        """Record a check. Return how the worker hangs, or None.

        `advanced_at`: when the worker's work last advanced, by the sender's clock. `is_own_beat`: this process sent
        it; a beat of another process does not end the start. `starting`: the beat says that the worker still starts.
        `now`: monotonic; `usage`: of its processes, None: not read.
        """
        passed = (
            0.0 if self._checked_at is None else min(now - self._checked_at, 2 * CHECK_INTERVAL)
        )
        self._checked_at = now
        before = self._usage
        self._usage = usage
        if advanced_at is not None and advanced_at != self._last_advance:
            self._record_advance(advanced_at, starts=is_own_beat and not starting)
            return None
        self.quiet = add_interval(self.quiet, passed, before, usage)
        setting = "run.heartbeat_timeout" if self._has_started else "run.startup_timeout"
        limits = find_limits(self.silence_limit, activity, self._longest)
        return find_hang(self.quiet, limits, setting=setting, activity=activity)

    def _record_advance(self, advanced_at: float, *, starts: bool) -> None:
        if self._has_started:
            self._longest = max(self._longest, self.quiet.counted)
        if starts and not self._has_started:
            self._has_started = True
            self.started_at = self._checked_at
        self._last_advance = advanced_at
        self.quiet = Quiet()
