"""`openclaw-rl doctor`: checks turn -> verdict -> gradient -> new version -> served, on a temporary store.

It starts the real system with your settings on a temporary home, sends requests as a client would, and follows its
turns through the stages. It reports the first check that fails, with what was expected and what to do.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from openclaw_rl.errors import OpenClawError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import exchanges, policies, turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import System, post
from openclaw_rl.supervisor.supervisor import free_port
from openclaw_rl.types import TurnState

_QUESTIONS = (
    "What is the capital of France?",
    "What is the opposite of hot?",
    "What is 2 plus 3?",
    "What colour is snow?",
)
_REACTION = "Perfect, thanks!"


class BrokenLink(OpenClawError):
    """A check failed; its report is printed."""


class Examination:
    """Runs the checks and prints their results. `wait`: timeout of one check in seconds."""

    def __init__(self, console: Console, wait: float) -> None:
        self._console = console
        self._wait = wait

    @contextmanager
    def link(self, name: str, advice: str) -> Iterator[list[str]]:
        """Context of one check: an error in the body fails it. Strings appended to the list are printed as evidence."""
        began, evidence = time.monotonic(), list[str]()
        try:
            yield evidence
        except (OpenClawError, OSError, ValueError, KeyError) as error:
            self._console.print(f"  [red]failed[/]  {name}: {error}\n          what to do: {advice}", highlight=False)
            raise BrokenLink(name) from error
        took = time.monotonic() - began
        self._console.print(f"  [green]passed[/]  {name}  {' '.join(evidence)}  ({took:.1f} s)", highlight=False)

    def until(self, what: str, probe: Callable[[], Any]) -> Any:
        """Poll until `probe` returns a true value. Raises `OpenClawError` that names `what` after the timeout."""
        end = time.monotonic() + self._wait
        while time.monotonic() < end:
            if found := probe():
                return found
            time.sleep(0.1)
        raise OpenClawError(f"timed out after {self._wait:g} s waiting for {what}")


def examine(config: Config, *, console: Console | None = None, wait: float = 120.0) -> bool:
    """Run all checks. Returns whether every check passes."""
    console = console or Console()
    exam = Examination(console, wait)
    console.print("[bold]openclaw-rl doctor[/]  (on a temporary store; yours is not touched)")
    try:
        with tempfile.TemporaryDirectory(prefix="openclaw-rl-doctor-") as folder:
            _chain(exam, _scratch(config, Path(folder)))
    except BrokenLink:
        return False
    console.print("  every check passed: it learns from its conversations and serves what it learned.")
    return True


def examine_engine(config: Config, *, console: Console | None = None, wait: float = 120.0) -> bool:
    """Check only the configured engine, on a temporary home. Returns whether every check passes."""
    from openclaw_rl.doctor import engine

    with tempfile.TemporaryDirectory(prefix="openclaw-rl-doctor-") as folder:
        return engine.examine(_scratch(config, Path(folder)), console=console, wait=wait)


def examine_home(config: Config) -> bool:
    """Print the diagnoses of the running home, each with its cure. Returns True if there is no diagnosis."""
    from openclaw_rl.status import diagnose

    if not config.store_path.exists():
        return diagnose.show(config, None)
    store = Store.open(config.store_path, create=False)
    try:
        with store.read() as conn:
            return diagnose.show(config, conn)
    finally:
        store.close()


def _scratch(config: Config, folder: Path) -> Config:
    """Return the same settings on a temporary home, with small batches, so that a few turns make a step.

    Settings of other folders are left out: this run must neither read nor write the owner's folders.
    """
    elsewhere: dict[str, Any] = {"data": True, "track": True, "train": {"save_dir", "resume", "max_steps", "once"}}
    own = elsewhere | {"home": True, "serve": {"host", "port", "api_key"}}
    kept = config.model_dump(mode="json", exclude=own, exclude_none=True)
    flat = {f"{s}.{k}": v for s, section in kept.items() for k, v in section.items()}
    override = {"home": str(folder), "serve.port": free_port(), "train.batch_min": 2, "train.batch_max": 4}
    return from_flat(flat | override | {"train.max_wait": 5.0})


def _chain(exam: Examination, config: Config) -> None:
    with exam.link("model", "give a folder with config.json, tokenizer.json and *.safetensors to --model-path") as said:
        renderer = Renderer(ModelFiles.of(config.model))
        said.append(f"{renderer.files.folder}; {renderer.family.name} format; its template {renderer.history}")
    system = System(config)
    with exam.link("engine and gateway start", "read the lines above; `openclaw-rl up` shows the whole log"):
        system.__enter__()
    try:
        ids = _served(exam, system)
        store = Store.open(config.store_path, create=False)
        try:
            _learned(exam, system, store, ids)
        finally:
            store.close()
    finally:
        system.__exit__(None, None, None)


def _served(exam: Examination, system: System) -> list[str]:
    ids = []
    with exam.link("replies are served", "see the gateway's and the engine's log in the home folder") as said:
        for question in _QUESTIONS:
            history: list[dict[str, Any]] = [{"role": "user", "content": question}]
            reply = _chat(system, history)
            ids.append(str(reply["id"]))
            history += [reply["choices"][0]["message"], {"role": "user", "content": _REACTION}]
            _chat(system, history)
        said.append(f"{2 * len(_QUESTIONS)} replies, first: {reply['choices'][0]['message']['content']!r:.60}")
    return ids


def _chat(system: System, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": system.config.model.name, "messages": messages, "temperature": 1.0, "max_tokens": 64}
    return post(system, "/v1/chat/completions", body)


def _learned(exam: Examination, system: System, store: Store, ids: list[str]) -> None:
    _stored(exam, store, ids)
    _judged(exam, store, ids)
    _told(exam, system, store, ids)
    head = _stepped(exam, store)
    with exam.link("the new version is served", "the gateway did not load it: see its log and the engine's") as said:

        def newest() -> Any:
            reply = _chat(system, [{"role": "user", "content": _QUESTIONS[0]}])
            return reply if int(str(reply["system_fingerprint"]).removeprefix("v")) >= head else None

        reply = exam.until(f"a reply from version {head}", newest)
        said.append(f"{reply['system_fingerprint']}: {reply['choices'][0]['message']['content']!r:.60}")


def _stored(exam: Examination, store: Store, ids: list[str]) -> None:
    with exam.link("tokens are stored as sampled", "the store is not written: check the disk and the home") as said:
        with store.read() as conn:
            found = [exchanges.get(conn, i) for i in ids]
        replies = [e.reply for e in found if e and e.reply]
        sound = all(len(r.response_ids) and np.all(np.isfinite(r.logprobs)) for r in replies)
        if len(replies) < len(ids) or not sound:
            raise OpenClawError(f"expected {len(ids)} replies with ids and log-probabilities, got {len(replies)}")
        said.append(f"{sum(len(r.response_ids) for r in replies)} tokens with their log-probabilities")


def _judged(exam: Examination, store: Store, ids: list[str]) -> None:
    def states() -> set[TurnState]:
        with store.read() as conn:
            return {t.state for i in ids if (t := turns.get(conn, i))}

    with exam.link("reactions are linked to turns", "`openclaw-rl inspect turn ID` says why a turn was not linked"):
        exam.until("every turn to get its reaction", lambda: TurnState.SERVED not in states())
    with exam.link("the judge gives verdicts", "check its endpoint, model and key; its log has its answers") as said:
        exam.until("every turn to be judged", lambda: states() == {TurnState.JUDGED})
        with store.read() as conn:
            verdicts = [v for i in ids if (v := turns.verdict(conn, i))]
        said.append(f"{verdicts[0].judge}: scores {[v.score for v in verdicts]}")


def _told(exam: Examination, system: System, store: Store, ids: list[str]) -> None:
    """Send scores (-1 and +1 in turn) and a hint for each turn, so that every method has a training signal."""

    def explicit() -> bool:
        with store.read() as conn:
            return all((v := turns.verdict(conn, i)) is not None and v.explicit for i in ids)

    with exam.link("explicit feedback outranks", "POST /v1/feedback must answer 200; see the gateway's log"):
        for number, target in enumerate(ids):
            score = 1 if number % 2 else -1
            post(system, "/v1/feedback", {"id": target, "score": score, "correction": "Keep answers short."})
        exam.until("explicit verdicts", explicit)


def _stepped(exam: Examination, store: Store) -> int:
    def version() -> int:
        with store.read() as conn:
            return policies.head(conn).version

    with exam.link("a step makes a new version", "see the trainer's log; `status` says what cannot be trained") as said:
        head = int(exam.until("a policy version", version))
        with store.read() as conn:
            policy = policies.get(conn, head)
        assert policy is not None
        said.append(f"version {head}, gradient norm {policy.metrics.get('gradient/norm', float('nan')):.3g}")
    return head
