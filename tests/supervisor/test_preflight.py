"""Faults that no restart can heal are found before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import ConfigError, OpenClawError, PluginError
from openclaw_rl.settings.load import from_flat
from openclaw_rl.supervisor.preflight import check_before_start, check_installation

ALL = ("engine", "gateway", "collect", "judge", "train")
LOSS_PATH, REWARD_PATH = "train.loss.path", "judge.plugin_path"
LOSS = "def compute_loss(policy_logits, reference_logits, rewards, advantages, config): ..."


@pytest.mark.parametrize(
    ("settings", "library", "cure"),
    [
        ({"train.base_quantization_bits": 4}, "bitsandbytes", "openclaw-rl[qlora]"),
        ({"train.ranks": 2, "train.launch.by": "ray"}, "ray", "openclaw-rl[ray]"),
        ({"track.to": ["wandb"]}, "wandb", "pip install wandb"),
        (
            {"judge.kind": "classifier", "judge.reward_path": "x"},
            "transformers",
            "openclaw-rl[local]",
        ),
        ({}, "peft", "openclaw-rl[local]"),
        ({}, "llguidance", "openclaw-rl[local]"),
    ],
)
def test_a_missing_library_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, object], library: str, cure: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{library}, which is not installed") as raised:
        check_installation(from_flat(settings), ALL)
    assert cure in str(raised.value)


def test_a_library_that_no_worker_needs_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("bitsandbytes", "ray", "wandb", "pyarrow"):
        monkeypatch.setitem(sys.modules, library, None)
    check_installation(from_flat({}), ALL)
    monkeypatch.setitem(sys.modules, "torch", None)
    check_installation(from_flat({"engine.backend": "vllm"}), ("engine", "gateway"))


@pytest.mark.parametrize("given", ["empty", "file.csv", "t.parquet"])
def test_data_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / given
    path.write_bytes(b"") if "." in given else path.mkdir()
    with pytest.raises(ConfigError, match=r"data\.path: "):
        check_before_start(from_flat({"data.path": str(path)}), ("data",))


@pytest.mark.parametrize(
    ("setting", "text", "words"),
    [
        (LOSS_PATH, "def my_loss(x): ...", r"defines no compute_loss or .* It defines: my_loss"),
        (LOSS_PATH, "", r"It defines: nothing"),
        (
            LOSS_PATH,
            f"{LOSS}\ndef compute_opd_loss(): ...",
            r"defines compute_loss and compute_opd_loss",
        ),
        (
            LOSS_PATH,
            f"import nowhere.below\n{LOSS}",
            r"mine\.py:1: imports nowhere, which is not installed",
        ),
        (LOSS_PATH, f"'words'\nfrom nowhere import x\n{LOSS}", r"mine\.py:2: imports nowhere"),
        (
            REWARD_PATH,
            "def score(): ...",
            r"expected get_reward_model\(config\), .* it defines score",
        ),
    ],
)
def test_a_plug_in_that_cannot_work_is_refused_without_running_it(
    tmp_path: Path, setting: str, text: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(f"{text}\nraise AssertionError('it ran')")
    kind = {"judge.kind": "plugin"} if setting == REWARD_PATH else {}
    with pytest.raises(PluginError, match=words):
        check_installation(from_flat({setting: str(tmp_path / "mine.py"), **kind}), ALL)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (LOSS_PATH, LOSS),
        (LOSS_PATH, "from os import path as compute_loss"),
        (LOSS_PATH, "compute_loss = len"),
        (LOSS_PATH, "from math import *"),
        (LOSS_PATH, f"try:\n    import nowhere\nexcept ImportError:\n    pass\n{LOSS}"),
        (LOSS_PATH, f"\ufeffimport torch, beside\n{LOSS}"),
        (REWARD_PATH, "class Mine: ..."),
        (REWARD_PATH, "get_reward_model = print"),
    ],
)
def test_a_plug_in_that_may_work_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, text: str
) -> None:
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.chdir(tmp_path)  # workers can import from the working folder
    kind = {"judge.kind": "plugin"} if setting == REWARD_PATH else {}
    check_installation(from_flat({setting: str(tmp_path / "mine.py"), **kind}), ALL)


def test_the_examples_pass() -> None:
    folder = Path(__file__).parents[2] / "examples" / "plugins"
    for name in (
        "custom_loss.py",
        "custom_opd_loss.py",
        "hybrid_loss.py",
        "hybrid_loss_corrected.py",
    ):
        check_installation(from_flat({LOSS_PATH: str(folder / name)}), ALL)
    for name in ("custom_rm.py", "custom_reward.py"):
        check_installation(
            from_flat({REWARD_PATH: str(folder / name), "judge.kind": "plugin"}), ALL
        )


def test_config_check_finds_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def my_loss(x): ...")
    for text, words in (
        (f"train: {{loss: {{path: {tmp_path}/mine.py}}}}", "defines no compute_loss"),
        ("train: {finetune: full, base_quantization_bits: 4}", "cannot have 4 bits"),
    ):
        (tmp_path / "s.yaml").write_text(text)
        result = CliRunner().invoke(cli, ["config", "check", str(tmp_path / "s.yaml")])
        assert words in str(result.exception)


def test_tinker_serves_only_what_it_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("openclaw_rl.tinker.sdk_version.metadata.version", lambda name: "0.24.1")
    serves = {"home": str(tmp_path), "engine.backend": "tinker"}
    config = from_flat(serves | {"tinker.api_key": "tml-x"})
    check_before_start(config, ("engine", "gateway"))
    with pytest.raises(ConfigError, match=r"no adapter from outside\. Set train.trainer to tinker"):
        check_before_start(config, ALL)
    trains = {"train.trainer": "tinker", "gate.kind": "numbers"}
    check_before_start(from_flat(serves | {"tinker.api_key": "tml-x"} | trains), ALL)
    with pytest.raises(OpenClawError, match="Set TINKER_API_KEY"):
        check_before_start(from_flat(serves | trains), ("train",))
