"""Flags in LORA_ARGS mean LoRA, in the settings and in the recipes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from openclaw_rl.settings.load import load, load_all

RECIPES = Path(__file__).parents[2] / "recipes"
FLAGS = "--lora-rank 32 --lora-alpha 64"


@pytest.mark.parametrize(
    ("environ", "finetune"),
    [
        ({"LORA_ARGS": FLAGS}, "lora"),
        ({"LORA_ARGS": f"--use-lora {FLAGS}"}, "lora"),
        ({"LORA_ARGS": FLAGS, "USE_LORA": "false"}, "full"),
        ({"LORA_ARGS": f"--use-lora false {FLAGS}"}, "full"),
        ({"LORA_ARGS": " "}, "full"),
        ({}, "full"),
    ],
)
def test_flags_in_lora_args_mean_lora_unless_a_variable_says_otherwise(
    environ: dict[str, str], finetune: str
) -> None:
    file = RECIPES / "openclaw-rl" / "binary.yaml"
    loaded = load_all(file=file, environ=environ)
    assert loaded.config.train.finetune == finetune
    assert bool(loaded.notices) == (finetune == "full" and FLAGS in environ.get("LORA_ARGS", "")), (
        "has no effect"
    )
    assert (
        load(file=file, arguments=("--use-lora", "false"), environ=environ).train.finetune == "full"
    )


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({"LORA_ARGS": FLAGS}, "binary_lora.yaml"),
        ({"LORA_ARGS": f"--use-lora {FLAGS}"}, "binary_lora.yaml"),
        ({"USE_LORA": "true"}, "binary_lora.yaml"),
        ({"LORA_ARGS": FLAGS, "USE_LORA": "false"}, "binary.yaml"),
        ({}, "binary.yaml"),
    ],
)
def test_a_recipe_uses_the_settings_of_lora(
    environ: dict[str, str], file: str, tmp_path: Path
) -> None:
    program = tmp_path / "openclaw-rl"
    program.write_text("#!/bin/sh\nprintf '%s ' \"$@\"\n")
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", str(RECIPES / "openclaw-rl" / "run_binary_rl.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["up", "--config", str(RECIPES / "openclaw-rl" / file)]
