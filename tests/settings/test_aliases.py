"""Every name that people bring along: it changes what it should, or is refused with its line."""

from __future__ import annotations

import contextlib
import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from openclaw_rl.errors import ConfigError
from openclaw_rl.settings import load as settings
from openclaw_rl.settings import reference
from openclaw_rl.settings.aliases import ARGUMENTS, alias_table, all_aliases

NEEDED = {
    "NODE_RANK": {"NNODES": "2"},
    "--trainer": {"OPENCLAW_RL_GATE_KIND": "numbers"},
}
"""Variables that are given along with a variable or a flag."""
# name -> (a value as text, what it changes). Written down by hand from what the names promise, not from the code.
VARIABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "MODEL_PATH": ("/models/a", {"model.path": "/models/a"}),
    "BASE_MODEL_PATH": ("/models/a", {"model.path": "/models/a"}),
    "CKPT_PATH": ("/models/a", {"model.path": "/models/a"}),
    "TOKENIZER_PATH": ("/models/t", {"model.tokenizer": "/models/t"}),
    "MODEL_SIZE": ("7b", {"model.path": "Qwen/Qwen3-8B"}),
    "HF_TOKEN": ("hf_0123", {"model.hf_token": "hf_0123"}),
    "JUDGE_MODEL_PATH": ("/models/j", {"judge.kind": "llm", "judge.path": "/models/j"}),
    "PRM_MODEL_PATH": ("/models/p", {"judge.kind": "classifier", "judge.reward_path": "/models/p"}),
    "OPENCLAW_HOME": ("/home/x", {"home": "/home/x"}),
    "OPENCLAW_HOST": ("localhost", {"serve.host": "localhost"}),
    "OPENCLAW_PORT": ("8123", {"serve.port": 8123}),
    "OPENCLAW_API_KEY": ("0123", {"serve.api_key": "0123"}),
    "OPENCLAW_ENGINE_API_KEY": ("0123", {"engine.api_key": "0123"}),
    "OPENCLAW_JUDGE_API_KEY": ("0123", {"judge.api_key": "0123"}),
    "OPENCLAW_TEACHER_API_KEY": ("0123", {"teacher.api_key": "0123"}),
    "ROLLOUT_GPUS": ("4,5", {"engine.gpus": ("4", "5")}),
    "TRAIN_GPUS": ("0,1,2", {"train.gpus": ("0", "1", "2"), "train.ranks": 3}),
    "OPENCLAW_DEBUG": ("true", {"run.log_level": "debug"}),
    "ROLLOUT_LOG_LEVEL": ("DEBUG", {"run.log_level": "debug"}),
    "DATA_PATH": ("/data", {"data.path": "/data"}),
    "MAJORITY_VOTE_N": ("5", {"judge.num_judges": 5}),
    "MAJORITY_VOTE_THRESHOLD": ("0.6", {"judge.consensus_threshold": 0.6}),
    "BATCH_SIZE": ("8", {"train.batch.min_turns": 8, "train.batch.max_turns": 8}),
    "GRAD_ACCUM_STEPS": ("8", {"train.batch.gradient_accumulation_steps": 8}),
    "LEARNING_RATE": ("5e-7", {"train.optimizer.learning_rate": 5e-7}),
    "CLIP_GRAD_NORM": ("0.5", {"train.optimizer.clip_grad": 0.5}),
    "PPO_CLIP_RATIO": ("0.1", {"train.loss.clip_low": 0.9, "train.loss.clip_high": 1.1}),
    "USE_LORA": ("false", {"train.finetune": "full"}),
    "LORA_RANK": ("64", {"train.lora.rank": 64}),
    "LORA_ALPHA": ("128", {"train.lora.alpha": 128.0}),
    "LORA_DROPOUT": ("0.1", {"train.lora.dropout": 0.1}),
    "LORA_TARGET_MODULES": ("q_proj,v_proj", {"train.lora.targets": ("q_proj", "v_proj")}),
    "USE_GRADIENT_CHECKPOINTING": ("true", {"train.gradient_checkpointing": True}),
    "CKPT_SAVE_DIR": ("/ckpt", {"train.checkpoint.save_dir": "/ckpt"}),
    "RESUME_CKPT": ("/ckpt/checkpoint-500", {"train.checkpoint.resume": "/ckpt/checkpoint-500"}),
    "GPUS_PER_NODE": ("2", {"train.ranks": 2, "train.launch.gpus_per_node": 2}),
    "OPENCLAW_CHECK": ("true", {"run.check_only": True}),
    "NNODES": ("2", {"train.launch.nodes": 2}),
    "NODE_RANK": ("1", {"train.launch.node_rank": 1}),
    "MASTER_ADDR": ("10.0.0.1", {"train.launch.master_addr": "10.0.0.1"}),
    "MASTER_PORT": ("6000", {"train.launch.master_port": 6000}),
    "PARALLEL_ENVS": ("16", {"rollout.parallel_envs": 16}),
    "MAX_STEPS": ("20", {"rollout.episode_steps": 20}),
    "TINKER_API_KEY": ("tml-x", {"tinker.api_key": "tml-x"}),
    "TINKER_ENDPOINT": ("http://tinker:8000", {"tinker.url": "http://tinker:8000"}),
    "TINKER_BASE_URL": ("http://tinker:8000", {"tinker.url": "http://tinker:8000"}),
    "TINKER_PROJECT_ID": ("mine", {"tinker.project_id": "mine"}),
    "FIREWORKS_API_KEY": ("fw-x", {"fireworks.api_key": "fw-x"}),
    "FIREWORKS_ACCOUNT_ID": ("mine", {"fireworks.account": "mine"}),
    "TOOLS_CONFIG": ("tools.json", {"rollout.tools_config": "tools.json"}),
}
FLAGS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "--model-path": ("/models/a", {"model.path": "/models/a"}),
    "--model": ("/models/a", {"model.path": "/models/a"}),
    "--check": (None, {"run.check_only": True}),
    "--tokenizer-path": ("/models/t", {"model.tokenizer": "/models/t"}),
    "--judge-model-path": ("/models/j", {"judge.kind": "llm", "judge.path": "/models/j"}),
    "--rm-checkpoint": (
        "/models/p",
        {"judge.kind": "classifier", "judge.reward_path": "/models/p"},
    ),
    "--home": ("/home/x", {"home": "/home/x"}),
    "--host": ("localhost", {"serve.host": "localhost"}),
    "--port": ("8123", {"serve.port": 8123}),
    "--backend": ("vllm", {"engine.backend": "vllm"}),
    "--trainer": ("external", {"train.trainer": "external"}),
    "--enable-rl-intercept": ("false", {"serve.capture": "redacted"}),
    "--gpu-ids": ("0,1", {"engine.gpus": ("0", "1")}),
    "--rollout-gpus": ("4", {"engine.gpus": ("4",)}),
    "--gpus": ("2,3,4,5", {"train.gpus": ("2", "3", "4", "5"), "train.ranks": 4}),
    "--train-gpus": ("2", {"train.gpus": ("2",), "train.ranks": 1}),
    "--log-level": ("debug", {"run.log_level": "debug"}),
    "--data-path": ("/data", {"data.path": "/data"}),
    "--rl-buffer-dir": ("/buffer", {"data.export_dir": "/buffer"}),
    "--output-dir": ("/buffer", {"data.export_dir": "/buffer"}),
    "--rollout-dir": ("/rollouts", {"data.watch_dir": "/rollouts"}),
    "--judge-model": ("gpt-4", {"judge.kind": "llm", "judge.model": "gpt-4"}),
    "--majority-vote-n": ("7", {"judge.num_judges": 7}),
    "--majority-vote-threshold": ("0.6", {"judge.consensus_threshold": 0.6}),
    "--num-judge-workers": ("9", {"judge.workers": 9}),
    "--custom-rm-path": ("rm.py", {"judge.kind": "plugin", "judge.plugin_path": "rm.py"}),
    "--method": ("opd", {"train.method": "opd"}),
    "--batch-size": ("8", {"train.batch.min_turns": 8, "train.batch.max_turns": 8}),
    "--rollout-batch-size": ("32", {"train.batch.min_turns": 32, "train.batch.max_turns": 32}),
    "--grad-accum-steps": ("4", {"train.batch.gradient_accumulation_steps": 4}),
    "--lr": ("1e-6", {"train.optimizer.learning_rate": 1e-6}),
    "--weight-decay": ("0.01", {"train.optimizer.weight_decay": 0.01}),
    "--adam-beta1": ("0.8", {"train.optimizer.adam_beta1": 0.8}),
    "--adam-beta2": ("0.999", {"train.optimizer.adam_beta2": 0.999}),
    "--lr-warmup-samples": ("100", {"train.optimizer.warmup_samples": 100}),
    "--clip-grad": ("0.5", {"train.optimizer.clip_grad": 0.5}),
    "--num-epochs": ("2", {"train.batch.epochs": 2}),
    "--ppo-clip-ratio": ("0.3", {"train.loss.clip_low": 0.7, "train.loss.clip_high": 1.3}),
    "--custom-loss-function-path": ("loss.py", {"train.loss.path": "loss.py"}),
    "--use-lora": (None, {"train.finetune": "lora"}),
    "--lora": (None, {"train.finetune": "lora"}),
    "--lora-rank": ("64", {"train.lora.rank": 64}),
    "--lora-alpha": ("128", {"train.lora.alpha": 128.0}),
    "--lora-dropout": ("0.05", {"train.lora.dropout": 0.05}),
    "--lora-target-modules": ("q_proj,k_proj", {"train.lora.targets": ("q_proj", "k_proj")}),
    "--use-gradient-checkpointing": (None, {"train.gradient_checkpointing": True}),
    "--offload-optimizer-state": (None, {"train.optimizer.offload": True}),
    "--save-dir": ("/ckpt", {"train.checkpoint.save_dir": "/ckpt"}),
    "--checkpoint-dir": ("/ckpt", {"train.checkpoint.save_dir": "/ckpt"}),
    "--save-interval": ("100", {"train.checkpoint.save_interval": 100}),
    "--resume-from-checkpoint": (
        "/ckpt/checkpoint-500",
        {"train.checkpoint.resume": "/ckpt/checkpoint-500"},
    ),
    "--rollout-function-path": ("r.py", {"rollout.function_path": "r.py"}),
    "--custom-generate-function-path": ("g.py", {"rollout.generate_path": "g.py"}),
    "--num-rollout-workers": ("3", {"rollout.workers": 3}),
    "--max-turns": ("7", {"rollout.max_turns": 7}),
    "--num-rollouts-per-prompt": ("1", {"rollout.per_prompt": 1}),
    "--parallel-envs": ("16", {"rollout.parallel_envs": 16}),
}
FILE: dict[str, tuple[Any, dict[str, Any]]] = {
    "model.checkpoint_path": ("/models/a", {"model.path": "/models/a"}),
    "model.tokenizer_path": ("/models/t", {"model.tokenizer": "/models/t"}),
    "rollout_config.max_concurrent_sessions": (100, {"engine.max_batch": 100}),
    "rollout_config.session_timeout": (3600, {"collect.session_timeout": 3600.0}),
    "rollout_config.reward_computation.num_samples": (5, {"judge.num_judges": 5}),
    "rollout.num_workers": (4, {"rollout.workers": 4}),
    "evaluation.judge_model": ("gpt-4", {"judge.kind": "llm", "judge.model": "gpt-4"}),
    "evaluation.num_judges": (5, {"judge.num_judges": 5}),
    "evaluation.consensus_threshold": (0.6, {"judge.consensus_threshold": 0.6}),
    "evaluation.majority_voting": (False, {"judge.num_judges": 1}),
    "evaluation.eval_frequency": (100, {"track.eval_every": 100}),
    "training.hint_extraction_model": ("gpt-4", {"teacher.model": "gpt-4"}),
    "training.method": ("binary", {"train.method": "binary"}),
    "training.batch_size": (32, {"train.batch.min_turns": 32, "train.batch.max_turns": 32}),
    "training.gradient_accumulation_steps": (4, {"train.batch.gradient_accumulation_steps": 4}),
    "training.learning_rate": (
        "1e-6",
        {"train.optimizer.learning_rate": 1e-6},
    ),  # YAML reads 1e-6 as text
    "training.warmup_steps": (100, {"train.optimizer.warmup_steps": 100}),
    "training.max_steps": (10000, {"train.max_steps": 10000}),
    "training.ppo_clip_ratio": (0.3, {"train.loss.clip_low": 0.7, "train.loss.clip_high": 1.3}),
    "training.binary_weight": (0.5, {"train.loss.w_binary": 0.5}),
    "training.opd_weight": (0.5, {"train.loss.w_opd": 0.5}),
    "training.teacher_temperature": (0.7, {"train.distill.teacher_temperature": 0.7}),
}
REFUSED = {
    "ENV_TYPE": "it chooses tasks",
    "TASK_TYPE": "it chooses tasks",
    "MAX_GUI_STEPS": "it chooses tasks",
    "SCREENSHOT_BACKEND": "it chooses tasks",
    "SWE_BENCH_PATH": "it chooses tasks",
    "extensions": "plugins.entries in openclaw.json",
}
NOTICED: dict[str, tuple[Any, str]] = {
    "WANDB_API_KEY": ("x", "`track.to` wandb turns W&B on"),
    "VALUE_CLIP": ("true", "it belongs to a critic"),
    "training.value_clip_ratio": (0.2, "it belongs to a critic"),
    "training.gae_lambda": (0.95, "it belongs to a critic"),
    "--api-endpoint": (
        "http://localhost:8000",
        "collecting reads what the gateway of the same home",
    ),
    "--async-collection": (True, "the four stages never wait"),
    "--session-aware": (True, "a reaction is found through its session"),
    "--reward-aggregation": ("majority", "votes are counted"),
    "rollout.session_aware": (True, "a reaction is found through its session"),
    "rollout_config.collection_mode": ("async", "the four stages never wait"),
    "rollout_config.trajectory_format": ("multi_turn", "a session is kept whole"),
    "rollout_config.message_classification.main_line": (
        ["user", "assistant"],
        "the assistant's own tokens train",
    ),
    "rollout_config.message_classification.side": (
        ["system", "tool"],
        "messages of these roles never train",
    ),
    "rollout_config.reward_computation.aggregation": ("majority", "votes are counted"),
    "rollout_config.reward_computation.type": (
        "next_state_feedback",
        "the reaction is the feedback",
    ),
}


def at(config: settings.Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def load(**given: Any) -> settings.LoadedSettings:
    return settings.load_all(**{"environ": {}} | given)


def check(loaded: settings.LoadedSettings, changes: dict[str, Any], said: str) -> None:
    for key, value in changes.items():
        assert at(loaded.config, key) == (
            pytest.approx(value) if isinstance(value, float) else value
        )
        assert at(settings.Config(), key) != value or value in ("lora", 1), (
            "the value given is not the default"
        )
        assert said in loaded.sources[key]


def test_the_lists_are_complete() -> None:
    """Every alias has a line here, and every line an alias."""
    listed = {*VARIABLES, *FLAGS, *FILE, *REFUSED, *NOTICED}
    assert set(all_aliases()) == listed


@pytest.mark.parametrize("name", VARIABLES)
def test_variables(name: str) -> None:
    value, changes = VARIABLES[name]
    check(load(environ={name: value} | NEEDED.get(name, {})), changes, name)


@pytest.mark.parametrize("name", FLAGS)
def test_flags_on_the_line_and_inside_a_variable(name: str) -> None:
    """The variables take turns: all of them are read in the same way."""
    value, changes = FLAGS[name]
    words = [name] if value is None else [name, value]
    needed = NEEDED.get(name, {})
    check(load(arguments=words, environ=needed), changes, name)
    joined = "=".join(words) if value is not None else f"{name}=true"
    check(load(arguments=[joined], environ=needed), changes, name)
    inside = ARGUMENTS[list(FLAGS).index(name) % len(ARGUMENTS)]
    check(load(environ={inside: " ".join(words)} | needed), changes, f"{inside} {name}")


@pytest.mark.parametrize("name", FILE)
@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_file_keys(tmp_path: Path, name: str, kind: str) -> None:
    value, changes = FILE[name]
    file = tmp_path / f"settings.{kind}"
    file.write_text(
        yaml.safe_dump(nested(name, value)) if kind == "yaml" else json.dumps(nested(name, value))
    )
    check(load(file=file), changes, name)


def load_name(folder: Path, name: str, value: Any) -> settings.LoadedSettings:
    """Load one name in its own form: a flag, a variable, or a key of a file."""
    if name.startswith("--"):
        return load(arguments=[name] if value is True else [name, str(value)])
    if name.isupper():
        return load(environ={name: str(value)})
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(nested(name, value)))
    return load(file=file)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_names_say_why(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} is refused: .*{REFUSED[name]}"):
        load_name(tmp_path, name, 1)


@pytest.mark.parametrize("name", NOTICED)
def test_names_without_effect_are_accepted_with_a_notice(tmp_path: Path, name: str) -> None:
    value, words = NOTICED[name]
    loaded = load_name(tmp_path, name, value)
    (notice,) = loaded.notices
    assert notice.startswith(f"{name} is ")
    assert words in notice
    assert loaded.config == load().config


def test_a_switch_that_is_off_is_the_default(tmp_path: Path) -> None:
    assert load(environ={"OPENCLAW_DEBUG": "false"}).notices == [
        "OPENCLAW_DEBUG is false: this is the default"
    ]
    voting = load_name(tmp_path, "evaluation.majority_voting", True)
    assert voting.notices == ["evaluation.majority_voting is true: this is the default"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"arguments": ["--lora-rnak", "8"]},
            "unknown setting '--lora-rnak'. Did you mean --lora-rank",
        ),
        ({"arguments": ["lr", "8"]}, "expected a flag such as --lr 1e-6, got 'lr'"),
        ({"arguments": ["--lr"]}, "--lr needs a value"),
        (
            {"environ": {"OPTIMIZER_ARGS": "--lrr 1e-6"}},
            "unknown setting 'OPTIMIZER_ARGS --lrr'. Did you mean --lr",
        ),
        ({"arguments": ["--lora-target-modules", ""]}, "expected all-linear, or names such as"),
        ({"arguments": ["--reward-aggregation", "mean"]}, "expected majority, got mean"),
        ({"arguments": ["--session-aware", "false"]}, "expected true, got false"),
        (
            {"arguments": ["--api-endpoint", "http://gpu:8000"]},
            "expected an address of this machine, .* asks no API",
        ),
        ({"arguments": ["--api-endpoint", "http://[::1"]}, "expected an address of this machine"),
        ({"arguments": ["--gpus", "cuda"]}, "expected device ids"),
        ({"arguments": ["--gpus", "1,1"]}, "expected each device once, got '1,1'"),
        (
            {"arguments": ["--lora-target-modules", "q_proj k_proj"]},
            "expected all-linear, or names such as",
        ),
        (
            {"environ": {"LORA_TARGET_MODULES": '["q_proj","k_proj"]'}},
            "expected all-linear, or names such as",
        ),
        ({"arguments": ["--ppo-clip-ratio", "2"]}, "between 0 and 1"),
        ({"arguments": ["--lora-rank", "0"]}, r"train.lora.rank: .*from flags: --lora-rank"),
        ({"environ": {"MODEL_SIZE": "3b"}}, "expected one of 0.6b"),
        ({"environ": {"USE_LORA": "maybe"}}, "USE_LORA: expected true or false"),
        ({"environ": {"LORA_ARGS": "--lora-rank '8"}}, "LORA_ARGS: .*quotation"),
        (
            {"environ": {"LORA_ARGS": "--lora-rank 8", "LORA_RANK": "16"}},
            "both set train.lora.rank and disagree",
        ),
        ({"environ": {"LEARNING_RATE": "1e-6", "OPTIMIZER_ARGS": "--lr 2e-6"}}, "disagree"),
        (
            {"environ": {"OPENCLAW_RL_TRAIN_BATCH_MIN_TURNS": "4", "BATCH_SIZE": "8"}},
            "both set train.batch.min_turns and disagree",
        ),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(**given)


@pytest.mark.parametrize(
    ("given", "why", "instead"),
    [
        ({"sets": ["engine.backend=Slime"]}, "slime trains and does not serve", "sglang"),
        ({"arguments": ["--backend", "slime"]}, "slime trains and does not serve", "vllm"),
        ({"flags": {"engine.backend": "slime"}}, "slime trains and does not serve", "embedded"),
        ({"flags": {"train.method": "grpo"}}, "several replies to one prompt", "Say groups"),
        ({"environ": {"OPENCLAW_RL_TRAIN_METHOD": "ppo"}}, "critic is not here", "Say binary"),
    ],
)
def test_values_of_other_programs_are_refused_with_the_reason(
    given: dict[str, Any], why: str, instead: str
) -> None:
    with pytest.raises(ConfigError, match=f"{why}.* {instead}.*got .*from ") as caught:
        load(**given)
    assert "\n" not in str(caught.value)


def test_every_refused_value_belongs_to_a_setting_that_does_not_accept_it() -> None:
    for key, reasons in alias_table("refused_values").items():
        assert key in settings.known_keys()
        for value, why in reasons.items():
            with pytest.raises(ConfigError, match=re.escape(why)):
                load(flags={key: value})


def test_all_errors_of_a_source_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("training: {warmup: 0.2, bach_size: 3}\nrollout: {session_aware: false}\n")
    with pytest.raises(ConfigError) as caught:
        load(file=file)
    assert len(str(caught.value).splitlines()) == 3
    assert "Did you mean 'training.batch_size'" in str(caught.value)


def test_two_aliases_with_one_value_agree() -> None:
    environ = {
        "LEARNING_RATE": "1e-6",
        "OPTIMIZER_ARGS": "--lr 0.000001",
        "OPENCLAW_RL_TRAIN_OPTIMIZER_LEARNING_RATE": "1.0e-6",
    }
    assert load(environ=environ).config.train.optimizer.learning_rate == 1e-6


def test_the_size_gives_way_to_a_model_of_any_source(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("model: {path: mine}\n")
    assert load(environ={"MODEL_SIZE": "7b"}, file=file).config.model.path == "mine"
    assert load(environ={"MODEL_SIZE": "7b", "MODEL_PATH": "/a"}).config.model.path == "/a"
    assert (
        load(environ={"MODEL_SIZE": "7b"}, arguments=["--model-path", "/b"]).config.model.path
        == "/b"
    )


def test_shown_settings_can_be_read_again(tmp_path: Path) -> None:
    loaded = load(
        environ={"LORA_RANK": "64", "OPENCLAW_API_KEY": "sk-secret"}, arguments=["--lr", "1e-6"]
    )
    text = "\n".join(reference.setting_lines(loaded))
    assert "sk-secret" not in text
    assert "# flags: --lr" in text
    assert "# environment: LORA_RANK" in text
    file = tmp_path / "again.yaml"
    file.write_text(text)
    again = settings.load_all(file=file, environ={"OPENCLAW_API_KEY": "sk-secret"})
    assert again.config == loaded.config


def test_the_reference_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    assert page.read_text(encoding="utf-8") == reference.reference_page(), (
        f"python -m openclaw_rl.settings.reference {page} writes it again"
    )


ODD = (
    None,
    3,
    -1,
    0.5,
    1e999,
    True,
    "",
    "x",
    "\0",
    "x" * 10_000,
    [],
    [[]],
    [None],
    [{}],
    {},
    {"a": 1},
    {1: [2]},
    "1:30",
)


@pytest.mark.parametrize("key", [*settings.known_keys(), *FILE])
def test_values_of_the_wrong_type_are_an_error_or_are_converted(tmp_path: Path, key: str) -> None:
    for value in ODD:
        file = tmp_path / "settings.yaml"
        file.write_text(yaml.safe_dump(nested(key, value)))
        with contextlib.suppress(ConfigError):  # anything else is a traceback
            load(file=file)


@pytest.mark.parametrize(("earlier", "current"), sorted(alias_table("earlier_keys").items()))
def test_an_earlier_key_in_a_file_gets_a_line_that_names_the_current_one(
    tmp_path: Path, earlier: str, current: str
) -> None:
    file = tmp_path / "settings.yaml"
    default = attrgetter(current)(settings.Config())
    value = list(default) if isinstance(default, tuple) else default
    file.write_text(yaml.safe_dump({earlier: value}), encoding="utf-8")
    loaded = settings.load_all(file=file, environ={})
    line = f"{file}: {earlier} is called {current} now: rename it"
    assert loaded.notices.count(line) == 1
