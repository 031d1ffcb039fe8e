"""slime's `train.py`, as far as the adapter is in it: its arguments, and the order in which it calls our functions."""

from __future__ import annotations

import importlib
import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from openclaw_rl.other_trainers.slime.interface import HOOK_PATH, ROLLOUT_PATH


def slime_arguments(home: Path, shared: Path, **changed: Any) -> Namespace:
    """Arguments under the names that slime 0.3.1 gives them (`slime/utils/arguments.py`)."""
    values = {
        "openclaw_home": str(home),
        "rollout_function_path": ROLLOUT_PATH,
        "custom_update_weight_post_write_path": HOOK_PATH,
        "update_weight_mode": "full",
        "update_weight_transport": "disk",
        "update_weight_disk_dir": str(shared),
        "update_weights_interval": 1,
        "n_samples_per_prompt": 1,
        "global_batch_size": 4,
        "advantage_estimator": "grpo",
        "rewards_normalization": False,
        "custom_reward_post_process_path": None,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "use_rollout_logprobs": True,
        "use_opd": False,
        "opd_type": None,
        "rm_url": None,
    }
    return Namespace(**values | changed)


def write_weights(folder: Path, seed: int) -> None:
    """Write a small model in Hugging Face's layout, in two files as slime does for a larger one."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    for n in (1, 2):
        tensors = {f"layers.{n}.weight": draw.normal(size=(4, 3)).astype(np.float32)}
        save_file(tensors, folder / f"model-0000{n}-of-00002.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))


class SlimeRun:
    """One run of slime. Its weights are numbered from 1, which are those that it begins with."""

    def __init__(self, arguments: Namespace) -> None:
        self.arguments, self._count, self._rollouts = arguments, 0, 0

    def update_weights(self, seed: int) -> None:
        """Write the weights to disk and call the hook, as `UpdateWeightFromDisk.update_weights`."""
        self._count += 1
        folder = Path(self.arguments.update_weight_disk_dir) / f"weight_v{self._count:06d}"
        write_weights(folder, seed)
        try:
            _load(self.arguments.custom_update_weight_post_write_path)(
                self.arguments, str(folder), []
            )
        finally:
            shutil.rmtree(folder)

    def generate(self, *, evaluation: bool = False) -> list[Any]:
        """Ask for a rollout and flatten it, as `RolloutManager._get_rollout_data`."""
        output = _load(self.arguments.rollout_function_path)(
            self.arguments, self._rollouts, None, evaluation=evaluation
        )
        self._rollouts += 1
        return [sample for group in output.samples for sample in group]


def _load(path: str) -> Any:
    from slime.utils.misc import load_function

    importlib.invalidate_caches()
    return load_function(path)
