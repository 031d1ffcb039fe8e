"""Each script of the personal methods, with its documented environment, on the starter policy."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.external.recipes.running import RECIPES, environment, free_port, script, talks, trained

from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings import aliases
from openclaw_rl.settings.load import STARTER, load_all
from openclaw_rl.supervisor.subprocess_system import (
    SubprocessSystem,
    is_ready,
    post_json,
    scratch_config,
)
from openclaw_rl.train.resume import resolve_base

pytestmark = pytest.mark.timeout(900)
Checkpoints = dict[str, Path]
SETTINGS = sorted(RECIPES.rglob("*.yaml"))
SCRIPTS = sorted(RECIPES.rglob("*.sh"))
FIREWORKS = RECIPES / "deploy_to_fireworks.sh"


def adapters(folder: Path) -> Checkpoints:
    """binary, then opd, then combine, each from what the one before left; LoRA asked for in three spellings."""
    first = trained("openclaw-rl/run_binary_rl.sh", folder=folder, name="a1", USE_LORA="true")
    second = trained(
        "openclaw-opd/run_opd_training.sh",
        folder=folder,
        name="a2",
        LORA_ARGS="--use-lora --lora-rank 16 --lora-alpha 32",
        RESUME_CKPT=str(first),
    )
    combine = "openclaw-combine/run_combine_training.sh"
    third = trained(
        combine, "--lora", "--resume-from-checkpoint", str(second), folder=folder, name="a3"
    )
    return {"a1": first, "a2": second, "a3": third}


def whole(folder: Path) -> Checkpoints:
    """The same over all weights, and the adapter's script beside it."""
    lora = trained(
        "openclaw-rl/run_qwen3_7b_lora_openclaw_rl.sh",
        folder=folder,
        name="w0",
        steps=1,
        LORA_RANK="4",
    )
    first = trained("openclaw-rl/run_qwen3_7b_openclaw_rl.sh", folder=folder, name="w1", steps=1)
    resume = {"RESUME_CKPT": str(first)}
    second = trained(
        "openclaw-opd/run_qwen3_7b_openclaw_opd.sh", folder=folder, name="w2", steps=2, **resume
    )
    combine = "openclaw-combine/run_qwen3_7b_openclaw_combine.sh"
    third = trained(
        combine, "--resume-from-checkpoint", str(second), folder=folder, name="w3", steps=3
    )
    return {"w0": lora, "w1": first, "w2": second, "w3": third}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """What every script left, by the name of its run."""
    folder = tmp_path_factory.mktemp("any folder")
    talks(folder / "talks.jsonl")
    with ThreadPoolExecutor(2) as pool:
        chains = [pool.submit(adapters, folder), pool.submit(whole, folder)]
        return chains[0].result() | chains[1].result()


def note(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads((checkpoint / "checkpoint.json").read_text()))


def test_every_script_leaves_a_checkpoint_of_its_method(left: Checkpoints) -> None:
    methods = {name: note(path)["method"] for name, path in left.items()}
    chain = ("binary", "opd", "combine")
    assert methods == {"w0": "binary"} | dict(zip(("a1", "a2", "a3"), chain, strict=True)) | dict(
        zip(("w1", "w2", "w3"), chain, strict=True)
    )
    adapter = {name: (path / "adapter_config.json").exists() for name, path in left.items()}
    assert adapter == {name: name[0] == "a" or name == "w0" for name in left}
    assert json.loads((left["w0"] / "adapter_config.json").read_text())["r"] == 4


def test_binary_then_opd_then_combine_go_on_from_one_another(left: Checkpoints) -> None:
    for chain in (("a1", "a2", "a3"), ("w1", "w2", "w3")):
        steps = [note(left[name])["step"] for name in chain]
        assert steps[0] < steps[1] < steps[2]


def test_what_they_leave_is_served(left: Checkpoints, tmp_path: Path) -> None:
    """An adapter as an adapter of its base, whole weights as a model."""

    def answered(name: str) -> str:
        config = resolve_base(scratch_config(tmp_path / name, {"model.path": str(left[name])}))
        with SubprocessSystem(config, command="serve") as system:
            said = [{"role": "user", "content": "What is the capital of Spain?"}]
            reply = post_json(
                system, "/v1/chat/completions", {"model": "openclaw", "messages": said}
            )
        return str(reply["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(2) as pool:
        assert all("Madrid" in words for words in pool.map(answered, ("a3", "w3")))


def test_fireworks_trains_nothing_and_the_line_says_what_does(tmp_path: Path) -> None:
    words = ["--gpus", "8", "--method", "combine"]
    done = subprocess.run(
        ["bash", str(FIREWORKS), *words],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0, done.stdout) == (True, "")
    (line,) = done.stderr.splitlines()
    assert "nothing is trained at Fireworks" in line
    named = [word.strip("(),.") for word in line.split() if word.startswith(("docs/", "recipes/"))]
    assert named
    assert all((RECIPES.parent / name).exists() for name in named)


@pytest.mark.parametrize(
    "file", [f for f in SETTINGS if f.parent.name != "openclaw-test"], ids=lambda f: f.name
)
def test_every_settings_file_loads_and_sets_what_it_is_named_for(file: Path) -> None:
    loaded = load_all(file=file, environ={})
    assert all(source == f"{file}: {key}" for key, source in loaded.sources.items()), (
        "current names of the settings"
    )
    config = loaded.config
    assert file.stem.startswith(config.train.method)
    assert config.train.finetune == ("lora" if file.stem.endswith("_lora") else "full")


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda f: f.name)
def test_scripts_are_thin(file: Path) -> None:
    """One call out, no path of a machine, no end to other programs."""
    text = file.read_text()
    assert "set -euo pipefail" in text
    calls = [line for line in text.splitlines() if line.strip().startswith(("exec ", "echo "))]
    assert sum(line.strip().startswith("exec ") for line in calls) <= 1
    assert not any(word in text for word in ("kill", "/home/", "/root", "sudo", "eval "))
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0


def test_every_variable_of_a_readme_is_known() -> None:
    """And every script is named in the README of its folder."""
    known = {*aliases.by_form("environment"), *aliases.ARGUMENTS}
    for folder in sorted({file.parent for file in SETTINGS}):
        readme = (folder / "README.md").read_text()
        assert all(
            script.name in readme for script in folder.glob("*.sh") if not script.is_symlink()
        )
        rows = [line.split("`")[1::2] for line in readme.splitlines() if line.startswith("| `")]
        names = {name for row in rows for name in row if name.isupper() and "_" in name}
        assert len(names) >= 4
        assert names <= known


def test_without_data_it_serves_and_says_where(tmp_path: Path) -> None:
    """And the size in a script's name is a default that MODEL_PATH outranks; flags are forwarded."""
    port = free_port()
    process = subprocess.Popen(
        [
            "bash",
            str(RECIPES / "openclaw-rl/run_qwen3_7b_lora_openclaw_rl.sh"),
            "--port",
            str(port),
            "--with-parent",
        ],
        cwd=tmp_path,
        env=environment(tmp_path, MODEL_PATH="starter", OPENCLAW_HOME="live"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline().endswith("starter as 'openclaw'\n")
        said = next(line for line in process.stderr if "listening at" in line)
        assert said.endswith(f"listening at http://127.0.0.1:{port}/v1\n")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_judge_of_its_own_from_the_environment_is_asked(tmp_path: Path) -> None:
    """JUDGE_MODEL_PATH through a script: in `config show`, and in the system that the script starts."""
    judge, recipe = tmp_path / "judge model", RECIPES / "openclaw-rl"
    shutil.copytree(ModelFiles.from_path(STARTER).folder, judge)
    system = scratch_config(tmp_path / "live")
    more = {"MODEL_PATH": "starter", "OPENCLAW_HOME": "live", "JUDGE_MODEL_PATH": str(judge)}
    variables = environment(tmp_path, OPENCLAW_PORT=str(system.serve.port), **more)
    show = ["openclaw-rl", "config", "show", "--config", str(recipe / "binary.yaml")]
    shown = subprocess.run(
        show, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert f"  path: {judge}  # environment: JUDGE_MODEL_PATH" in shown
    assert "  kind: llm  # environment: JUDGE_MODEL_PATH" in shown
    live, log = SubprocessSystem(system), tmp_path / "live" / "logs" / "judge.log"
    words = ["--set", "judge.max_tokens=16", "--with-parent"]
    process = subprocess.Popen(
        ["bash", str(recipe / "run_binary_rl.sh"), *words],
        cwd=tmp_path,
        env=variables,
        stdin=subprocess.DEVNULL,
    )
    give_up = time.monotonic() + 240
    try:
        while not is_ready(live.base_url):
            assert process.poll() is None
            assert time.monotonic() < give_up, "no gateway came"
            time.sleep(0.5)
        said = [{"role": "user", "content": "What is the capital of Spain?"}]
        reply = post_json(live, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        said += [
            reply["choices"][0]["message"],
            {"role": "user", "content": "Perfect, nice and short, thanks!"},
        ]
        post_json(live, "/v1/chat/completions", {"model": "openclaw", "messages": said})
        # The starter's words are no vote, and the line that says so names who was asked.
        while (
            f"judge {judge} at " not in (told := log.read_text())
            or "no usable vote: expected a JSON" not in told
        ):
            assert time.monotonic() < give_up, f"nobody asked it: {told}"
            time.sleep(0.5)
    finally:
        process.terminate()
        process.wait(60)


def test_a_wrong_setting_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ENV_TYPE is refused: it chooses tasks"):
        script(
            "openclaw-rl/run_binary_rl.sh",
            folder=tmp_path,
            ENV_TYPE="terminal",
            MODEL_PATH="starter",
        )
