"""Crashes of one worker: their number, the reason of the last one, its cure, and the delay before the next start."""

from __future__ import annotations

import re
import signal
from collections import deque
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from openclaw_rl.common.log_codes import EndCause
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.worker_end import KILLED_BY_SUPERVISOR

# A worker that runs for this long without a crash has recovered.
RECOVERY_SECONDS = 600.0
_MAX_REASON_CHARS = 500
# What `cli.main` prints before the message of an `OpenClawError`.
OWN_ERROR = "openclaw-rl: "
# What `faulthandler` prints when a signal such as SIGSEGV ends the process.
_FATAL_ERROR = "Fatal Python error: "
_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d \S+ [A-Z]+ ")
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FRAME = re.compile(r'\s+File "(.+)", line (\d+) in (.+)')

_PLUGIN_SETTINGS = {"judge": "judge.plugin_path", "train": "train.loss.path"}
_LOADED_FILES = {
    "judge": ("judge.plugin_path", "judge.rules_path", "judge.reward_path"),
    "train": ("train.loss.path",),
}
"""Worker -> settings of the files that it loads when it starts."""


class WorkerOutput:
    """The newest output lines of a worker, and the error among them that ended it, if it printed one."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=15)
        # Without `OWN_ERROR`.
        self.error = ""
        # The error is an `OpenClawError`, whose message names the cure.
        self.is_own_error = False
        # File, line, function of all threads of a process that hung.
        self._frames: list[tuple[str, str, str]] = []
        self._in_thread = False
        self._in_traceback = self._needs_frame = False

    def add_line(self, line: str) -> None:
        self.lines.append(line)
        frame = _FRAME.fullmatch(line)
        if _THREAD.fullmatch(line):
            self._in_thread = True
            return
        if frame is not None and self._in_thread and not self._needs_frame:
            self._frames.append((frame[1], frame[2], frame[3]))
            return
        self._in_thread = False
        self._read_error(line, frame)

    def _read_error(self, line: str, frame: re.Match[str] | None) -> None:
        """Set the error that a line prints, or complete it."""
        if line.startswith(OWN_ERROR):
            self._set_error(line.removeprefix(OWN_ERROR), is_own=True)
        elif line.startswith(_FATAL_ERROR):
            self._set_error(line)
            self._needs_frame = True
        elif self._needs_frame and frame is not None:
            self._set_error("{} in {}:{} ({})".format(self.error, *frame.groups()))
        elif line.startswith("Traceback (most recent call last)"):
            self._in_traceback = True
        elif self._in_traceback and line[:1].strip():
            self._set_error(line)
        elif _LOG_LINE.match(line):
            # The worker continued after the error.
            self._set_error("")

    def place_in(self, file: str) -> str:
        """Return the line of a file at which a process that hung was, in one of its threads; empty if in none."""
        for path, line, function in self._frames:
            if path == file:
                return f"{path}:{line} ({function})"
        return ""

    def _set_error(self, text: str, *, is_own: bool = False) -> None:
        self.error = text[:_MAX_REASON_CHARS]
        self.is_own_error = is_own
        self._in_traceback = self._needs_frame = False


@dataclass(slots=True)
class CrashHistory:
    """Crashes of a worker since it last ran for `RECOVERY_SECONDS`, with reason and cure of the last one."""

    count: int = 0
    exit: str = ""  # a signal, an exit code, or how it hung
    cause: EndCause | None = None
    reason: str = ""
    cure: str = ""

    def record_crash(
        self, exit_words: str, cause: EndCause, reason: str, cure: str, *, recovered: bool
    ) -> None:
        """Record that the process ended. `recovered`: it had run for `RECOVERY_SECONDS`, which ends the series."""
        self.count = 1 if recovered else self.count + 1
        self.exit = exit_words
        self.cause = cause
        self.reason = reason
        self.cure = cure

    def restart_delay(self, first: float, longest: float) -> float:
        """Return the seconds until the next start: `first`, doubled with each further crash, up to `longest`."""
        return min(longest, first * 2.0 ** min(self.count - 1, 32))

    def describe(self) -> str:
        """Return the number of crashes, the reason and the cure."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"crashed {times}. Reason: {_as_sentence(self.reason)} {_as_sentence(self.cure)}".rstrip()


def _as_sentence(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def describe_exit(code: int) -> str:
    """Return the words for an exit status of `asyncio.subprocess`, which is negative for a signal."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def crash_reason(
    config: Config, worker: str, cause: EndCause, exit_words: str, output: WorkerOutput
) -> str:
    """Return why a process ended: the error that it printed, else how it ended, and where in the owner's file."""
    if cause in KILLED_BY_SUPERVISOR:
        path = _setting_value(config, _PLUGIN_SETTINGS.get(worker))
        place = "" if path is None else output.place_in(str(Path(path).expanduser()))
        return f"{exit_words}, at {place}" if place else exit_words
    if output.error:
        return output.error if exit_words == "exit code 1" else f"{exit_words}: {output.error}"
    return f"{exit_words}, without an error message"


_MEMORY_CURES = {
    EndCause.OUT_OF_MEMORY: (
        "The system ended it because memory ran out: `openclaw-rl doctor --troubles` lists the cures"
    ),
    EndCause.KILLED: (
        "The system may have ended it because memory ran out: `openclaw-rl doctor --troubles` lists the cures"
    ),
}


def crash_cure(config: Config, worker: str, cause: EndCause, output: WorkerOutput) -> str:
    """Return what to do about a crash; empty if the error message says it."""
    if cause is EndCause.STOPPED:
        return "Something sent it SIGSTOP, for example a debugger: let it run, and it is not killed"
    key = _PLUGIN_SETTINGS.get(worker)
    path = _setting_value(config, key)
    is_of_plugin = not output.is_own_error or f"{key}:" in output.error
    if path is not None and is_of_plugin:
        return f"{path} ({key}) runs in this process. Correct it, and it is loaded again at once; or unset {key}"
    if output.is_own_error:
        return ""
    if cause in _MEMORY_CURES:
        return _MEMORY_CURES[cause]
    return f"Its last output is in {config.logs_dir / 'supervisor.log'}; `openclaw-rl doctor` checks each stage"


def loaded_files_state(config: Config, worker: str) -> tuple[tuple[int, int] | None, ...]:
    """Return a value that changes when one of the files changes that the worker loads at its start."""
    values = (_setting_value(config, key) for key in _LOADED_FILES.get(worker, ()))
    paths = [Path(value).expanduser() for value in values if value is not None]
    return tuple(
        _file_state(file) for path in paths for file in (path, *sorted(path.glob("*.yaml")))
    )


def _setting_value(config: Config, key: str | None) -> str | None:
    if key is None or (key == "judge.plugin_path" and config.judge.kind != "plugin"):
        return None
    value: str | None = attrgetter(key)(config)
    return value


def _file_state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
