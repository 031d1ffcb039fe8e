"""Recipes as their owner runs them: a script, its environment, and a folder that is none of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from openclaw_rl.common.sockets import free_port
from openclaw_rl.settings.load import to_environment
from openclaw_rl.supervisor.subprocess_system import scratch_config

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "recipes"
CAPITALS = {"France": "Paris", "Spain": "Madrid", "Italy": "Rome", "Austria": "Vienna"}


def talks(file: Path) -> Path:
    """Conversations with praise and complaints: scores and hints for every method."""
    rows = []
    for number, (land, city) in enumerate(CAPITALS.items()):
        long = number % 2 == 1
        answer = (
            f"Certainly. The capital of {land} is {city}. I remain at your disposal."
            if long
            else f"Yep: {city}."
        )
        said = (
            "That is too long. Please keep it short."
            if long
            else "Perfect, nice and short, thanks!"
        )
        turn = {
            "type": "main",
            "prompt": f"What is the capital of {land}?",
            "response": answer,
            "next_state": said,
        }
        rows.append(json.dumps({"session_id": f"talk-{number}", "turns": [turn]}))
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


def environment(folder: Path, **more: str) -> dict[str, str]:
    """What a login shell has, and `more`. `folder`: its home folder, so nothing of ours is read."""
    beside = Path(sys.executable).parent
    handed = to_environment(scratch_config(folder))
    kept = {name: handed[name] for name in ("LANG", "TMPDIR", "OMP_WAIT_POLICY") if name in handed}
    return (
        kept
        | {"PATH": f"{beside}{os.pathsep}{os.defpath}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
        | more
    )


def script(path: str | Path, *words: str, folder: Path, **variables: str) -> str:
    """Run to its end in `folder`; what it said. Fails with that when it fails."""
    done = subprocess.run(
        ["bash", str(RECIPES / path), *words],
        cwd=folder,
        env=environment(folder, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (
        f"{path}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    )
    return done.stdout + done.stderr


def trained(
    path: str | Path,
    *words: str,
    folder: Path,
    name: str,
    steps: int | None = None,
    **variables: str,
) -> Path:
    """Run a script with its documented environment on the starter policy: the checkpoint that it leaves.

    `steps`: of its whole line, after which it ends; else when all is trained on.
    """
    shown: Mapping[str, str] = {
        "MODEL_PATH": "starter",
        "DATA_PATH": "talks.jsonl",
        "CKPT_SAVE_DIR": f"{name}-checkpoints",
        "OPENCLAW_HOME": f"{name}-home",
    }
    ends = [] if steps is None else ["--set", f"train.max_steps={steps}"]
    script(path, *words, *ends, folder=folder, **(dict(shown) | variables))
    return (folder / f"{name}-checkpoints" / "checkpoint-latest").resolve(strict=True)


__all__ = ["RECIPES", "ROOT", "environment", "free_port", "script", "talks", "trained"]
