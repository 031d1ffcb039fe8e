"""Diagnoses of common problems: detected in a home's store, metrics and logs, each with the settings that cure it.

`openclaw-rl doctor --troubles` prints them, `status` lists their names. docs/guides/troubles.md has the table.
"""

from __future__ import annotations

import importlib.util
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.status.health import Line, Signs, read
from openclaw_rl.train.orchestrator import WAITING
from openclaw_rl.types import Verdict

FEW = 10  # minimum number of turns or verdicts for a diagnosis
PATIENCE = 60.0  # seconds that a turn may wait for its verdict
IDLE = 0.25  # minimum share of time spent in steps, for a trainer with rollouts
MIDDLE = 0.7  # maximum share of verdicts without a direction
SPLIT = 0.8  # minimum mean share of votes for a turn's most frequent score; three random votes have 0.75
PEOPLE = 0.6  # minimum share of turns on which the judge agrees with user feedback
JUMP = 10.0  # maximum gradient norm, as a multiple of the median of the earlier norms
LOST = 0.2  # maximum share of turns whose history was not recognised
_REACH = 2.0  # seconds to connect to a Ray head
_RAY_REACH = 20.0  # seconds for ray.init
_MEMORY = re.compile(
    r"does not fit into memory|out of memory|OutOfMemoryError|can't allocate memory|\(signal SIGKILL\)", re.IGNORECASE
)
_RAY = re.compile(r"running Ray instance|Ray cluster found no room|connect to Ray", re.IGNORECASE)
_OTHERS = {"sglang": ("vllm", "embedded"), "vllm": ("sglang", "embedded")}
_ENGINE = re.compile(r"^(judge-)?engine ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A problem of a running system: its name, the evidence and the cure."""

    name: str
    seen: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys and their new values
    advice: str


Look = Callable[[Signs], Trouble | None]


def found(config: Config, conn: Connection, now: float) -> list[Trouble]:
    """Return the diagnoses from store, metrics and logs."""
    signs = read(config, conn, now)
    return [trouble for look in LOOKS if (trouble := look(signs)) is not None]


def told(config: Config, conn: Connection) -> dict[str, Any]:
    """Return the names of the diagnoses, as plain JSON for `status`."""
    names = [trouble.name for trouble in found(config, conn, time.time())]
    return {"troubles": names}


def show(config: Config, conn: Connection | None) -> bool:
    """Print each diagnosis with its cure. Returns whether there is none. Without `conn` only engine and Ray."""
    console = Console(highlight=False, soft_wrap=True)
    tried = [trouble for look in (_engine, _ray_head) if (trouble := look(config)) is not None]
    troubles = tried + (found(config, conn, time.time()) if conn is not None else [])
    for trouble in troubles:
        console.print(f"[red]{trouble.name}[/]")
        console.print(f"  seen    {trouble.seen}", markup=False)
        cure = " ".join(f"--set {key}={_word(value)}" for key, value in trouble.settings.items())
        for number, words in enumerate(w for w in (cure, trouble.advice) if w):
            console.print(f"  {'' if number else 'cure':8}{words}", markup=False)
    if not troubles:
        where = "the store, the metrics and the logs of the last hour" if conn is not None else "the settings; no store"
        console.print(f"no problems found in {where}")
    return not troubles


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


# ----------------------------------------------------------------------------------------- from store, metrics and logs


def memory(signs: Signs) -> Trouble | None:
    """Diagnose a step or an engine that ran out of memory."""
    line = _last(signs, _MEMORY)
    if line is None:
        return None
    train, engine = signs.config.train, signs.config.engine
    if _ENGINE.match(line.message) or line.file == "engine.log":
        settings: dict[str, Any] = {"engine.max_batch": max(1, engine.max_batch // 2)}
        advice = "also a shorter engine.max_context, and fewer rollout.parallel_envs"
    else:
        lora, killed = train.weights == "lora", "SIGKILL" in line.message
        steps = {
            # By default the trainer does this itself after an out-of-memory error, but it cannot react to a kill.
            "train.checkpointing": (True, not train.checkpointing if killed else train.checkpointing is False),
            "train.micro_tokens": (train.micro_tokens // 2, train.micro_tokens > 1),
            "train.base_bits": (4, lora and train.base_bits == 16),
            "train.lora.rank": (train.lora.rank // 2, lora and train.lora.rank > 1),
            "train.offload_optimizer": (True, not train.offload_optimizer),
        }
        settings = {key: value for key, (value, helps) in steps.items() if helps}
        advice = "one at a time, in this order; then a shorter engine.max_context (docs/guides/memory.md)"
    return Trouble(name="out of memory", seen=_said(line, signs.now), settings=settings, advice=advice)


def judge_behind(signs: Signs) -> Trouble | None:
    """Diagnose a long queue of turns without a verdict."""
    judge = signs.config.judge
    if signs.unjudged <= 4 * judge.workers or signs.oldest < PATIENCE:
        return None
    note = signs.notes.get("judge", "it never ran: `openclaw-rl judge` or `up` starts it")
    return Trouble(
        name="the judge falls behind",
        seen=f"eval/waiting: {signs.unjudged} turns without a verdict, the first for {signs.oldest:.0f} s ({note})",
        settings={"judge.workers": 4 * judge.workers},
        advice="if its endpoint answers; else correct judge.base_url. A smaller judge.num_judges also helps",
    )


def trainer_behind(signs: Signs) -> Trouble | None:
    """Diagnose a training queue of at least two full steps."""
    train, note = signs.config.train, signs.notes.get("train", "it never ran: `openclaw-rl train` starts it")
    if signs.untrained < 2 * train.most or note.startswith("train.max_steps"):
        return None
    return Trouble(
        name="the trainer falls behind",
        seen=f"{signs.untrained} turns to train on, a step takes at most {train.most} ({note})",
        settings={"train.batch_max": 2 * train.batch_max},
        advice="a larger batch trains on more turns per second; for more GPUs set train.ranks",
    )


def slow_collection(signs: Signs) -> Trouble | None:
    """Diagnose a trainer that waits although rollouts run here. With users, waiting is expected."""
    rollout, steps = signs.config.rollout, [s for s in signs.steps if "seconds" in s]
    ours = rollout.function_path or rollout.generate_path or signs.config.data.rollout_dir
    if not ours or len(steps) < 3 or not signs.notes.get("train", "").startswith(WAITING):
        return None
    busy = sum(s["seconds"] for s in steps[1:]) / max(steps[-1]["at"] - steps[0]["at"], 1e-9)
    if busy >= IDLE:
        return None
    return Trouble(
        name="slow collection",
        seen=f"seconds: the trainer was busy {busy:.0%} of the time over {len(steps)} steps ({signs.notes['train']})",
        settings={"rollout.workers": 2 * max(rollout.workers, rollout.parallel_envs)},
        advice="rollout.parallel_envs has the same effect; increase both up to engine.max_batch",
    )


def collapsed(signs: Signs) -> Trouble | None:
    """Diagnose verdicts that are mostly 0 or without opinion, so that they train nothing."""
    verdicts, judge = signs.verdicts, signs.config.judge
    middle = sum(not v.score for v in verdicts)
    if len(verdicts) < FEW or middle < MIDDLE * len(verdicts):
        return None
    abstained = sum(v.score is None and len(v.votes) > 1 for v in verdicts)
    seen = f"verdicts: {middle} of the newest {len(verdicts)} are neither +1 nor -1"
    settings: dict[str, Any] = {}
    if signs.wordless > middle / 2:
        seen += f"; {signs.wordless} of the reactions have no text"
        advice = "`openclaw-rl inspect turn ID` shows them: the client must send the user's next message as text"
    elif abstained > middle / 2:
        settings, advice = {"judge.num_judges": max(5, judge.num_judges + 2)}, "more votes break ties"
    elif judge.kind == "rules":
        settings, advice = {"judge.kind": "llm"}, "and judge.base_url, judge.model: no rule matches these reactions"
    elif judge.kind in ("plugin", "classifier"):
        settings, advice = _narrowed(judge.reward_low, judge.reward_high), "rewards in this band are not trained on"
    else:
        advice = "another judge.model: `openclaw-rl inspect turn ID` shows its reasons next to the reaction"
    return Trouble(name="scores collapsed near the middle", seen=seen, settings=settings, advice=advice)


def _narrowed(low: float, high: float) -> dict[str, float]:
    """Return settings that halve the band between `low` and `high`."""
    quarter = (high - low) / 4
    return {"judge.reward_low": low + quarter, "judge.reward_high": high - quarter}


def disagree(signs: Signs) -> Trouble | None:
    """Diagnose votes on one turn that differ, or a judge that user feedback contradicts."""
    judge, (same, both) = signs.config.judge, signs.agreement
    shares = [share for v in signs.verdicts if (share := _first_share(v)) is not None]
    settings: dict[str, Any] = {}
    if len(shares) >= FEW and statistics.fmean(shares) < SPLIT:
        seen = f"votes: the top score has {statistics.fmean(shares):.0%} of a turn's votes, over {len(shares)} turns"
        if judge.num_judges < 5 or judge.consensus_threshold < 0.6:
            settings = {"judge.num_judges": max(5, judge.num_judges)}
            settings["judge.consensus_threshold"] = max(0.6, judge.consensus_threshold)
        advice = "then a turn without a clear majority is not trained on; a larger judge.model disagrees less"
    elif both >= FEW and same < PEOPLE * both:
        seen = f"eval/agreement: the judge agrees with user feedback on {same} of {both} turns"
        advice = "another judge.model (or rules for these reactions: judge.rules_path)"
    else:
        return None
    return Trouble(name="judges disagree", seen=seen, settings=settings, advice=advice)


def _first_share(verdict: Verdict) -> float | None:
    """Return the share of the most frequent score among the usable votes; None for fewer than two votes."""
    counts = Counter(vote.score for vote in verdict.votes if vote.score is not None)
    return max(counts.values()) / counts.total() if counts.total() > 1 else None


def unstable(signs: Signs) -> Trouble | None:
    """Diagnose steps that the gate rejects, or a jump of the gradient norm."""
    steps, train = signs.steps[-FEW:], signs.config.train
    rejected = sum(s.get("state") == "rejected" for s in steps)
    norms = [float(s["gradient/norm"]) for s in steps if "gradient/norm" in s]
    jump = norms[-1] / (statistics.median(norms[:-1]) or 1.0) if len(norms) >= 4 else 0.0
    if rejected < 2 and jump <= JUMP:
        return None
    seen = f"{rejected} of the newest {len(steps)} steps were rejected"
    if jump > JUMP:
        seen = f"gradient/norm: {norms[-1]:.3g}, {jump:.0f} times the median of the steps before; {seen}"
    rate = train.learning_rate / 3 if train.weights == "lora" or train.learning_rate <= 5e-7 else 5e-7
    settings = {"train.learning_rate": rate, "train.clip_grad": min(0.5, train.clip_grad)}
    settings |= {"train.clip_low": max(0.9, train.clip_low), "train.clip_high": min(1.1, train.clip_high)}
    return Trouble(
        name="unstable training",
        seen=seen,
        settings=settings,
        advice="`openclaw-rl inspect policy VERSION` shows the turns; train.resume starts from an earlier checkpoint",
    )


def sessions(signs: Signs) -> Trouble | None:
    """Diagnose turns that are not recognised in the history of the next request."""
    n, lost = signs.placed, len(signs.unlinked)
    if n >= FEW and lost >= LOST * n:
        seen = f"{lost} of the newest {n} turns: {signs.unlinked[0]}"
        advice = (
            "`openclaw-rl inspect sessions` shows them. The client changes the history: add patterns for what it "
            "inserts to serve.transient_patterns, and let it send X-Session-Id"
        )
    elif n >= 2 * FEW and signs.alone == n:
        seen = f"none of the newest {n} turns continues an earlier one or has a reaction"
        advice = "the client must send the history along with each request (or previous_response_id)"
    else:
        return None
    return Trouble(name="wrong session tracking", seen=seen, advice=advice)


def engine_ends(signs: Signs) -> Trouble | None:
    """Diagnose an engine that ended at least twice within the last hour."""
    ends = [line for line in signs.lines if _ENGINE.match(line.message)]
    if len(ends) < 2 or _MEMORY.search(ends[-1].message):
        return None
    return _not_starting(signs.config, f"{len(ends)} times in the last hour; {_said(ends[-1], signs.now)}")


def ray(signs: Signs) -> Trouble | None:
    """Diagnose ranks that Ray did not place."""
    line = _last(signs, _RAY)
    return None if line is None else _no_ray(_said(line, signs.now))


LOOKS: Sequence[Look] = (
    *(memory, judge_behind, trainer_behind, slow_collection, collapsed),
    *(disagree, unstable, sessions, engine_ends, ray),
)


def _last(signs: Signs, pattern: re.Pattern[str]) -> Line | None:
    return next((line for line in reversed(signs.lines) if pattern.search(line.message)), None)


def _said(line: Line, now: float) -> str:
    return f"{line.file}, {(now - line.at) / 60:.0f} minutes ago: {' '.join(line.message.split())[:400]}"


# ----------------------------------------------------------------------------------------------------- checked directly


def _engine(config: Config) -> Trouble | None:
    """Check the version of the configured engine, as before a start."""
    from openclaw_rl.engines import registry  # imported here to keep `status` fast

    try:
        registry.check(config)
    except OpenClawError as error:
        return _not_starting(config, str(error))
    return None


def _not_starting(config: Config, seen: str) -> Trouble:
    backend = config.engine.backend
    other = next((name for name in _OTHERS.get(backend, ()) if _starts(config, name)), None)
    return Trouble(
        name=f"the {backend} engine does not start",
        seen=seen,
        settings={"engine.backend": other} if other else {},
        advice=f"or repair it: logs/ has its last output, `openclaw-rl doctor --engine {backend}` the failing check",
    )


def _starts(config: Config, backend: str) -> bool:
    """Return whether this engine can be started instead."""
    from openclaw_rl.engines import registry

    if backend == "embedded":
        return importlib.util.find_spec("torch") is not None
    try:
        registry.check(config.model_copy(update={"engine": config.engine.model_copy(update={"backend": backend})}))
    except OpenClawError:
        return False
    return True


def _ray_head(config: Config) -> Trouble | None:
    """Check that Ray is installed and its head answers, if ranks are launched by Ray."""
    launch = config.train.launch
    if launch.how != "ray":
        return None
    for host, port in _head(launch.ray):
        try:
            socket.create_connection((host, port), timeout=_REACH).close()
        except OSError as error:
            return _no_ray(f"train.launch.ray: no head answers at {host}:{port} ({error.strerror or error})")
    if importlib.util.find_spec("ray") is None:
        unknown = "; without it, a Ray head at its address cannot be verified" * (":" in launch.ray)
        return _no_ray(f"train.launch.by is ray, which is not installed here: pip install 'openclaw-rl[ray]'{unknown}")
    wrong = _refused_by_ray(launch.ray) if any(_head(launch.ray)) else ""
    return _no_ray(f"train.launch.ray: {wrong}") if wrong else None


def _refused_by_ray(address: str) -> str:
    """Return why `ray.init` fails at an address where something answers; empty if it succeeds."""
    code = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, address], capture_output=True, timeout=_RAY_REACH, check=False
        )
        failed, said = done.returncode != 0, done.stderr
    except subprocess.TimeoutExpired as error:  # Ray itself retries for a minute
        failed, said = True, error.stderr or b""
    if not failed:
        return ""
    if b"InvalidAuthToken" in said:
        return f"the head at {address} requires a token: set RAY_AUTH_MODE=token here too, with its token"
    return f"something answers at {address}, but it is not a Ray head that this machine can use"


def _head(address: str) -> Iterator[tuple[str, int]]:
    """Yield host and port of an address that has both; nothing for `auto` and `local`."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        yield host, int(port)


def _no_ray(seen: str) -> Trouble:
    return Trouble(
        name="Ray does not take the work",
        seen=seen,
        settings={"train.launch.by": "local"},
        advice="or start a head: `ray start --head --port=6379`; `ray job submit` needs its dashboard: --address "
        "http://HOST:8265",
    )
