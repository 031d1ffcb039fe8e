"""What doctor, status and the error messages advise: each setting, flag and command exists, and each value is taken."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.engines.remote.fireworks_server import FireworksDouble
from tests.settings.test_cli_options import EVERY
from tests.store import world

from openclaw_rl.common.log_codes import EndCause, LogCode
from openclaw_rl.common.progress import Wait
from openclaw_rl.common.statistics.rater_agreement import Kappa
from openclaw_rl.judge.voting import majority_score
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.serve.sampling_limits import sampling_fields
from openclaw_rl.settings.aliases import all_aliases
from openclaw_rl.settings.cli_options import FlagCommand
from openclaw_rl.settings.load import Config, from_flat, known_keys, load_all
from openclaw_rl.status import diagnose, diagnosis_report, program_checks
from openclaw_rl.status.health import HealthSnapshot, LogLine
from openclaw_rl.status.report import CURES
from openclaw_rl.store import schema
from openclaw_rl.store.lessons.examinations import Withdrawal, WithdrawalCode
from openclaw_rl.store.lessons.lessons import Lesson, LessonState
from openclaw_rl.store.lineage.policy_marks import HeadMove
from openclaw_rl.types import Sampling, Verdict, Vote

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "openclaw_rl"
NOW = 1000.0
KEY = re.compile(rf"(?<![\w./:-])(?:{'|'.join(Config.model_fields)})(?:\.[a-z][a-z_0-9]*)+")
COMMAND = re.compile(r"`openclaw-rl ([^`]+)`")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FILE_NAMES = {"engine.sock", "engine.log", "data.file", "data.buffer", "train.log", "train.py"}
FILE_NAMES |= {"model.safetensors.index.json", "fireworks.json"}
EVENT = re.compile(r'events\.append\(\s*conn,\s*"([a-z_.]+)"')  # their names look like settings
OTHER_PROGRAMS = {"--address", "--head", "--no-deps", "--sglang-router-ip"}  # ray, pip, slime


def printed_strings(path: Path) -> Iterator[str]:
    """The strings of a module; in f-strings, values are X. Docstrings are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in left_out
        ):
            yield node.value


@cache
def command_flags() -> Mapping[str, frozenset[str]]:
    """The flags of each command, by its words."""
    flags = {}
    for name, command in EVERY:
        own = {
            option
            for param in command.params
            if isinstance(param, click.Option)
            for option in param.opts
        }
        flags[name] = frozenset(
            own | (set(all_aliases()) if isinstance(command, FlagCommand) else set())
        )
    return flags


@cache
def known_names() -> frozenset[str]:
    """The settings, their other names, and the sections that they are in."""
    events = {
        name
        for path in SOURCE.rglob("*.py")
        for name in EVENT.findall(path.read_text(encoding="utf-8"))
    }
    columns = {str(column) for table in schema.metadata.tables.values() for column in table.c}
    rows = {f"{table}.rowid" for table in schema.metadata.tables}
    names = {*known_keys(), *all_aliases(), *FILE_NAMES, *events, *columns, *rows}
    return frozenset(
        name[:end]
        for name in names
        for end in [*(m.start() for m in re.finditer(r"\.", name)), None]
    )


def unknown_names(text: str) -> list[str]:
    """The settings and commands in a text that do not exist."""
    unknown = [key for key in KEY.findall(text) if key not in known_names()]
    for words in COMMAND.findall(text):
        name = next((n for n in command_flags() if f"{words} ".startswith(f"{n} ")), "")
        if words != "X" and (not name or not command_flags()[name].issuperset(FLAG.findall(words))):
            unknown.append(f"openclaw-rl {words}")
    return unknown


def test_each_text_of_the_package_names_what_exists() -> None:
    texts = [text for path in SOURCE.rglob("*.py") for text in printed_strings(path)]
    assert sum(bool(COMMAND.search(text)) for text in texts) > 25, "else the texts are not found"
    assert [name for text in texts for name in unknown_names(text)] == []
    assert unknown_names("set train.lr, or `openclaw-rl status --port 1`") == [
        "train.lr",
        "openclaw-rl status --port 1",
    ]


@pytest.mark.parametrize("folder", ["status", "doctor"])
def test_each_flag_that_they_name_exists(folder: str) -> None:
    known = frozenset[str]().union(*command_flags().values()) | OTHER_PROGRAMS
    texts = [text for path in (SOURCE / folder).glob("*.py") for text in printed_strings(path)]
    assert {flag for text in texts for flag in FLAG.findall(text)} <= known


def test_the_guide_names_what_exists_and_values_that_are_taken() -> None:
    guide = (ROOT / "docs" / "guides" / "troubles.md").read_text(encoding="utf-8")
    assert unknown_names(guide) == []
    assert unknown_names(re.sub(r"(?m)^ +(openclaw-rl [^#\n]+?) *(#.*)?$", r"`\1`", guide)) == []
    given = [line.split(": ", 1) for line in re.findall(r"`((?:[a-z]+\.)+[a-z_]+: [^`]+)`", guide)]
    assert len(given) > 8
    needed = {"judge.base_url": "http://127.0.0.1:9/v1", "judge.model": "m"}
    for key, value in given:
        from_flat(needed | {key: yaml.safe_load(value)})


# ------------------------------------------------------------------------------------------ the diagnoses' settings


def voted(*scores: int, threshold: float = 0.5) -> list[Verdict]:
    votes = tuple(Vote(score=score) for score in scores)
    majority = majority_score(votes, threshold)
    verdict = replace(
        world.verdict("t", score=majority.score, votes=votes), reason_code=majority.code
    )
    return [replace(verdict, turn=f"t{n}") for n in range(10)]


def ended(worker: str, cause: EndCause) -> LogLine:
    return LogLine(
        file="supervisor.log",
        message=f"{worker} ended",
        at=NOW,
        code=LogCode.WORKER_ENDED,
        worker=worker,
        cause=cause,
    )


ROLLBACK = HeadMove(
    old=3, to=1, left=[3, 2], reason="satisfaction fell", automatic=True, after=9, at=NOW
)
SITUATIONS: Mapping[str, dict[str, Any]] = {
    "a step that did not fit": {
        "log_lines": [
            LogLine(file="train.log", message="too large", at=NOW, code=LogCode.OUT_OF_MEMORY)
        ]
    },
    "a killed trainer": {"log_lines": [ended("train", EndCause.KILLED)]},
    "a killed engine": {"log_lines": [ended("engine", EndCause.KILLED)]},
    "a restarted engine": {"log_lines": [ended("engine", EndCause.EXIT)] * 2},
    "ray": {
        "log_lines": [
            LogLine(file="train.log", message="no place", at=NOW, code=LogCode.RAY_UNUSABLE)
        ]
    },
    "an automatic rollback": {"automatic_rollback": ROLLBACK},
    "a queue of the judge": {"waiting_turns": 10**6, "longest_wait": 1e6},
    "a queue of the trainer": {"trainable_turns": 10**6},
    "rare steps": {
        "steps": [{"at": 100.0 * n, "seconds": 1.0} for n in range(3)],
        "heartbeat_notes": {"train": "0 of 2"},
        "heartbeat_waits": {"train": frozenset({Wait.TURNS})},
    },
    "neutral scores": {"verdicts": [world.verdict(f"t{n}", score=0) for n in range(10)]},
    "empty reactions": {
        "verdicts": [world.verdict(f"t{n}", score=None) for n in range(10)],
        "empty_reactions": 10,
    },
    "ties": {"verdicts": voted(1, -1)},
    "too few votes for one score": {"verdicts": voted(1, 1, 1, 1, -1, threshold=1.0)},
    "different votes": {"verdicts": voted(1, 1, -1)},
    "feedback": {"agreement": (0, 20)},
    "a signal below its bar": {
        "untrusted_judges": {"behaviour:copied": Kappa(value=0.0, low=-0.3, high=0.3, pairs=40)}
    },
    "a judge below its bar": {
        "untrusted_judges": {"rules@1": Kappa(value=0.0, low=-0.3, high=0.3, pairs=40)}
    },
    "rejected steps": {"steps": [{"state": "rejected", "gradient/norm": 200.0}] * 3},
    "steps that change nothing": {"steps": [{"kl/step": 1e-9, "learning_rate": 1e-6}] * 5},
    "a full disk": {
        "full_disks": ["the disk of /home/me is full: 1.0 MiB are free, and 8 MiB are needed"]
    },
    "a parked judge": {"worker_problems": ["judge crashed 3 times. Reason: exit code 3"]},
    "a damaged version": {"damaged_versions": ["version 3 is damaged: trainer.json is missing"]},
    "an undo without a trainer": {
        "waiting_undo": ["an undo is in progress: 3 batches left to train on again"]
    },
    "changed histories": {
        "main_turns": 20,
        "unlinked_reasons": [Reason(ReasonCode.OTHER_TEXT, "a reason")] * 10,
    },
    "no history": {"main_turns": 20, "isolated_turns": 20},
    "a lesson that costs correctness": {
        "withdrawn_lessons": [
            Lesson(
                id="aa",
                text="Answer in Klingon.",
                made_at=1.0,
                reinforced_at=1.0,
                state=LessonState.WITHDRAWN,
                withdrawal=Withdrawal(
                    code=WithdrawalCode.ALONE, asked=8, right_with=0, right_without=8, at=1.0
                ),
            )
        ]
    },
}
LLM = {"judge.kind": "llm", "judge.base_url": "http://127.0.0.1:9/v1", "judge.model": "m"}
PLUGIN = {"judge.kind": "plugin", "judge.plugin_path": "x.py"}
RAY = {"train.ranks": 2, "train.launch.by": "ray"}
HOMES: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "rollouts": {"data.watch_dir": "/somewhere", "rollout.parallel_envs": 8},
    "small": {"engine.max_batch": 1, "train.batch.micro_tokens": 1, "train.lora.rank": 1},
    "full weights": {"train.finetune": "full", "train.optimizer.offload": True},
    "recomputed": {"train.gradient_checkpointing": True, "train.base_quantization_bits": 4},
    "llm": LLM,
    "two votes": LLM | {"judge.num_judges": 2},
    "four votes": LLM | {"judge.num_judges": 4},
    "majority of five": LLM | {"judge.num_judges": 5, "judge.consensus_threshold": 0.6},
    "four of five": LLM | {"judge.num_judges": 5, "judge.consensus_threshold": 0.8},
    "all": LLM | {"judge.num_judges": 7, "judge.consensus_threshold": 1.0},
    "plug-in": PLUGIN,
    "narrow band": PLUGIN | {"judge.reward_low": 0.5, "judge.reward_high": 0.5},
    "slow": {"train.optimizer.learning_rate": 1e-7, "train.optimizer.clip_grad": 0.1},
    "narrow clip": {"train.loss.clip_low": 0.95, "train.loss.clip_high": 1.05},
    "vllm": {"engine.backend": "vllm"},
    "sglang": {"engine.backend": "sglang"},
    "vllm elsewhere": {"engine.backend": "vllm", "engine.url": "http://gpu:8000"},
    "openai": {"engine.backend": "openai", "engine.url": "http://gpu:8000/v1"},
    "judge of its own": {"judge.kind": "llm", "judge.path": "m", "engine.backend": "sglang"},
    "ray": RAY,
    "ray on two machines": RAY | {"train.launch.nodes": 2},
}  # fmt: skip


def snapshot(config: Config, situation: Mapping[str, Any]) -> HealthSnapshot:
    nothing: dict[str, Any] = {
        **{
            "log_lines": [],
            "steps": [],
            "heartbeat_notes": {},
            "heartbeat_waits": {},
            "verdicts": [],
            "unlinked_reasons": [],
        },
        **{
            "empty_reactions": 0,
            "main_turns": 0,
            "isolated_turns": 0,
            "waiting_turns": 0,
            "trainable_turns": 0,
        },
        **{
            "longest_wait": 0.0,
            "agreement": (0, 0),
            "worker_problems": [],
            "damaged_versions": [],
            "full_disks": [],
        },
        **{
            "untrusted_judges": {},
            "waiting_undo": [],
            "automatic_rollback": None,
            "withdrawn_lessons": [],
        },
    }
    return HealthSnapshot(config=config, now=NOW, **nothing | dict(situation))


@pytest.mark.parametrize("home", HOMES)
def test_each_cure_is_accepted_and_changes_something(home: str) -> None:
    given = HOMES[home]
    config = from_flat(given)
    direct = [
        program_checks.check_ray_head(config),
        None if config.engine.url else program_checks.check_engine(config),
    ]
    for situation in SITUATIONS.values():
        for found in [
            *diagnose.diagnose_snapshot(snapshot(config, situation)),
            *filter(None, direct),
        ]:
            assert unknown_names(f"{found.advice} {' '.join(found.settings)}") == []
            assert (
                set(FLAG.findall(found.advice))
                <= frozenset[str]().union(*command_flags().values()) | OTHER_PROGRAMS
            )
            settings = {**given, **found.settings}
            cured = load_all(
                sets=[f"{k}={diagnosis_report.format_setting(v)}" for k, v in settings.items()],
                environ={},
            )
            for key, value in found.settings.items():
                assert (
                    value_at(cured.config, key) == pytest.approx(value) != value_at(config, key)
                ), (home, found.name)


@pytest.mark.parametrize(
    ("home", "situation", "settings"),
    [
        ("four votes", "ties", {"judge.num_judges": 7}),  # an odd number
        ("all", "too few votes for one score", {"judge.consensus_threshold": 0.5}),
        ("llm", "different votes", {"judge.num_judges": 5, "judge.consensus_threshold": 0.6}),
        ("majority of five", "different votes", {"judge.consensus_threshold": 0.8}),
        ("four of five", "different votes", {}),
        ("ray on two machines", "ray", {"train.launch.by": "torchrun"}),
        ("vllm elsewhere", "a restarted engine", {}),
        ("narrow band", "neutral scores", {}),
    ],
)
def test_the_cure_fits_the_cause(home: str, situation: str, settings: dict[str, Any]) -> None:
    found, *_ = diagnose.diagnose_snapshot(snapshot(from_flat(HOMES[home]), SITUATIONS[situation]))
    assert found.settings == settings


def value_at(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_each_diagnosis_is_among_the_situations() -> None:
    snapshots = [
        snapshot(from_flat(given), s)
        for given, s in itertools.product(HOMES.values(), SITUATIONS.values())
    ]
    silent = [
        check.__name__ for check in diagnose.DIAGNOSIS_CHECKS if not any(map(check, snapshots))
    ]
    assert silent == []


UNTRAINABLE: Mapping[ReasonCode, dict[str, Any]] = {
    ReasonCode.GREEDY: {"temperature": 0.0},
    ReasonCode.RAW_LOGPROBS: {"temperature": 0.5, "convention": "raw"},
    ReasonCode.TOP_P: {"top_p": 0.5},
    ReasonCode.TOP_K: {"top_k": 5},
    ReasonCode.MIN_P: {"min_p": 0.1},
    ReasonCode.PENALTIES: {"presence_penalty": 1.0, "frequency_penalty": 1.0},
}


@pytest.mark.parametrize(
    "code", [code for code, cure in CURES.items() if "serve.sampling_override" in cure]
)
def test_each_override_of_status_makes_the_turn_trainable(code: ReasonCode) -> None:
    """As printed, in a settings file."""
    reason = Sampling(**UNTRAINABLE[code]).untrainable_reason()
    assert reason is not None
    assert reason.code is code
    override = yaml.safe_load(CURES[code].partition("serve.sampling_override: ")[2])
    config = from_flat({"serve.sampling_override": override})
    values = UNTRAINABLE[code] | sampling_fields(config.serve.sampling_override)
    assert Sampling(**values).untrainable_reason() is None


@pytest.mark.parametrize("backend", ["tinker", "fireworks"])
def test_the_advice_about_a_service_is_no_command_that_refuses_it(backend: str) -> None:
    """`openclaw-rl doctor --engine` sends nothing to a service."""
    more: dict[str, object] = {
        "fireworks.api_key": "fw",
        "fireworks.account": "me",
        "engine.max_context": 64,
    }
    more["fireworks.base_model"] = "accounts/fireworks/models/m"
    config = from_flat({"engine.backend": backend} | (more if backend == "fireworks" else {}))
    advice = program_checks.engine_diagnosis(config, "seen").advice
    assert f"docs/guides/{backend}.md" in advice
    assert "doctor" not in advice


def test_troubles_are_found_without_a_request_to_fireworks() -> None:
    """The owner may not have agreed to it yet."""
    with FireworksDouble() as service:
        settings = {"fireworks.api_key": "fw", "fireworks.account": "me", "engine.max_context": 64}
        settings |= {
            "fireworks.base_model": "accounts/fireworks/models/letters",
            "fireworks.url": service.url,
        }
        assert (
            program_checks.check_engine(from_flat({"engine.backend": "fireworks"} | settings))
            is None
        )
        assert service.requests == []


@pytest.mark.parametrize("wait", [Wait.MAX_STEPS, Wait.FROZEN, Wait.SETTLING])
def test_a_trainer_that_pauses_on_purpose_does_not_fall_behind(wait: Wait) -> None:
    """What the note says does not matter."""
    situation = SITUATIONS["a queue of the trainer"] | {"heartbeat_notes": {"train": "a pause"}}
    busy = snapshot(Config(), situation)
    assert diagnose.trainer_behind(busy) is not None
    waiting = {"heartbeat_waits": {"train": frozenset({wait, Wait.TURNS})}}
    assert diagnose.trainer_behind(snapshot(Config(), situation | waiting)) is None


def test_ties_are_recognised_by_their_code() -> None:
    """The words of a verdict may be anything."""
    verdicts = [replace(verdict, reason="in other words") for verdict in voted(1, -1)]
    collapsed = diagnose.scores_collapsed(snapshot(Config(), {"verdicts": verdicts}))
    assert collapsed is not None
    assert collapsed.settings == {"judge.num_judges": 5}
    unlike = [replace(verdict, reason="abstained: a tie", reason_code=None) for verdict in verdicts]
    other = diagnose.scores_collapsed(snapshot(Config(), {"verdicts": unlike}))
    assert other is not None
    assert "judge.num_judges" not in other.settings
