"""GPU ids that this machine does not have are refused before anything starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import load
from openclaw_rl.supervisor.gpu_devices import check_gpu_ids, count_gpus
from openclaw_rl.supervisor.supervisor import WORKERS

TWO_GPUS = r"""#!/bin/sh
[ -z "$CUDA_VISIBLE_DEVICES" ] && [ "$1" = -L ] || exit 1
echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0b)'
echo '  MIG 1g.10gb     Device  0: (UUID: MIG-1c)'
echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2d)'
"""


def install_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose nvidia-smi lists two GPUs, one of them split, in a shell that may use one."""
    install_nvidia_smi(tmp_path, monkeypatch, TWO_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")


@pytest.mark.parametrize(
    ("environ", "flags", "setting"),
    [
        ({"TRAIN_GPUS": "0,1,9"}, (), "train.gpus (TRAIN_GPUS, --gpus)"),
        ({}, ("--gpus", "0,1,9"), "train.gpus (TRAIN_GPUS, --gpus)"),
        ({"ROLLOUT_GPUS": "0,1,9"}, (), "engine.gpus (ROLLOUT_GPUS, --gpu-ids)"),
        ({}, ("--gpu-ids", "0,1,9"), "engine.gpus (ROLLOUT_GPUS, --gpu-ids)"),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_an_id_beyond_the_devices_is_refused(
    environ: dict[str, str], flags: tuple[str, ...], setting: str
) -> None:
    words = f"{setting} is 0,1,9, and this machine has 2 GPUs, numbered from 0: there is no 9"
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_gpu_ids(load(arguments=flags, environ=environ), WORKERS)


@pytest.mark.usefixtures("two_gpus")
def test_ids_that_exist_or_are_not_used_here_are_accepted() -> None:
    check_gpu_ids(load(environ={"TRAIN_GPUS": "0", "ROLLOUT_GPUS": "1"}), WORKERS)
    elsewhere = {"TRAIN_GPUS": "0,9", "OPENCLAW_RL_TRAIN_LAUNCH_BY": "ray"}
    check_gpu_ids(load(environ=elsewhere), WORKERS)
    check_gpu_ids(load(environ={"TRAIN_GPUS": "9"}), ("engine", "gateway"))
    served = {"engine.backend": "vllm", "engine.url": "http://10.0.0.1:8000", "engine.gpus": ["9"]}
    check_gpu_ids(load(flags=served, environ={}), WORKERS)


def test_without_a_gpu_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvidia_smi(tmp_path, monkeypatch, "#!/bin/sh\nexit 9\n")  # without a driver
    home = tmp_path / "home"
    result = CliRunner().invoke(cli, ["up", "--home", str(home), "--gpus", "0,1"])
    assert "train.gpus (TRAIN_GPUS, --gpus) is 0,1, and this machine has no GPU" in str(
        result.exception
    )
    assert not home.exists()


def test_without_nvidia_smi_torch_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == torch.cuda.device_count()


@pytest.mark.usefixtures("two_gpus")
def test_gpus_per_node_are_refused_where_the_machine_has_fewer() -> None:
    check_gpu_ids(load(environ={"GPUS_PER_NODE": "2"}), WORKERS)
    check_gpu_ids(load(environ={"GPUS_PER_NODE": "8"}), ("engine", "gateway"))
    words = "train.launch.gpus_per_node (GPUS_PER_NODE) is 8, and this machine has 2 GPUs"
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_gpu_ids(load(environ={"GPUS_PER_NODE": "8"}), WORKERS)
