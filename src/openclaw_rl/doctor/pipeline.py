"""`openclaw-rl doctor`: checks turn -> verdict -> gradient -> new version -> served, on a temporary store.

It starts the real system with your settings on a temporary home, sends requests as a client would, and follows its
turns through the stages. It reports the first check that fails, with what was expected and what to do.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.doctor.sandbox import describe_sandbox
from openclaw_rl.errors import ConfigError, OpenClawError, StoreError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.render.template_probe import UNREAD_CALLS_NOTE
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec, trainer_spec
from openclaw_rl.store import exchanges, file_digests, heartbeats, turns
from openclaw_rl.store.bootstrap import lost_store_reason
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json, scratch_config
from openclaw_rl.train.learning_rate import find_low_rate
from openclaw_rl.types import Policy, TurnState

_QUESTIONS = (
    "What is the capital of France?",
    "What is the opposite of hot?",
    "What is 2 plus 3?",
    "What colour is snow?",
)
_REACTION = "Perfect, thanks!"


class CheckFailed(OpenClawError):
    """A check failed; its report is printed."""


class Examination:
    """Runs the checks and prints their results. `wait`: seconds that one check may take without any progress."""

    def __init__(self, console: TerminalConsole, wait: float) -> None:
        self._console = console
        self._wait = wait
        # Of the examined system, once it runs.
        self.store: Store | None = None

    @contextmanager
    def check(self, name: str, advice: str) -> Iterator[list[str]]:
        """Context of one check: an error in the body fails it. Strings appended to the list are printed as evidence."""
        began = time.monotonic()
        evidence = list[str]()
        try:
            yield evidence
        except (OpenClawError, OSError, ValueError, KeyError) as error:
            text = f"  {name}: {error}\n          what to do: {advice}"
            self._console.print(Text.assemble(("  failed", "red"), text))
            raise CheckFailed(name) from error
        took = time.monotonic() - began
        text = f"  {name}  {' '.join(evidence)}  ({took:.1f} s)"
        self._console.print(Text.assemble(("  passed", "green"), text))

    def wait_for(self, what: str, probe: Callable[[], Any]) -> Any:
        """Poll until `probe` returns a true value.

        Raises `OpenClawError` that names `what` once judge and trainer have shown no progress for `wait` seconds: a
        step of a large model may take longer than any fixed limit.
        """
        progress = self._read_progress()
        deadline = time.monotonic() + self._wait
        while time.monotonic() < deadline:
            result = probe()
            if result:
                return result
            current = self._read_progress()
            if current != progress:
                progress = current
                deadline = time.monotonic() + self._wait
            time.sleep(0.1)
        raise OpenClawError(
            f"no progress for {self._wait:g} s (--wait) while waiting for {what}{self._worker_problems()}"
        )

    def _read_progress(self) -> dict[str, str]:
        """Return what judge and trainer say that they do, if they work."""
        if self.store is None:
            return {}
        with self.store.read() as conn:
            beats = heartbeats.read_heartbeats(conn)
        return {
            b.name: b.note
            for b in beats
            if b.name in ("judge", "train") and b.state == heartbeats.RUNNING
        }

    def _worker_problems(self) -> str:
        """Return what prevents workers from working, as the end of a message."""
        if self.store is None:
            return ""
        with self.store.read() as conn:
            return "".join(
                f". {problem}" for problem in heartbeats.reported_problems(conn, time.time())
            )


def examine_pipeline(
    config: Config, *, console: TerminalConsole | None = None, wait: float = 120.0
) -> bool:
    """Run all checks. Returns whether every check passes."""
    _refuse_services(config)
    trainer = trainer_spec(config)
    if trainer.is_service:
        raise ConfigError(
            f"the doctor does not train at {trainer.title}: it would send texts of its own there. Check the engine "
            "alone with --engine, or everything here with train.trainer local"
        )
    console = console or TerminalConsole()
    exam = Examination(console, wait)
    title = Text("openclaw-rl doctor", "bold")
    console.print(Text.assemble(title, "  (on a temporary store; yours is not touched)"))
    try:
        with tempfile.TemporaryDirectory(prefix="openclaw-rl-doctor-") as folder:
            scratch = _scratch_config(config, Path(folder))
            _copy_digests(config, scratch)
            _check_pipeline(exam, scratch)
    except CheckFailed:
        return False
    console.print(
        "  every check passed: it learns from its conversations and serves what it learned."
    )
    console.print(f"  sandbox (for environments only): {describe_sandbox(config)}")
    return True


def examine_engine(
    config: Config, *, console: TerminalConsole | None = None, wait: float = 120.0
) -> bool:
    """Check only the configured engine, on a temporary home. Returns whether every check passes."""
    from openclaw_rl.doctor import engine

    _refuse_services(config)
    with tempfile.TemporaryDirectory(prefix="openclaw-rl-doctor-") as folder:
        return engine.run_checks(_scratch_config(config, Path(folder)), console=console, wait=wait)


def _refuse_services(config: Config) -> None:
    engine = engine_spec(config)
    if engine.is_service:
        raise ConfigError(
            f"the doctor does not check {engine.title}: it would send texts of its own there, "
            "and adapters that the service does not load. Start `openclaw-rl serve`, and see `openclaw-rl status`"
        )


def examine_home(config: Config) -> bool:
    """Print the diagnoses of the running home, each with its cure. Returns True if there is no diagnosis."""
    from openclaw_rl.status import diagnosis_report
    from openclaw_rl.status.report import read_store

    if not config.store_path.exists() and lost_store_reason(config.store_path) is None:
        return diagnosis_report.print_diagnoses(config, None)
    with read_store(config) as conn:
        return diagnosis_report.print_diagnoses(config, conn)


def _scratch_config(config: Config, folder: Path) -> Config:
    """Return the same settings on a temporary home, with small batches, so that a few turns make a step.

    Settings of other folders are left out: this run must neither read nor write the owner's folders.
    """
    train = {
        "checkpoint": {"save_dir", "resume"},
        # Its only step has the full learning rate.
        "optimizer": {"warmup_steps", "warmup_samples"},
        "max_steps": True,
        "exit_when_done": True,
    }
    left_out: dict[str, Any] = {
        "home": True,
        "data": True,
        "track": True,
        "serve": {"host", "port", "api_key"},
        "train": train,
    }
    settings = config.model_dump(mode="json", exclude=left_out, exclude_none=True)
    batch = {"train.batch.min_turns": 2, "train.batch.max_turns": 4, "train.batch.max_wait": 5.0}
    return scratch_config(folder, settings | batch)


def _copy_digests(config: Config, scratch: Config) -> None:
    """Let the temporary home know the digests of the owner's weights, which may take minutes to compute."""
    with (
        # The owner has no store yet, or a damaged one: the weights are hashed.
        contextlib.suppress(StoreError),
        Store.open(config.store_path, create=False) as source,
        Store.open(scratch.store_path) as target,
    ):
        file_digests.copy_digests(source, target)


def _check_pipeline(exam: Examination, config: Config) -> None:
    with exam.check(
        "model", "give a folder with config.json, tokenizer.json and *.safetensors to --model-path"
    ) as evidence:
        renderer = Renderer(ModelFiles.from_config(config.model))
        evidence.append(
            f"{renderer.files.folder}; {renderer.family.name} format; its template {renderer.history_description}"
        )
        if not renderer.reads_calls:
            evidence.append(UNREAD_CALLS_NOTE)
    system = SubprocessSystem(config)
    with exam.check(
        "engine and gateway start", "read the lines above; `openclaw-rl up` shows the whole log"
    ):
        system.__enter__()
    try:
        ids = _check_serving(exam, system)
        with Store.open(config.store_path, create=False) as exam.store:
            _check_learning(exam, system, exam.store, ids)
    finally:
        system.__exit__(None, None, None)


def _check_serving(exam: Examination, system: SubprocessSystem) -> list[str]:
    ids = []
    with exam.check(
        "replies are served", "see the gateway's and the engine's log in the home folder"
    ) as evidence:
        for question in _QUESTIONS:
            history: list[dict[str, Any]] = [{"role": "user", "content": question}]
            reply = _send_chat(system, history)
            ids.append(str(reply["id"]))
            history += [reply["choices"][0]["message"], {"role": "user", "content": _REACTION}]
            _send_chat(system, history)
        evidence.append(
            f"{2 * len(_QUESTIONS)} replies, first: {reply['choices'][0]['message']['content']!r:.60}"
        )
    return ids


def _send_chat(system: SubprocessSystem, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {
        "model": system.config.model.name,
        "messages": messages,
        "temperature": 1.0,
        "max_tokens": 64,
    }
    return post_json(system, "/v1/chat/completions", body)


def _check_learning(
    exam: Examination, system: SubprocessSystem, store: Store, ids: list[str]
) -> None:
    _check_stored_tokens(exam, store, ids)
    _check_judging(exam, store, ids)
    _check_feedback(exam, system, store, ids)
    policy = _check_step(exam, store)
    with exam.check(
        "the new version is served", "the gateway did not load it: see its log and the engine's"
    ) as evidence:

        def newest_reply() -> Any:
            reply = _send_chat(system, [{"role": "user", "content": _QUESTIONS[0]}])
            return (
                reply
                if int(str(reply["system_fingerprint"]).removeprefix("v")) >= policy.version
                else None
            )

        reply = exam.wait_for(f"a reply from version {policy.version}", newest_reply)
        evidence.append(
            f"{reply['system_fingerprint']}: {reply['choices'][0]['message']['content']!r:.60}"
        )
    _check_change(exam, policy)


def _check_stored_tokens(exam: Examination, store: Store, ids: list[str]) -> None:
    with exam.check(
        "tokens are stored as sampled", "the store is not written: check the disk and the home"
    ) as evidence:
        with store.read() as conn:
            records = [exchanges.get(conn, i) for i in ids]
        replies = [e.reply for e in records if e and e.reply]
        sound = all(len(r.response_ids) and np.all(np.isfinite(r.logprobs)) for r in replies)
        if len(replies) < len(ids) or not sound:
            raise OpenClawError(
                f"expected {len(ids)} replies with ids and log-probabilities, got {len(replies)}"
            )
        evidence.append(
            f"{sum(len(r.response_ids) for r in replies)} tokens with their log-probabilities"
        )


def _check_judging(exam: Examination, store: Store, ids: list[str]) -> None:
    def turn_states() -> set[TurnState]:
        with store.read() as conn:
            stored = [turns.get(conn, i) for i in ids]
        return {turn.state for turn in stored if turn is not None}

    with exam.check(
        "reactions are linked to turns",
        "`openclaw-rl inspect turn ID` says why a turn was not linked",
    ):
        exam.wait_for(
            "every turn to get its reaction", lambda: TurnState.SERVED not in turn_states()
        )
    with exam.check(
        "the judge gives verdicts", "check its endpoint, model and key; its log has its answers"
    ) as evidence:
        exam.wait_for("every turn to be judged", lambda: turn_states() == {TurnState.JUDGED})
        with store.read() as conn:
            current = [turns.current_verdict(conn, i) for i in ids]
        verdicts = [verdict for verdict in current if verdict is not None]
        evidence.append(f"{verdicts[0].judge}: scores {[v.score for v in verdicts]}")


def _check_feedback(
    exam: Examination, system: SubprocessSystem, store: Store, ids: list[str]
) -> None:
    """Send scores (-1 and +1 in turn) and a hint for each turn, so that every method has a training signal."""

    def all_explicit() -> bool:
        with store.read() as conn:
            verdicts = [turns.current_verdict(conn, i) for i in ids]
        return all(verdict is not None and verdict.explicit for verdict in verdicts)

    with exam.check(
        "explicit feedback outranks", "POST /v1/feedback must answer 200; see the gateway's log"
    ):
        for number, target in enumerate(ids):
            score = 1 if number % 2 else -1
            post_json(
                system,
                "/v1/feedback",
                {"id": target, "score": score, "correction": "Keep answers short."},
            )
        exam.wait_for("explicit verdicts", all_explicit)


def _check_step(exam: Examination, store: Store) -> Policy:
    def head_version() -> int:
        with store.read() as conn:
            return policies.head(conn).version

    with exam.check(
        "a step makes a new version", "see the trainer's log; `status` says what cannot be trained"
    ) as evidence:
        head = int(exam.wait_for("a policy version", head_version))
        with store.read() as conn:
            policy = policies.get(conn, head)
        assert policy is not None
        evidence.append(
            f"version {head}, gradient norm {policy.metrics.get('gradient/norm', float('nan')):.3g}"
        )
    return policy


def _check_change(exam: Examination, policy: Policy) -> None:
    low = find_low_rate([policy.metrics], checked=1)
    advice = (
        "" if low is None else f"set train.optimizer.learning_rate (--lr) to {low.better_rate:g}"
    )
    with exam.check("the step changes the policy", advice) as evidence:
        if low is not None:
            raise OpenClawError(low.evidence)
        evidence.append(f"by {policy.metrics['kl/step']:.2g} nats per token")
