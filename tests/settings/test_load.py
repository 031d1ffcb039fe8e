"""Settings: precedence, names, conflicts, and words that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.errors import ConfigError
from openclaw_rl.judge.preflight import check_judge_settings
from openclaw_rl.settings import load as settings


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _aliases(count: int, *, of: int) -> str:
    """YAML in which each of `count` keys is a list of aliases of the one before."""
    lists = ["x" if n == 0 else f"*a{n - 1}" for n in range(count)]
    return "".join(f"a{n}: &a{n} [{', '.join([one] * of)}]\n" for n, one in enumerate(lists))


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = write(tmp_path, "serve: {port: 1}\ntrain: {batch_min: 5}\njudge: {num_judges: 7}\n")
    environ = {"OPENCLAW_PORT": "2", "OPENCLAW_RL_TRAIN_BATCH_MIN_TURNS": "6"}
    config = settings.load(file=file, environ=environ, flags={"serve.port": 3})
    assert (config.serve.port, config.train.batch.min_turns, config.judge.num_judges) == (3, 6, 7)
    assert config.train.batch.max_turns == settings.Config().train.batch.max_turns


def test_variables_of_the_owner_override_those_of_the_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    assert settings.to_environment(settings.Config(), "train")["THP_MEM_ALLOC_ENABLE"] == "1"
    assert "THP_MEM_ALLOC_ENABLE" not in settings.to_environment(settings.Config(), "engine")
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    assert settings.to_environment(settings.Config(), "train")["THP_MEM_ALLOC_ENABLE"] == "0"
    assert settings.trainer_variables()["THP_MEM_ALLOC_ENABLE"] == "0"


@pytest.mark.parametrize(
    "worker", ["engine", "gateway", "collect", "judge", "judge-engine", "train", "data"]
)
def test_a_key_is_passed_only_to_processes_that_use_it(
    worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {
        "serve": "gateway",
        "engine": "engine gateway data",
        "judge": "judge train",
        "teacher": "judge",
    }
    for name in settings.SECRET_NAMES:
        monkeypatch.setenv(name, f"{name}-from-the-environment")
    monkeypatch.setenv("OPENCLAW_RL_JUDGE_API_KEY", "OPENCLAW_JUDGE_API_KEY-from-the-environment")
    config = settings.from_flat({f"{section}.api_key": f"{section}-key-123" for section in users})
    text = str(settings.to_environment(config, worker))
    for section, workers in users.items():
        assert (f"{section}-key-123" in text) == (worker in workers.split())
    assert "from-the-environment" not in text


@pytest.mark.parametrize(
    "key", [k for k in settings.known_keys() if k.split(".")[0] not in ("home",)]
)
def test_every_setting_has_its_long_environment_name(key: str) -> None:
    name = settings.ENV_PREFIX + key.replace(".", "_").upper()
    default: object = settings.Config()
    for part in key.split("."):
        default = getattr(default, part)
    value = (
        "null"
        if default is None
        else str(default)
        if not isinstance(default, tuple)
        else str(list(default))
    )
    assert key in settings.read_environment({name: value})


def test_two_spellings_that_disagree_are_an_error() -> None:
    same = {"MODEL_PATH": "a", "BASE_MODEL_PATH": "a"}
    assert settings.load(environ=same).model.path == "a"
    with pytest.raises(ConfigError, match=r"MODEL_PATH .*disagree"):
        settings.load(environ={"MODEL_PATH": "a", "BASE_MODEL_PATH": "b"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("serve: {prot: 1}", "unknown setting 'serve.prot'. Did you mean 'serve.port'"),
        ("learning_rate: 1", "Did you mean 'train.optimizer.learning_rate'"),
        ("- 1", "expected a mapping"),
        ("serve: {port: many}", "serve.port: .*got 'many'"),
        ("serve: {port: 0}", "serve.port: Input should be greater than or equal to 1"),
        ("serve: [", "cannot be read as YAML"),
        ("train: {batch_min: 9, batch_max: 4}", "batch.max_turns .* below"),
        (
            "train: {method: sdft, hint_choice: mixture}",
            "train.distill.hint_choice mixture: .*Say overlap",
        ),
        (
            "train: {method: opd, distill: teacher_topk, hint_choice: mixture}",
            "train.distill.hint_choice mixture: ",
        ),
        ("train: {method: combine, w_binary: 0, w_opd: 0}", "nothing could be learned"),
        ("train: {method: binary, reference: ema}", "binary has none"),
        ("train: {method: binary, teacher_temperature: 0.5}", "binary has none"),
        ("train: {method: sdpo, distill: token, loss: gspo}", "work on advantages"),
        ("train: {method: sdft, sequence_mask: opsm}", "work on advantages"),
        ("train: {method: sdpo, distill: student_topk}", "says already what is compared"),
        ("train: {max_gap: 0.2, max_batch_gap: 0.3}", "max_batch_log_ratio .* is above"),
        ("train: {max_uses: 2, replay: 0}", "no place for them"),
        ("train: {max_uses: 2, batch_min: 4, batch_max: 4}", "no place for them"),
        ("train: {launch: {by: ray}}", "for several ranks"),
        ("train: {launch: {shard: true}}", "for several ranks"),
        ("train: {compile: true, ranks: 2}", "train.compile is for one rank"),
        (
            "train: {launch: {node_rank: 1}}",
            r"\(NODE_RANK\) is 1, and train.launch.nodes \(NNODES\) 1: machines are numbered",
        ),
        (
            "train: {launch: {nodes: 2, node_rank: 2}}",
            "numbered from 0. Set train.launch.nodes to how many",
        ),
        ("train: {launch: {nodes: 2, by: local}}", "Say torchrun or ray, or leave it out"),
        ("train: {loss_path: l.py, epochs: 2}", "one step a batch"),
        ("train: {loss_path: l.py, method: opd, teacher_temperature: 0.5}", "one step a batch"),
        ("judge: {kind: llm}", "judge.model and judge.base_url are needed"),
        ("serve: {host: 0.0.0.0}", "no key is set"),
        (
            "serve: {host: 0.0.0.0, api_key: fifteen-letters}",
            "serve.api_key has 15 characters.*16 or more",
        ),
        (
            "policy: {per: agent}\nengine: {backend: openai, url: 'http://x/v1'}",
            "policy.per is agent, but .* openai .* answers everybody alike. Set engine.backend to vllm",
        ),
        (
            "policy: {per: user}\ntrain: {save_dir: /s}",
            "policy.per is user, but a checkpoint holds one policy",
        ),
        (
            "engine: {backend: vllm, url: 'localhost:8001'}",
            "engine.url: expected an address .*got 'localhost:8001'",
        ),
        ("engine: {backend: vllm, url: '127.0.0.1:8001/v1'}", "engine.url: expected an address"),
        ("engine: {backend: vllm, url: 'http://[::1'}", "engine.url: expected an address"),
        ("judge: {base_url: 'ftp://x/v1'}", "judge.base_url: expected an address"),
        ("tinker: {url: ' http://x/v1'}", "tinker.url: expected an address .*got ' http://x/v1'"),
        ('tinker: {url: "http://x/v1\\n"}', "tinker.url: expected an address"),
        ("tinker: {url: 'http://x y/v1'}", "tinker.url: expected an address"),
        (
            'tinker: {api_key: "tml-x\\n"}',
            "tinker.api_key: expected a key of ASCII .* got one of 6 characters",
        ),
        ("judge: {api_key: 'a b'}", "judge.api_key: expected a key"),
        ("model: {hf_token: 'é'}", "model.hf_token: expected a key"),
        (
            "fireworks: {account: accounts/me}",
            "fireworks.account: expected the ID alone.* got 'accounts/me'",
        ),
        (
            "teacher: {base_url: 'http://x:99999/v1', model: m}",
            "teacher.base_url: expected an address",
        ),
        ("collect: {side_patterns: ['(']}", "not a regular expression"),
        ("serve: {transient_patterns: ['[']}", "not a regular expression"),
        ("train: {method: opd}\ntrain: {batch_min: 8}", "line 2: 'train' is given twice"),
        ("model: {name: 2026-13-45}", "cannot be read as YAML: month must be"),
        ("train: {seed: " + "9" * 5000 + "}", "cannot be read as YAML: .*4300 digits"),
        ("train: &x {lora: *x}", "an alias .* contains itself"),
        (_aliases(9, of=10) + "serve: *a8", "aliases .* stand for more than 100000 values"),
        (_aliases(60, of=1) + "serve: *a59", "nested too deeply"),
        ("[" * 600, "nested too deeply"),
        ("train: {x: " + "[" * 60 + "]" * 60 + "}", "nested too deeply"),
        (
            "train: {learning_rate: 1e400}",
            "train.optimizer.learning_rate: Input should be a finite number",
        ),
        ("train: {kl_coef: .nan}", "train.loss.kl_coef: Input should be a finite number"),
        (
            "serve: {sampling_override: {temperature: .inf}}",
            "temperature: Input should be a finite number",
        ),
        (
            "serve: {sampling_override: {temprature: 1}}",
            "Did you mean .serve.sampling_override.temperature",
        ),
        (
            "serve: {sampling_override: {top_p: 2}}",
            "serve.sampling_override.top_p: Input should be less than",
        ),
        (
            "serve: {cors_origins: ['http://localhost:3000/']}",
            "serve.cors_origins: expected origins like .* no slash",
        ),
        (
            "serve: {cors_origins: [chat.example]}",
            "serve.cors_origins: expected origins like https://chat.example",
        ),
        ("train: {lora: {rank: yes}}", "train.lora.rank: expected a number .got True."),
        (
            "train: {lora: 8}",
            "train.lora is a section: expected keys below it, such as train.lora.alpha, got 8",
        ),
        ("lora: {}", "unknown setting 'lora'"),
        ("home: ''", "home: expected text, got nothing"),
        ("model: {path: ''}", "model.path: expected text, got nothing"),
        ('data: {path: "a\\0b"}', "data.path: expected text without a null character"),
        ("model: {name: 2026-01-01}", "model.name: .*put it in quotes"),
        ("track: {to: wandb}", r"track.to: .*that is a list: \[a, b\]"),
    ],
)
def test_an_invalid_file_gets_an_error_with_the_cure(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings.load(file=write(tmp_path, text), environ={})


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes("train: {method: opd}".encode("utf-16"))
    with pytest.raises(
        ConfigError, match=r"expected UTF-8, got other bytes at byte 0\. Save it as UTF-8"
    ) as caught:
        settings.load(file=file, environ={})
    assert "\n" not in str(caught.value)
    with pytest.raises(
        ConfigError, match=r"cannot be read .Is a directory.\. Name a settings file"
    ):
        settings.load(file=tmp_path, environ={})


def test_empty_values_count_as_not_set(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "train:\njudge: {}\nserve: {api_key: ''}\ndata: {path: ''}\nengine: {gpus: [0, 1]}\n",
    )
    config = settings.load(file=file, environ={})
    assert (config.serve.api_key, config.data.path, config.engine.gpus) == (None, None, ("0", "1"))


def test_json_is_read_as_json(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{\n\t"model": {"name": "\\ud83d\\ude00"}, "train": {"learning_rate": 1e-6}}')
    config = settings.load(file=file, environ={})
    assert (config.model.name, config.train.optimizer.learning_rate) == ("\U0001f600", 1e-6)
    for text, words in (
        ('{"home": "a", "home": "b"}', "'home' is given twice"),
        ("{", "as JSON: Expecting"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            settings.load(file=file, environ={})


def test_a_merge_may_be_overridden(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "train: &t {method: opd, seed: 3}\nmodel: {name: a}\nteacher: {<<: {timeout: 1}, timeout: 2}",
    )
    assert settings.load(file=file, environ={}).teacher.timeout == 2


def test_a_missing_file_and_an_unknown_variable() -> None:
    with pytest.raises(ConfigError, match="no such settings file"):
        settings.load(file="/nowhere.yaml", environ={})
    with pytest.raises(ConfigError, match="Did you mean OPENCLAW_RL_SERVE_PORT"):
        settings.load(environ={"OPENCLAW_RL_SERVE_PROT": "1"})


def test_an_invalid_yaml_value_names_its_variable() -> None:
    with pytest.raises(ConfigError, match="OPENCLAW_PORT: expected a value"):
        settings.load(environ={"OPENCLAW_PORT": "{"})


def test_keys_are_taken_as_they_are() -> None:
    assert settings.load(environ={"OPENCLAW_API_KEY": "0123"}).serve.api_key == "0123"


def test_children_inherit_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings.load(
        environ={}, flags={"train.batch.min_turns": 9, "serve.ephemeral_patterns": ["^x$"]}
    )
    monkeypatch.setenv(
        settings.CONFIG_VARIABLE, settings.to_environment(config)[settings.CONFIG_VARIABLE]
    )
    assert settings.inherited_config() == config


@pytest.mark.parametrize(
    ("given", "name", "why"),
    [
        ({"JUDGE_MODEL_PATH": "/j", "PRM_MODEL_PATH": "/p"}, "PRM_MODEL_PATH", "judge.kind is llm"),
        ({"MAJORITY_VOTE_N": "5"}, "MAJORITY_VOTE_N", "judge.kind is auto"),
        (
            {"REWARD_ARGS": "--custom-rm-path a.py", "MAJORITY_VOTE_THRESHOLD": "0.6"},
            "MAJORITY_VOTE_THRESHOLD",
            "plugin",
        ),
        (
            {"USE_LORA": "false", "LORA_RANK": "8", "LORA_ALPHA": "16"},
            "LORA_ALPHA, LORA_RANK",
            "train.finetune is full",
        ),
        (
            {"CKPT_ARGS": "--save-interval 100"},
            "CKPT_ARGS --save-interval",
            "only with train.checkpoint.save_dir",
        ),
        (
            {"OPENCLAW_RL_TRAIN_METHOD": "opd", "OPENCLAW_RL_TRAIN_LOSS_W_BINARY": "2"},
            "OPENCLAW_RL_TRAIN_LOSS_W_BINARY",
            "is opd",
        ),
    ],
)
def test_settings_without_effect_get_a_notice(given: dict[str, str], name: str, why: str) -> None:
    (notice,) = settings.load_all(environ=given).notices
    assert notice.startswith(f"{name} ha")
    assert why in notice


URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("given", "kind", "source"),
    [
        ({"judge.model": "m", "judge.base_url": URL}, "llm", "judge.model"),
        ({"judge.model": "m"}, "llm", "judge.model"),
        ({"judge.path": "/models/j"}, "llm", "judge.path"),
        (
            {"judge.plugin_path": "rm.py", "judge.reward_path": "/models/p"},
            "plugin",
            "judge.plugin_path",
        ),
        ({"judge.reward_path": "/models/p"}, "classifier", "judge.reward_path"),
        ({"judge.kind": "rules", "judge.model": "m"}, "rules", "judge.kind"),
        ({"judge.base_url": URL, "teacher.model": "t"}, "auto", None),
        ({"judge.model": ""}, "auto", None),
    ],
)
def test_the_settings_of_a_judge_choose_its_kind(
    given: dict[str, str], kind: str, source: str | None
) -> None:
    loaded = settings.load_all(flags=given, environ={})
    assert loaded.config.judge.kind == settings.from_flat(given).judge.kind == kind
    assert loaded.sources.get("judge.kind") == (f"flags: {source}" if source else None)


def test_a_judge_at_an_endpoint_needs_a_model_at_once_and_an_endpoint_to_start() -> None:
    with pytest.raises(ConfigError, match=r"judge\.model and judge\.base_url are needed"):
        settings.load(flags={"judge.base_url": URL}, environ={})
    loaded = settings.load_all(flags={"judge.model": "gpt-4"}, environ={})
    (notice,) = loaded.notices
    assert notice.startswith(
        "judge.model is gpt-4, and no endpoint serves it: the judge cannot start."
    )
    with pytest.raises(ConfigError) as error:
        check_judge_settings(loaded.config)
    assert str(error.value) == notice


@pytest.mark.parametrize("key", ["serve.lessons", "gate.kind"])
def test_off_needs_no_quotes(tmp_path: Path, key: str) -> None:
    """YAML reads it as false."""
    section, _, name = key.partition(".")
    file = write(tmp_path, f"{section}: {{{name}: off}}\n")
    for config in (
        settings.load(flags={key: "off"}, environ={}),
        settings.load(file=file, environ={}),
    ):
        assert getattr(getattr(config, section), name) == "off"


@pytest.mark.parametrize(
    ("method", "lessons", "is_said"),
    [("opd", "until_learned", True), ("opd", "off", False), ("combine", "until_learned", False)],
)
def test_distillation_alone_at_tinker_learns_nothing_from_prompts_with_lessons(
    method: str, lessons: str, is_said: bool
) -> None:
    given = {
        "train.trainer": "tinker",
        "engine.backend": "tinker",
        "gate.kind": "numbers",
        "tinker.api_key": "tml-x",
    }
    loaded = settings.load_all(
        flags=given | {"train.method": method, "serve.lessons": lessons}, environ={}
    )
    assert any("Set serve.lessons to off" in notice for notice in loaded.notices) is is_said


def test_settings_that_have_an_effect_get_no_notice() -> None:
    environ = {"MAJORITY_VOTE_N": "5", "JUDGE_MODEL_PATH": "/j", "LORA_RANK": "8"}
    assert (
        settings.load_all(environ=environ | {"CKPT_ARGS": "--save-interval 9 --save-dir x"}).notices
        == []
    )


def test_a_continued_line_is_read_as_one_line() -> None:
    config = settings.load(
        environ={
            "ROLLOUT_ARGS": " --num-rollout-workers 16\\\n --parallel-envs 32 \\\r\n --async-collection "
        }
    )
    assert (config.rollout.workers, config.rollout.parallel_envs) == (16, 32)


FOREIGN = {
    "MAX_GUI_STEPS": "20",
    "TRAIN_GPUS": "all",
    "ROLLOUT_ARGS": "--task-type gui --nonsense",
    "LORA_RANK": "8",
}


def test_variables_of_another_program_stop_only_what_starts_a_system() -> None:
    with pytest.raises(ConfigError, match="MAX_GUI_STEPS is refused"):
        settings.load_all(environ=FOREIGN)
    assert settings.load_all(environ=FOREIGN, strict=False).config.train.lora.rank == 8


@pytest.mark.parametrize(
    "name", ["OPENCLAW_PORT", "OPENCLAW_RL_SERVE_PORT", "OPENCLAW_RL_SERVE_PROT"]
)
def test_our_own_variables_are_always_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        settings.load_all(environ={name: "{"}, strict=False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"train.finetune": "full", "train.base_quantization_bits": 4},
            "train.base_quantization_bits 16",
        ),
        ({"train.finetune": "full", "train.ranks": 2, "train.launch.shard": True}, "set it false"),
        (
            {"train.base_quantization_bits": 4, "train.ranks": 2, "train.launch.shard": True},
            "set it false",
        ),
    ],
)
def test_weights_that_contradict_one_another_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings.from_flat(given)


@pytest.mark.parametrize("value", ["", " ", "\t"])
@pytest.mark.parametrize(
    "name",
    [
        "OPENCLAW_PORT",
        "OPENCLAW_HOST",
        "OPENCLAW_API_KEY",
        "OPENCLAW_RL_TRAIN_SEED",
        "OPENCLAW_RL_SERVE_ANY_MODEL",
        "OPENCLAW_RL_TRAIN_LORA_RANK",
        "OPENCLAW_RL_MODEL_PATH",
        "JUDGE_MODEL",
        "LORA_ARGS",
        "MAJORITY_VOTE_N",
        "TINKER_API_KEY",
        "HF_TOKEN",
    ],
)
def test_an_empty_variable_is_not_set(name: str, value: str) -> None:
    loaded = settings.load_all(environ={name: value})
    assert loaded.config == settings.load_all(environ={}).config
    assert loaded.notices == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENCLAW_RL_PORT", "tcp://10.0.0.1:8000"),
        ("OPENCLAW_RL_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("OPENCLAW_RL_PORT_8000_TCP_PROTO", "tcp"),
        ("OPENCLAW_RL_PORT_8000_TCP_PORT", "8000"),
        ("OPENCLAW_RL_PORT_8000_TCP_ADDR", "10.0.0.1"),
        ("OPENCLAW_RL_SERVICE_HOST", "10.0.0.1"),
        ("OPENCLAW_RL_SERVICE_PORT", "8000"),
        ("OPENCLAW_RL_SERVICE_PORT_HTTP", "8000"),
        ("OPENCLAW_PORT", "tcp://10.0.0.1:8000"),
        ("OPENCLAW_PORT", "udp://10.0.0.1:53"),
        ("OPENCLAW_PORT_8000_TCP", "tcp://10.0.0.1:8000"),
        ("OPENCLAW_SERVICE_HOST", "10.0.0.1"),
        ("OPENCLAW_SERVICE_PORT_API", "8000"),
    ],
)
def test_a_variable_of_a_service_in_kubernetes_is_no_setting(name: str, value: str) -> None:
    assert settings.load_all(environ={name: value}).config == settings.load_all(environ={}).config


def test_a_port_in_a_variable_is_still_a_setting() -> None:
    assert settings.load_all(environ={"OPENCLAW_PORT": "8123"}).config.serve.port == 8123
    with pytest.raises(ConfigError, match="OPENCLAW_PORT"):
        settings.load_all(environ={"OPENCLAW_PORT": "http://10.0.0.1:8000"})
