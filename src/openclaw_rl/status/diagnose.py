"""Diagnoses of common problems: detected in a home's store, metrics and logs, each with the settings that cure it.

`openclaw-rl doctor --troubles` prints them, `status` lists their names. docs/guides/troubles.md has the table.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from openclaw_rl.common.log_codes import ENGINE_WORKERS, MEMORY_CAUSES, LogCode
from openclaw_rl.common.progress import Wait
from openclaw_rl.common.statistics.rater_agreement import Kappa
from openclaw_rl.methods.registry import make_method
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.schema_judge import JudgeConfig
from openclaw_rl.status.health import Diagnosis, HealthSnapshot, LogLine, take_snapshot
from openclaw_rl.status.program_checks import engine_diagnosis, ray_diagnosis
from openclaw_rl.status.reasons import group_reasons
from openclaw_rl.status.withdrawn_lessons import withdrawal_text
from openclaw_rl.store.behaviour.observations import BEHAVIOUR_JUDGE, is_signal
from openclaw_rl.train.learning_rate import find_low_rate
from openclaw_rl.types import Verdict

# Minimum number of turns or verdicts for a diagnosis.
MIN_COUNT = 10
# Seconds that a turn may wait for its verdict.
MAX_VERDICT_WAIT = 60.0
# Minimum share of time spent in steps, for a trainer with rollouts.
MIN_BUSY_SHARE = 0.25
# Maximum share of verdicts without a direction.
MAX_NEUTRAL_SHARE = 0.7
# Minimum mean share of votes for a turn's most frequent score; three random votes have 0.75.
MIN_MAJORITY_SHARE = 0.8
# Minimum share of turns on which the judge agrees with user feedback.
MIN_FEEDBACK_AGREEMENT = 0.6
# Maximum gradient norm, as a multiple of the median of the earlier norms.
MAX_NORM_RATIO = 10.0
# Maximum share of turns whose history was not recognised.
MAX_UNLINKED_SHARE = 0.2
MAX_SHOWN_LESSONS = 5
_PAUSES = frozenset({Wait.MAX_STEPS, Wait.FROZEN, Wait.SETTLING})
"""Waits of a trainer during which turns are expected to queue."""
# Seconds that an automatic rollback is reported.
MAX_ROLLBACK_AGE = 86400.0
_SPLIT_VOTES = frozenset({ReasonCode.TIE, ReasonCode.NO_MAJORITY})


DiagnosisCheck = Callable[[HealthSnapshot], Diagnosis | None]


def find_diagnoses(
    config: Config, conn: Connection, now: float, *, examine: bool = False
) -> list[Diagnosis]:
    """Return the diagnoses from store, metrics and logs. `examine`: and from the files of the newest versions."""
    return diagnose_snapshot(take_snapshot(config, conn, now, examine=examine))


def diagnose_snapshot(signs: HealthSnapshot) -> list[Diagnosis]:
    """Return the diagnoses of a snapshot; their settings are those that are not set yet."""
    results = [check(signs) for check in DIAGNOSIS_CHECKS]
    diagnoses = [diagnosis for diagnosis in results if diagnosis is not None]
    return [_new_settings_only(signs.config, diagnosis) for diagnosis in diagnoses]


def _new_settings_only(config: Config, diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis without the settings that have the advised value already."""
    settings = {
        key: value for key, value in diagnosis.settings.items() if attrgetter(key)(config) != value
    }
    return replace(diagnosis, settings=settings)


def diagnosis_names(config: Config, conn: Connection) -> dict[str, Any]:
    """Return the names of the diagnoses, as plain JSON for `status`."""
    names = [trouble.name for trouble in find_diagnoses(config, conn, time.time())]
    return {"troubles": names}


# --------------------------------------------------------------------- from store, metrics and logs


def out_of_memory(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a step or an engine that ran out of memory."""
    line = next(filter(_is_out_of_memory, reversed(signs.log_lines)), None)
    if line is None:
        return None
    train = signs.config.train
    engine = signs.config.engine
    if line.subject in ENGINE_WORKERS:
        settings: dict[str, Any] = {"engine.max_batch": max(1, engine.max_batch // 2)}
        advice = "also a shorter engine.max_context, and fewer rollout.parallel_envs"
    else:
        lora = train.finetune == "lora"
        killed = line.code is LogCode.WORKER_ENDED
        steps = {
            # By default the trainer does this itself after an out-of-memory error, but it cannot react to a kill.
            "train.gradient_checkpointing": (
                True,
                not train.gradient_checkpointing
                if killed
                else train.gradient_checkpointing is False,
            ),
            "train.batch.micro_tokens": (
                train.batch.micro_tokens // 2,
                train.batch.micro_tokens > 1,
            ),
            "train.base_quantization_bits": (4, lora and train.base_quantization_bits == 16),
            "train.lora.rank": (train.lora.rank // 2, lora and train.lora.rank > 1),
            "train.optimizer.offload": (True, not train.optimizer.offload),
        }
        settings = {key: value for key, (value, helps) in steps.items() if helps}
        advice = "one at a time, in this order; then a shorter engine.max_context (docs/guides/memory.md)"
    return Diagnosis(
        name="out of memory",
        evidence=_describe_line(line, signs.now),
        settings=settings,
        advice=advice,
    )


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
    train = signs.config.train
    note = signs.heartbeat_notes.get("train", "it never ran: `openclaw-rl train` starts it")
    is_paused = bool(_PAUSES & signs.heartbeat_waits.get("train", frozenset()))
    if (
        signs.trainable_turns < 2 * train.batch.max_step_turns
        or is_paused
        or make_method(train).uses_episodes
    ):
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
    rollout = signs.config.rollout
    steps = [step for step in signs.steps if "seconds" in step]
    collects_here = rollout.function_path or rollout.generate_path or signs.config.data.watch_dir
    if not collects_here or len(steps) < 3:
        return None
    if signs.heartbeat_waits.get("train") != frozenset({Wait.TURNS}):
        return None
    passed = max(steps[-1]["at"] - steps[0]["at"], 1e-9)
    busy = sum(step["seconds"] for step in steps[1:]) / passed
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
    verdicts = signs.verdicts
    judge = signs.config.judge
    middle = sum(not v.score for v in verdicts)
    if len(verdicts) < MIN_COUNT or middle < MAX_NEUTRAL_SHARE * len(verdicts):
        return None
    split_codes = [v.reason_code for v in verdicts if v.reason_code in _SPLIT_VOTES]
    seen = f"verdicts: {middle} of the newest {len(verdicts)} are neither +1 nor -1"
    settings: dict[str, Any] = {}
    if signs.empty_reactions > middle / 2:
        seen += f"; {signs.empty_reactions} of the reactions have no text"
        advice = "`openclaw-rl inspect turn ID` shows them: the client must send the user's next message as text"
    elif split_codes.count(ReasonCode.TIE) > middle / 2:
        settings = {"judge.num_judges": max(5, judge.num_judges + 2) | 1}
        advice = "more votes break ties"
    elif len(split_codes) > middle / 2:
        settings = {"judge.consensus_threshold": 0.5}
        advice = "most votes agree, and fewer suffice then"
    elif judge.kind == "rules":
        settings = _llm_settings(judge)
        advice = "no rule matches these reactions: give the address and the name of an OpenAI-compatible model"
    elif judge.kind in ("plugin", "classifier"):
        quarter = (judge.reward_high - judge.reward_low) / 4
        settings = {
            "judge.reward_low": judge.reward_low + quarter,
            "judge.reward_high": judge.reward_high - quarter,
        }
        advice = "rewards in this band are not trained on"
    else:
        advice = "another judge.model: `openclaw-rl inspect turn ID` shows its reasons next to the reaction"
    return Diagnosis(
        name="scores collapsed near the middle", evidence=seen, settings=settings, advice=advice
    )


def judges_disagree(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose votes on one turn that differ, or a judge that user feedback contradicts."""
    judge = signs.config.judge
    (same, both) = signs.agreement
    known_shares = [_majority_share(verdict) for verdict in signs.verdicts]
    shares = [share for share in known_shares if share is not None]
    settings: dict[str, Any] = {}
    if len(shares) >= MIN_COUNT and statistics.fmean(shares) < MIN_MAJORITY_SHARE:
        seen = f"votes: the top score has {statistics.fmean(shares):.0%} of a turn's votes, over {len(shares)} turns"
        # Three, then four of five.
        share = 0.6 if judge.num_judges < 5 or judge.consensus_threshold < 0.6 else 0.8
        settings = {"judge.num_judges": max(5, judge.num_judges)}
        settings["judge.consensus_threshold"] = max(share, judge.consensus_threshold)
        advice = (
            "a turn without such a majority is not trained on. A larger judge.model disagrees less"
        )
    elif both >= MIN_COUNT and same < MIN_FEEDBACK_AGREEMENT * both:
        seen = f"eval/agreement: the judge agrees with user feedback on {same} of {both} turns"
        advice = "another judge.model (or rules for these reactions: judge.rules_path)"
    else:
        return None
    return Diagnosis(name="judges disagree", evidence=seen, settings=settings, advice=advice)


def judge_not_trusted(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a judge whose verdicts are not trained on, because it does not agree with people."""
    untrusted = {
        name: kappa for name, kappa in signs.untrusted_judges.items() if not is_signal(name)
    }
    if not untrusted:
        return None
    judge = signs.config.judge
    settings: dict[str, Any] = _llm_settings(judge) if judge.kind == "rules" else {}
    return Diagnosis(
        name="the judge is not trusted",
        evidence=_kappa_evidence(untrusted),
        settings=settings,
        advice="another judge: `openclaw-rl evaluate judge` measures one before it is used. judge.min_kappa: -1 "
        "trains on its verdicts all the same",
    )


def signal_not_trusted(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose signals from behaviour whose verdicts are not trained on, because people say otherwise."""
    untrusted = {name: kappa for name, kappa in signs.untrusted_judges.items() if is_signal(name)}
    if not untrusted:
        return None
    return Diagnosis(
        name="a signal is not trusted",
        evidence=_kappa_evidence(untrusted),
        settings={f"judge.signals.{name.removeprefix(BEHAVIOUR_JUDGE)}": 0.0 for name in untrusted},
        advice="switched off, it is no longer observed or measured",
    )


def _kappa_evidence(untrusted: Mapping[str, Kappa]) -> str:
    return "; ".join(
        f"{name}: kappa {kappa.value:.2f} ({kappa.low:.2f} to {kappa.high:.2f}) over {kappa.pairs} turns that people "
        "scored; only explicit feedback is trained on instead of its verdicts"
        for name, kappa in untrusted.items()
    )


def _llm_settings(judge: JudgeConfig) -> dict[str, Any]:
    """Return the settings that make an endpoint the judge, with placeholders for those that are not set."""
    endpoint = {
        "judge.base_url": judge.base_url or "http://127.0.0.1:9000/v1",
        "judge.model": judge.model or "NAME",
    }
    return {"judge.kind": "llm"} | endpoint


def _majority_share(verdict: Verdict) -> float | None:
    """Return the share of the most frequent score among the usable votes; None for fewer than two votes."""
    counts = Counter(vote.score for vote in verdict.votes if vote.score is not None)
    return max(counts.values()) / counts.total() if counts.total() > 1 else None


def unstable_training(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose steps that the gate rejects, or a jump of the gradient norm."""
    steps = signs.steps[-MIN_COUNT:]
    train = signs.config.train
    rejected = sum(step.get("state") == "rejected" for step in steps)
    norms = [float(step["gradient/norm"]) for step in steps if "gradient/norm" in step]
    jump = 0.0
    if len(norms) >= 4:
        jump = norms[-1] / (statistics.median(norms[:-1]) or 1.0)
    if rejected < 2 and jump <= MAX_NORM_RATIO:
        return None
    seen = f"{rejected} of the newest {len(steps)} steps were rejected"
    if jump > MAX_NORM_RATIO:
        seen = f"gradient/norm: {norms[-1]:.3g}, {jump:.0f} times the median of the steps before; {seen}"
    rate = (
        train.optimizer.learning_rate / 3
        if train.finetune == "lora" or train.optimizer.learning_rate <= 5e-7
        else 5e-7
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


def low_learning_rate(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose steps that do not change the policy."""
    low = find_low_rate(signs.steps)
    if low is None:
        return None
    settings = {"train.optimizer.learning_rate": low.better_rate}
    advice = "or --lr; adapters need a higher rate than whole models, and train.safety.max_step_kl bounds each step"
    return Diagnosis(
        name="the learning rate is too low", evidence=low.evidence, settings=settings, advice=advice
    )


def lost_history(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose turns that are not recognised in the history of the next request."""
    n = signs.main_turns
    lost = len(signs.unlinked_reasons)
    if n >= MIN_COUNT and lost >= MAX_UNLINKED_SHARE * n:
        most = group_reasons(Counter(signs.unlinked_reasons))[0]
        seen = f"{lost} of the newest {n} turns: {most.label}"
        if most.count < lost:
            seen += f" ({most.count} of them)"
        advice = (
            "`openclaw-rl inspect turn ID` shows the reason as its parent. The client changes the history: let it send "
            "X-Session-Id, and add patterns for what it inserts to serve.ephemeral_patterns"
        )
    elif n >= 2 * MIN_COUNT and signs.isolated_turns == n:
        seen = f"none of the newest {n} turns continues an earlier one or has a reaction"
        advice = (
            "the client must send the history along with each request (or previous_response_id)"
        )
    else:
        return None
    return Diagnosis(name="wrong session tracking", evidence=seen, advice=advice)


def engine_restarts(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose an engine that ended at least twice within the last hour."""
    lines = [line for line in signs.log_lines if line.subject in ENGINE_WORKERS]
    ends = [line for line in lines if line.code is LogCode.WORKER_ENDED]
    if len(ends) < 2 or any(_is_out_of_memory(line) for line in _lines_of_last_end(lines)):
        return None
    return engine_diagnosis(
        signs.config, f"{len(ends)} times in the last hour; {_describe_line(ends[-1], signs.now)}"
    )


def stopped_workers(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose workers that are parked, or that crash again and again."""
    if not signs.worker_problems:
        return None
    advice = "correct what the reason names. The worker is then started again by itself; serving continues meanwhile"
    return Diagnosis(
        name="a worker does not run", evidence="; ".join(signs.worker_problems), advice=advice
    )


def damaged_weights(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose versions whose files do not match their digests."""
    if not signs.damaged_versions:
        return None
    advice = "restore the folder from a backup, or continue without it: its turns are trained on again. Check the disk"
    return Diagnosis(
        name="damaged weights", evidence="; ".join(signs.damaged_versions), advice=advice
    )


def waiting_undo(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose an undo whose batches nobody trains on."""
    if not signs.waiting_undo:
        return None
    advice = "`openclaw-rl up` (or `openclaw-rl undo --now`) trains on them; `openclaw-rl rollback` cancels the undo"
    return Diagnosis(
        name="an undo waits", evidence=f"{signs.waiting_undo[0]}; no trainer runs", advice=advice
    )


def satisfaction_fell(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a rollback by the satisfaction watch within the last day."""
    move = signs.automatic_rollback
    if move is None or signs.now - move.at > MAX_ROLLBACK_AGE:
        return None
    advice = (
        f"`openclaw-rl policies show {move.left[-1]}` shows the turns that the first of them was trained on. "
        f"If it was right, `openclaw-rl policies promote {move.old}` makes the last one the head again"
    )
    evidence = f"rolled back by itself from version {move.old} to version {move.to}: {move.reason}"
    return Diagnosis(name="satisfaction fell", evidence=evidence, advice=advice)


def full_disk(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose a disk without space, on which all stages pause."""
    if not signs.full_disks:
        return None
    advice = "free some space. Requests get a 503 meanwhile; all stages continue by themselves within seconds"
    return Diagnosis(name="a disk is full", evidence="; ".join(signs.full_disks), advice=advice)


def withdrawn_lessons(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose lessons with which answers are wrong."""
    if not signs.withdrawn_lessons:
        return None
    shown = [
        f"{lesson.id} {lesson.text!r}: {withdrawal_text(asdict(lesson)['withdrawal'])}"
        for lesson in signs.withdrawn_lessons[:MAX_SHOWN_LESSONS]
    ]
    more = len(signs.withdrawn_lessons) - len(shown)
    evidence = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    advice = (
        "they are in no prompt and not practised. `openclaw-rl lessons edit ID TEXT` says it in other words, which are "
        "examined again; `openclaw-rl lessons pin ID` keeps one in prompts all the same"
    )
    return Diagnosis(name="lessons cost correctness", evidence=evidence, advice=advice)


def ray_failure(signs: HealthSnapshot) -> Diagnosis | None:
    """Diagnose ranks that Ray did not place."""
    failures = [line for line in signs.log_lines if line.code is LogCode.RAY_UNUSABLE]
    line = failures[-1] if failures else None
    return None if line is None else ray_diagnosis(signs.config, _describe_line(line, signs.now))


DIAGNOSIS_CHECKS: Sequence[DiagnosisCheck] = (
    *(full_disk, out_of_memory, judge_behind, trainer_behind, slow_collection, scores_collapsed),
    *(
        judges_disagree,
        judge_not_trusted,
        signal_not_trusted,
        unstable_training,
        low_learning_rate,
        lost_history,
    ),
    *(
        engine_restarts,
        stopped_workers,
        damaged_weights,
        waiting_undo,
        satisfaction_fell,
        ray_failure,
    ),
    withdrawn_lessons,
)


def _is_out_of_memory(line: LogLine) -> bool:
    return line.code is LogCode.OUT_OF_MEMORY or line.cause in MEMORY_CAUSES


def _lines_of_last_end(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Return the last line about an end, and those since the end before it."""
    ends = [n for n, line in enumerate(lines) if line.code is LogCode.WORKER_ENDED]
    return lines[ends[-2] + 1 : ends[-1] + 1]


def _describe_line(log_line: LogLine, now: float) -> str:
    return f"{log_line.file}, {(now - log_line.at) / 60:.0f} minutes ago: {' '.join(log_line.message.split())[:400]}"
