"""Runs a complete system, `openclaw-rl up`, as a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sqlalchemy import Connection

from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, OpenClawError, StoreError
from openclaw_rl.methods.registry import make_method
from openclaw_rl.settings.load import Config, from_flat, to_environment
from openclaw_rl.store import heartbeats, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import LessonState
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_marks import frozen_since
from openclaw_rl.store.lineage.training_queue import count_trainable, trainable_groups
from openclaw_rl.supervisor.home_folder import prepare_home
from openclaw_rl.supervisor.service_consent import require_consent
from openclaw_rl.supervisor.supervisor import SERVING_WORKERS, WORKERS, read_key

READY_TIMEOUT = 600.0
"""Seconds in which a system must be ready. The time in which a worker starts does not count: it grows with the model,
and `run.startup_timeout` bounds it."""
# Seconds between two notes of a start.
_NOTE_SECONDS = 5.0
# Seconds between SIGTERM and SIGKILL.
_STOP_SECONDS = 20.0
# Seconds; long, for slow models.
_REPLY_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class _LearningState:
    """Progress of a system that learns. `unjudged`: the first turn that waits for a verdict. `untrained`: a count."""

    head: int = -1
    served: int = -1
    unjudged: str | None = None
    untrained: int = 0

    @property
    def waiting(self) -> tuple[str | None, int]:
        """The turns that wait for a verdict, and those that wait to be trained on."""
        return self.unjudged, self.untrained

    @property
    def is_settled(self) -> bool:
        return self.waiting == (None, 0) and self.served == self.head

    def __str__(self) -> str:
        waiting = (
            f"turn {self.unjudged} waits for a verdict" if self.unjudged else "every turn is judged"
        )
        return f"{waiting}, {self.untrained} wait to be trained on, head {self.head}, served {self.served}"


def scratch_config(home: Path, settings: Mapping[str, Any] | None = None) -> Config:
    """Return settings for a separate system on `home` with a free port. `settings`: dotted keys or sections."""
    return from_flat(dict(settings or {}) | {"home": str(home), "serve.port": free_port()})


class SubprocessSystem:
    """Context manager of a system: entry starts it and waits until it is ready, exit stops it.

    Output goes to `<home>/logs/up.log`. Raises `OpenClawError` with the last log lines if it does not become ready.
    """

    def __init__(
        self,
        config: Config,
        *,
        command: Literal["up", "serve"] = "up",
        owner: Config | None = None,
        yes: bool = False,
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        """`command`: "serve" starts only the engine and the gateway.

        `owner`: the settings in whose home the yes to what is sent away is looked up and recorded; default: `config`.
        `yes`: the owner agrees without a question. `on_note`: called from time to time with what the workers do while
        they start.
        """
        self.config = config
        self._command = command
        self._owner = owner or config
        self._yes = yes
        self._on_note = on_note
        prepare_home(config)
        self._log = config.logs_dir / "up.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return self.config.serve.url

    @property
    def api_key(self) -> str:
        return read_key(self.config)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def require_consent(self) -> None:
        """Ask the owner before anything is sent to a service, here: the system has no terminal to ask in.

        Entry does it, too. Raises `ConfigError`, or `click.Abort` if he says no.
        """
        workers = SERVING_WORKERS if self._command == "serve" else WORKERS
        require_consent(self._owner, workers, yes=self._yes)

    def __enter__(self) -> Self:
        if self.config.run.check_only:
            raise ConfigError(
                "run.check_only (OPENCLAW_CHECK, --check) is set, and this command needs a system that runs: unset it"
            )
        self.require_consent()
        command = [
            sys.executable,
            "-m",
            "openclaw_rl",
            self._command,
            f"--with-parent={os.getpid()}",
        ]
        # The yes in the home of the owner holds for a home of the system's own.
        command += ["--yes"] if self._owner.home != self.config.home else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=to_environment(self.config),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        try:
            self._wait_ready()
        except BaseException:
            # Also stop the system on an interrupt.
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_ready(self) -> None:
        assert self._process is not None
        notes = StartingNotes(self.config, self._on_note)
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                code = self._process.returncode
                raise OpenClawError(
                    f"`openclaw-rl {self._command}` ended with {code}:\n{self.log_tail()}"
                )
            if is_ready(self.base_url, self.config.serve.api_key):
                return
            if notes.read_note():
                deadline = time.monotonic() + READY_TIMEOUT
            time.sleep(0.1)
        raise OpenClawError(
            f"the system was not ready within {READY_TIMEOUT:g} s:\n{self.log_tail()}"
        )

    def wait_until_settled(
        self, timeout: float = 600.0, quiet: float = 1.5, practice_seconds: float = 60.0
    ) -> int:
        """Wait until all turns so far are judged and trained on and the result is served; return the served version.

        That is: for `quiet` seconds no closed turn waits for a verdict, fewer turns wait than make a batch, and the
        newest version is served and does not change. While training is frozen, no batch is waited for. It raises
        `OpenClawError` once `timeout` seconds pass in which no turn is judged or trained on. While practice still
        publishes versions, it returns `practice_seconds` after the last turn was trained on.
        """
        since = advanced_at = time.monotonic()
        known = _LearningState()
        with Store.open(self.config.store_path, create=False) as store:
            while time.monotonic() < advanced_at + timeout:
                state = self._learning_state(store)
                now = time.monotonic()
                if state != known:
                    since = now
                    if state.waiting != known.waiting:
                        advanced_at = now
                    known = state
                elif state.is_settled and now >= since + quiet:
                    return state.head
                elif self._only_practises(state) and now >= advanced_at + practice_seconds:
                    return self._served_version()
                time.sleep(0.1)
            with store.read() as conn:
                beats = heartbeats.read_heartbeats(conn)
        notes = "\n".join(f"{beat.name}: {beat.note}" for beat in beats)
        raise OpenClawError(
            f"nothing was learned for {timeout:g} s: {known}\n{notes}\n{self.log_tail()}"
        )

    def _only_practises(self, state: _LearningState) -> bool:
        """Return whether practice is all that may still make versions."""
        return self.practises and state.waiting == (None, 0)

    @property
    def practises(self) -> bool:
        """Whether lessons are practised: the setting is on, and the method has a teacher."""
        return self.config.practice.enabled and make_method(self.config.train).uses_hints

    def lesson_texts(self) -> list[str]:
        """Return the texts of all lessons."""
        with Store.open(self.config.store_path, create=False) as store, store.read() as conn:
            return [lesson.text for lesson in lessons.list_lessons(conn)]

    def wait_for_practice(
        self, timeout: float, seen: Callable[[str], None] = lambda note: None
    ) -> list[str]:
        """Wait until the weights follow all lessons, at most `timeout` seconds. Return the texts of those learned.

        `seen` is called with what the trainer says meanwhile.
        """
        end = time.monotonic() + timeout
        with Store.open(self.config.store_path, create=False) as store:
            while True:
                with store.read() as conn:
                    notes = {beat.name: beat.note for beat in heartbeats.read_heartbeats(conn)}
                    active = lessons.list_lessons(conn, states=[LessonState.ACTIVE])
                    learned = lessons.list_lessons(conn, states=[LessonState.LEARNED])
                if not active or time.monotonic() > end:
                    return [lesson.text for lesson in learned]
                seen(notes.get("train", ""))
                time.sleep(0.25)

    def _learning_state(self, store: Store) -> _LearningState:
        with store.read() as conn:
            head = policies.head(conn).version
            waiting = turns.closed_turns(conn, 1)
            untrained = self._count_untrained(conn)
        return _LearningState(
            head=head,
            served=self._served_version(),
            unjudged=waiting[0].turn if waiting else None,
            untrained=untrained,
        )

    def _count_untrained(self, conn: Connection) -> int:
        """Return how many turns wait, or how many groups up to a batch; 0 if training is frozen or no batch is full."""
        if frozen_since(conn) is not None:
            return 0
        train = self.config.train
        method = make_method(self.config.train)
        if method.uses_episodes:
            limit = train.batch.min_groups
            groups = len(trainable_groups(conn, limit=limit, max_uses=train.batch.max_uses))
            return groups if groups >= limit else 0
        waiting = count_trainable(
            conn,
            max_uses=train.batch.max_uses,
            need_score=method.uses_reward,
            need_hint=method.uses_hints,
        )
        return waiting if waiting >= train.batch.min_step_turns else 0

    def _served_version(self) -> int:
        return int(read_readiness(self.base_url, self.config.serve.api_key)["version"])

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        stop_process(self._process)


class StartingNotes:
    """Reads what the workers of a system do while they start."""

    def __init__(self, config: Config, on_note: Callable[[str], None]) -> None:
        """`on_note`: called with the note when it has changed, at most every few seconds."""
        self._config = config
        self._on_note = on_note
        self._note = ""
        self._shown = ""
        self._read_at = self._shown_at = time.monotonic()

    def read_note(self) -> str:
        """Return a note such as "gateway: hashing weights: 7.2 of 24.0 GiB"; empty if no worker is starting.

        The store is read at most once a second.
        """
        now = time.monotonic()
        if now - self._read_at >= 1.0:
            self._read_at = now
            self._note = self._read_beats()
            is_new = self._note not in ("", self._shown)
            if is_new and now - self._shown_at >= _NOTE_SECONDS:
                self._shown = self._note
                self._shown_at = now
                self._on_note(self._note)
        return self._note

    def _read_beats(self) -> str:
        try:
            with Store.open(self._config.store_path, create=False) as store, store.read() as conn:
                beats = heartbeats.read_heartbeats(conn)
        except StoreError:
            # It does not exist yet, or the disk is busy.
            return ""
        starting = [beat for beat in beats if beat.state == heartbeats.STARTING]
        now = time.time()
        return "; ".join(f"{beat.name}: {beat.note}" for beat in starting if beat.is_alive(now))


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process; kill it after `_STOP_SECONDS`."""
    # Does nothing if it has ended.
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_ready(base_url: str, key: str | None = None) -> bool:
    """Return whether the gateway at `base_url` reports that it is ready. A gateway on a loopback address needs no key.

    Raises `OpenClawError` if the gateway refuses the key.
    """
    try:
        return bool(read_readiness(base_url, key).get("ready"))
    except urllib.error.HTTPError as error:
        if error.code != 401:
            return False
        raise OpenClawError(
            f"the gateway at {base_url} refuses the key. Set the key of its settings: OPENCLAW_API_KEY (serve.api_key)."
        ) from error
    except (OSError, ValueError):
        return False


def read_readiness(base_url: str, key: str | None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with open_url(
        urllib.request.Request(f"{base_url}/readyz", headers=headers), timeout=5
    ) as response:
        return dict(json.load(response))


def post_json(
    system: SubprocessSystem,
    path: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """POST a JSON body with the API key; return the JSON reply. Raises `OpenClawError` with the server's message."""
    request = urllib.request.Request(
        system.base_url + path,
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {system.api_key}",
            "Content-Type": "application/json",
            **(headers or {}),
        },
    )
    try:
        with open_url(request, timeout=_REPLY_TIMEOUT) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        raise OpenClawError(
            f"{path}: {error.code} {error.read().decode(errors='replace')[:500]}"
        ) from error
