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
from openclaw_rl.status.health import HealthSnapshot, LogLine, take_snapshot
from openclaw_rl.train.orchestrator import WAITING_PREFIX
from openclaw_rl.types import Verdict

MIN_COUNT = 10  # minimum number of turns or verdicts for a diagnosis
MAX_VERDICT_WAIT = 60.0  # seconds that a turn may wait for its verdict
MIN_BUSY_SHARE = 0.25  # minimum share of time spent in steps, for a trainer with rollouts
MAX_NEUTRAL_SHARE = 0.7  # maximum share of verdicts without a direction
MIN_MAJORITY_SHARE = 0.8  # minimum mean share of votes for a turn's most frequent score; three random votes have 0.75
MIN_FEEDBACK_AGREEMENT = 0.6  # minimum share of turns on which the judge agrees with user feedback
MAX_NORM_RATIO = 10.0  # maximum gradient norm, as a multiple of the median of the earlier norms
MAX_UNLINKED_SHARE = 0.2  # maximum share of turns whose history was not recognised
_CONNECT_TIMEOUT = 2.0  # seconds to connect to a Ray head
_RAY_INIT_TIMEOUT = 20.0  # seconds for ray.init
_OUT_OF_MEMORY = re.compile(
    r"does not fit into memory|out of memory|OutOfMemoryError|can't allocate memory|\(signal SIGKILL\)", re.IGNORECASE
)
_RAY_FAILURE = re.compile(r"running Ray instance|Ray cluster found no room|connect to Ray", re.IGNORECASE)
_ALTERNATIVES = {"sglang": ("vllm", "embedded"), "vllm": ("sglang", "embedded")}
_ENGINE_ENDED = re.compile(r"^(judge-)?engine ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A problem of a running system: its name, the evidence and the cure."""

    name: str
    evidence: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys and their new values
    advice: str


DiagnosisCheck = Callable[[HealthSnapshot], Diagnosis | None]


def find_diagnoses(config: Config, conn: Connection, now: float) -> list[Diagnosis]:
    """Return the diagnoses from store, metrics and logs."""
    signs = take_snapshot(config, conn, now)
    return [trouble for look in DIAGNOSIS_CHECKS if (trouble := look(signs)) is not None]


def diagnosis_names(config: Config, conn: Connection) -> dict[str, Any]:
    """Return the names of the diagnoses, as plain JSON for `status`."""
    names = [trouble.name for trouble in find_diagnoses(config, conn, time.time())]
    return {"troubles": names}


def print_diagnoses(config: Config, conn: Connection | None) -> bool:
    """Print each diagnosis with its cure. Returns whether none is found. Without `conn`: only engine and Ray."""
    console = Console(highlight=False, soft_wrap=True)
    tried = [trouble for look in (_check_engine, _check_ray_head) if (trouble := look(config)) is not None]
    troubles = tried + (find_diagnoses(config, conn, time.time()) if conn is not None else [])
    for trouble in troubles:
        console.print(f"[red]{trouble.name}[/]")
        console.print(f"  seen    {trouble.evidence}", markup=False)
        cure = " ".join(f"--set {key}={_format_setting(value)}" for key, value in trouble.settings.items())
        for number, words in enumerate(w for w in (cure, trouble.advice) if w):
            console.print(f"  {'' if number else 'cure':8}{words}", markup=False)
    if not troubles:
        where = "the store, the metrics and the logs of the last hour" if conn is not None else "the settings; no store"
        console.print(f"no problems found in {where}")
    return not troubles


def _format_setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


# ----------------------------------------------------------------------------------------- from store, metrics and logs


def out_of_memory(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a step or an engine that ran out of memory."""
    line = _last_matching_line(signs, _OUT_OF_MEMORY)
    if line is None:
        return None
    train, engine = signs.config.train, signs.config.engine
    if _ENGINE_ENDED.match(line.message) or line.file == "engine.log":
        settings: dict[str, Any] = {"engine.max_batch": max(1, engine.max_batch // 2)}
        advice = "also a shorter engine.max_context, and fewer rollout.parallel_envs"
    else:
        lora, killed = train.finetune == "lora", "SIGKILL" in line.message
        steps = {
            # By default the trainer does this itself after an out-of-memory error, but it cannot react to a kill.
            "train.gradient_checkpointing": (
                True,
                not train.gradient_checkpointing if killed else train.gradient_checkpointing is False,
            ),
            "train.batch.micro_tokens": (train.batch.micro_tokens // 2, train.batch.micro_tokens > 1),
            "train.base_quantization_bits": (4, lora and train.base_quantization_bits == 16),
            "train.lora.rank": (train.lora.rank // 2, lora and train.lora.rank > 1),
            "train.optimizer.offload": (True, not train.optimizer.offload),
        }
        settings = {key: value for key, (value, helps) in steps.items() if helps}
        advice = "one at a time, in this order; then a shorter engine.max_context (docs/guides/memory.md)"
    return Diagnosis(name="out of memory", evidence=_describe_line(line, signs.now), settings=settings, advice=advice)


def judge_behind(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a long queue of turns without a verdict."""
    judge = signs.config.judge
    if signs.waiting_turns <= 4 * judge.workers or signs.longest_wait < MAX_VERDICT_WAIT:
        return None
    note = signs.heartbeat_notes.get("judge", "it never ran: `openclaw-rl judge` or `up` starts it")
    return Diagnosis(
        name="the judge falls behind",
        evidence=f"eval/waiting: {signs.waiting_turns} turns without a verdict, the first for "
        f"{signs.longest_wait:.0f} s ({note})",
        settings={"judge.workers": 4 * judge.workers},
        advice="if its endpoint answers; else correct judge.base_url. A smaller judge.num_judges also helps",
    )


def trainer_behind(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a training queue of at least two full steps."""
    train, note = signs.config.train, signs.heartbeat_notes.get("train", "it never ran: `openclaw-rl train` starts it")
    if signs.trainable_turns < 2 * train.batch.max_step_turns or note.startswith("train.max_steps"):
        return None
    return Diagnosis(
        name="the trainer falls behind",
        evidence=f"{signs.trainable_turns} turns to train on, a step takes at most "
        f"{train.batch.max_step_turns} ({note})",
        settings={"train.batch.max_turns": 2 * train.batch.max_turns},
        advice="a larger batch trains on more turns per second; for more GPUs set train.ranks",
    )


def slow_collection(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a trainer that waits although rollouts run here. With users, waiting is expected."""
    rollout, steps = signs.config.rollout, [s for s in signs.steps if "seconds" in s]
    ours = rollout.function_path or rollout.generate_path or signs.config.data.watch_dir
    if not ours or len(steps) < 3 or not signs.heartbeat_notes.get("train", "").startswith(WAITING_PREFIX):
        return None
    busy = sum(s["seconds"] for s in steps[1:]) / max(steps[-1]["at"] - steps[0]["at"], 1e-9)
    if busy >= MIN_BUSY_SHARE:
        return None
    return Diagnosis(
        name="slow collection",
        evidence=f"seconds: the trainer was busy {busy:.0%} of the time over {len(steps)} steps "
        f"({signs.heartbeat_notes['train']})",
        settings={"rollout.workers": 2 * max(rollout.workers, rollout.parallel_envs)},
        advice="rollout.parallel_envs has the same effect; increase both up to engine.max_batch",
    )


def scores_collapsed(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose verdicts that are mostly 0 or without opinion, so that they train nothing."""
    verdicts, judge = signs.verdicts, signs.config.judge
    middle = sum(not v.score for v in verdicts)
    if len(verdicts) < MIN_COUNT or middle < MAX_NEUTRAL_SHARE * len(verdicts):
        return None
    abstained = sum(v.score is None and len(v.votes) > 1 for v in verdicts)
    seen = f"verdicts: {middle} of the newest {len(verdicts)} are neither +1 nor -1"
    settings: dict[str, Any] = {}
    if signs.empty_reactions > middle / 2:
        seen += f"; {signs.empty_reactions} of the reactions have no text"
        advice = "`openclaw-rl inspect turn ID` shows them: the client must send the user's next message as text"
    elif abstained > middle / 2:
        settings, advice = {"judge.num_judges": max(5, judge.num_judges + 2)}, "more votes break ties"
    elif judge.kind == "rules":
        settings, advice = {"judge.kind": "llm"}, "and judge.base_url, judge.model: no rule matches these reactions"
    elif judge.kind in ("plugin", "classifier"):
        quarter = (judge.reward_high - judge.reward_low) / 4
        settings = {"judge.reward_low": judge.reward_low + quarter, "judge.reward_high": judge.reward_high - quarter}
        advice = "rewards in this band are not trained on"
    else:
        advice = "another judge.model: `openclaw-rl inspect turn ID` shows its reasons next to the reaction"
    return Diagnosis(name="scores collapsed near the middle", evidence=seen, settings=settings, advice=advice)


def judges_disagree(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose votes on one turn that differ, or a judge that user feedback contradicts."""
    judge, (same, both) = signs.config.judge, signs.agreement
    shares = [share for v in signs.verdicts if (share := _majority_share(v)) is not None]
    settings: dict[str, Any] = {}
    if len(shares) >= MIN_COUNT and statistics.fmean(shares) < MIN_MAJORITY_SHARE:
        seen = f"votes: the top score has {statistics.fmean(shares):.0%} of a turn's votes, over {len(shares)} turns"
        if judge.num_judges < 5 or judge.consensus_threshold < 0.6:
            settings = {"judge.num_judges": max(5, judge.num_judges)}
            settings["judge.consensus_threshold"] = max(0.6, judge.consensus_threshold)
        advice = "then a turn without a clear majority is not trained on; a larger judge.model disagrees less"
    elif both >= MIN_COUNT and same < MIN_FEEDBACK_AGREEMENT * both:
        seen = f"eval/agreement: the judge agrees with user feedback on {same} of {both} turns"
        advice = "another judge.model (or rules for these reactions: judge.rules_path)"
    else:
        return None
    return Diagnosis(name="judges disagree", evidence=seen, settings=settings, advice=advice)


def _majority_share(verdict: Verdict) -> float | None:
    """Return the share of the most frequent score among the usable votes; None for fewer than two votes."""
    counts = Counter(vote.score for vote in verdict.votes if vote.score is not None)
    return max(counts.values()) / counts.total() if counts.total() > 1 else None


def unstable_training(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose steps that the gate rejects, or a jump of the gradient norm."""
    steps, train = signs.steps[-MIN_COUNT:], signs.config.train
    rejected = sum(s.get("state") == "rejected" for s in steps)
    norms = [float(s["gradient/norm"]) for s in steps if "gradient/norm" in s]
    jump = norms[-1] / (statistics.median(norms[:-1]) or 1.0) if len(norms) >= 4 else 0.0
    if rejected < 2 and jump <= MAX_NORM_RATIO:
        return None
    seen = f"{rejected} of the newest {len(steps)} steps were rejected"
    if jump > MAX_NORM_RATIO:
        seen = f"gradient/norm: {norms[-1]:.3g}, {jump:.0f} times the median of the steps before; {seen}"
    rate = (
        train.optimizer.learning_rate / 3 if train.finetune == "lora" or train.optimizer.learning_rate <= 5e-7 else 5e-7
    )
    settings = {
        "train.optimizer.learning_rate": rate,
        "train.optimizer.clip_grad": min(0.5, train.optimizer.clip_grad),
        "train.loss.clip_low": max(0.9, train.loss.clip_low),
        "train.loss.clip_high": min(1.1, train.loss.clip_high),
    }
    return Diagnosis(
        name="unstable training",
        evidence=seen,
        settings=settings,
        advice="`openclaw-rl inspect policy VERSION` shows the turns; train.checkpoint.resume "
        "starts from an earlier checkpoint",
    )


def lost_history(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose turns that are not recognised in the history of the next request."""
    n, lost = signs.main_turns, len(signs.unlinked_reasons)
    if n >= MIN_COUNT and lost >= MAX_UNLINKED_SHARE * n:
        seen = f"{lost} of the newest {n} turns: {signs.unlinked_reasons[0]}"
        advice = (
            "`openclaw-rl inspect sessions` shows them. The client changes the history: add patterns for what it "
            "inserts to serve.ephemeral_patterns, and let it send X-Session-Id"
        )
    elif n >= 2 * MIN_COUNT and signs.isolated_turns == n:
        seen = f"none of the newest {n} turns continues an earlier one or has a reaction"
        advice = "the client must send the history along with each request (or previous_response_id)"
    else:
        return None
    return Diagnosis(name="wrong session tracking", evidence=seen, advice=advice)


def engine_restarts(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose an engine that ended at least twice within the last hour."""
    ends = [line for line in signs.log_lines if _ENGINE_ENDED.match(line.message)]
    if len(ends) < 2 or _OUT_OF_MEMORY.search(ends[-1].message):
        return None
    return _engine_diagnosis(signs.config, f"{len(ends)} times in the last hour; {_describe_line(ends[-1], signs.now)}")


def ray_failure(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose ranks that Ray did not place."""
    line = _last_matching_line(signs, _RAY_FAILURE)
    return None if line is None else _ray_diagnosis(_describe_line(line, signs.now))


DIAGNOSIS_CHECKS: Sequence[DiagnosisCheck] = (
    *(out_of_memory, judge_behind, trainer_behind, slow_collection, scores_collapsed),
    *(judges_disagree, unstable_training, lost_history, engine_restarts, ray_failure),
)


def _last_matching_line(signs: HealthSnapshot, pattern: re.Pattern[str]) -> LogLine | None:
    return next((line for line in reversed(signs.log_lines) if pattern.search(line.message)), None)


def _describe_line(line: LogLine, now: float) -> str:
    return f"{line.file}, {(now - line.at) / 60:.0f} minutes ago: {' '.join(line.message.split())[:400]}"


# ----------------------------------------------------------------------------------------------------- checked directly


def _check_engine(config: Config) -> Diagnosis | None:
    """Check the version of the configured engine, as before a start."""
    from openclaw_rl.engines import registry  # imported here to keep `status` fast

    try:
        registry.check_engine(config)
    except OpenClawError as error:
        return _engine_diagnosis(config, str(error))
    return None


def _engine_diagnosis(config: Config, seen: str) -> Diagnosis:
    backend = config.engine.backend
    other = next((name for name in _ALTERNATIVES.get(backend, ()) if _can_start(config, name)), None)
    return Diagnosis(
        name=f"the {backend} engine does not start",
        evidence=seen,
        settings={"engine.backend": other} if other else {},
        advice=f"or repair it: logs/ has its last output, `openclaw-rl doctor --engine {backend}` the failing check",
    )


def _can_start(config: Config, backend: str) -> bool:
    """Return whether this engine can be started instead."""
    from openclaw_rl.engines import registry

    if backend == "embedded":
        return importlib.util.find_spec("torch") is not None
    try:
        registry.check_engine(
            config.model_copy(update={"engine": config.engine.model_copy(update={"backend": backend})})
        )
    except OpenClawError:
        return False
    return True


def _check_ray_head(config: Config) -> Diagnosis | None:
    """Check that Ray is installed and its head answers, if ranks are launched by Ray."""
    launch = config.train.launch
    if launch.launcher != "ray":
        return None
    for host, port in _host_and_port(launch.ray):
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT).close()
        except OSError as error:
            return _ray_diagnosis(f"train.launch.ray: no head answers at {host}:{port} ({error.strerror or error})")
    if importlib.util.find_spec("ray") is None:
        unknown = "; without it, a Ray head at its address cannot be verified" * (":" in launch.ray)
        return _ray_diagnosis(
            f"train.launch.by is ray, which is not installed here: pip install 'openclaw-rl[ray]'{unknown}"
        )
    wrong = _ray_refusal_reason(launch.ray) if any(_host_and_port(launch.ray)) else ""
    return _ray_diagnosis(f"train.launch.ray: {wrong}") if wrong else None


def _ray_refusal_reason(address: str) -> str:
    """Return why `ray.init` fails at an address where something answers; empty if it succeeds."""
    code = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, address], capture_output=True, timeout=_RAY_INIT_TIMEOUT, check=False
        )
        failed, said = done.returncode != 0, done.stderr
    except subprocess.TimeoutExpired as error:  # Ray itself retries for a minute
        failed, said = True, error.stderr or b""
    if not failed:
        return ""
    if b"InvalidAuthToken" in said:
        return f"the head at {address} requires a token: set RAY_AUTH_MODE=token here too, with its token"
    return f"something answers at {address}, but it is not a Ray head that this machine can use"


def _host_and_port(address: str) -> Iterator[tuple[str, int]]:
    """Yield host and port of an address that has both; nothing for `auto` and `local`."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        yield host, int(port)


def _ray_diagnosis(seen: str) -> Diagnosis:
    return Diagnosis(
        name="Ray does not take the work",
        evidence=seen,
        settings={"train.launch.by": "local"},
        advice="or start a head: `ray start --head --port=6379`; `ray job submit` needs its dashboard: --address "
        "http://HOST:8265",
    )
