"""The example cluster file and the jobs of its guide, by Ray's schema and command line, and ours. `make test-ray`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.dashboard.modules.job.cli import submit
from ray.scripts.scripts import start
from tests.external.recipes.running import ROOT

from openclaw_rl.cli.load_config import load_config
from openclaw_rl.cli.main import cli
from openclaw_rl.settings.load import Config

FILE = ROOT / "examples" / "ray" / "cluster.yaml"
CLUSTER: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
TYPES: dict[str, Any] = CLUSTER["available_node_types"]
GUIDE = (ROOT / "docs" / "guides" / "many_gpus.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(ray job submit .*?)```", GUIDE, re.DOTALL)
KEY = "a-key-that-only-this-test-uses"


def parse_job(command: str) -> dict[str, Any]:
    """Return the options of a `ray job submit` command as Ray reads them."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["ray", "job", "submit"]
    return dict(submit.make_context("submit", words[3:]).params)


JUDGE, RECIPE, ROLLOUTS = (parse_job(command) for command in COMMANDS)


def places_of(job: dict[str, Any]) -> list[str]:
    """Return the node types on which Ray may place a job that asks for resources."""
    wanted = json.loads(job["entrypoint_resources"]) | {"GPU": job["entrypoint_num_gpus"] or 0}
    return [
        name
        for name, kind in TYPES.items()
        if all(kind["resources"].get(key, 0) >= n for key, n in wanted.items())
    ]


def load_entrypoint(
    job: dict[str, Any], name: str, patch: pytest.MonkeyPatch
) -> tuple[list[str], Config]:
    """Return the entrypoint of a job without its variables, and the settings that the command `name` gets from it."""
    words = list(job["entrypoint"])
    assert words.pop(0) == "env"
    patch.setenv("OPENCLAW_API_KEY", KEY)
    while "=" in words[0]:
        patch.setenv(*words.pop(0).split("=", 1))
    options = dict(cli.commands[name].make_context(name, words[2:]).params)
    shared = ("file", "sets", "words", "home", "model_path", "method", "host", "port", "backend")
    return words, load_config(
        strict=True, **{key: value for key, value in options.items() if key in shared}
    )


def ray_start_words() -> Iterator[list[str]]:
    for command in CLUSTER["head_start_ray_commands"] + CLUSTER["worker_start_ray_commands"]:
        if " ray start " in command:
            yield shlex.split(command.partition(" ray start ")[2])


def test_ray_accepts_the_cluster_file() -> None:
    whole = prepare_config(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    validate_config(whole)
    most = sum(
        kind.get("max_workers", 0)
        for name, kind in TYPES.items()
        if name != CLUSTER["head_node_type"]
    )
    assert whole["max_workers"] == most
    for source in CLUSTER["file_mounts"].values():
        assert source.startswith("~") or (ROOT / source / "pyproject.toml").is_file()
    head, worker = (start.make_context("start", words).params for words in ray_start_words())
    assert (head["head"], head["dashboard_host"], worker["address"]) == (
        True,
        "127.0.0.1",
        "$RAY_HEAD_IP:6379",
    )


def test_each_job_has_the_place_that_the_guide_says() -> None:
    assert places_of(JUDGE) == ["judge"]
    assert places_of(ROLLOUTS) == ["rollouts"]
    assert (RECIPE["entrypoint_resources"], RECIPE["entrypoint_num_gpus"]) == (None, None), (
        "on the head"
    )
    assert JUDGE["entrypoint"][0].startswith("/home/ubuntu/vllm/bin/")
    assert any("~/vllm/bin/python vllm" in command for command in CLUSTER["setup_commands"])


def test_the_recipe_gets_its_settings_and_the_ranks_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    words, config = load_entrypoint(RECIPE, "up", monkeypatch)
    assert words[0] == "bash"
    assert (ROOT / words[1]).is_file()
    train, ranks = config.train, TYPES["ranks"]
    assert (train.ranks, train.launch.launcher, train.finetune) == (
        ranks["max_workers"],
        "ray",
        "lora",
    )
    assert ranks["resources"]["CPU"] >= train.threads
    assert ranks["resources"]["GPU"] == 1
    assert TYPES[CLUSTER["head_node_type"]]["resources"]["GPU"] == 0, (
        "the engine's GPU is not for ranks"
    )
    assert (config.serve.host, config.engine.backend, config.home) == (
        "0.0.0.0",
        "vllm",
        "/openclaw",
    )
    judge = list(JUDGE["entrypoint"])
    assert config.judge.base_url == f"http://JUDGE:{judge[judge.index('--port') + 1]}/v1"
    assert config.judge.model == judge[judge.index("serve") + 1]


def test_rollouts_find_the_gateway_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    words, config = load_entrypoint(ROLLOUTS, "rollout", monkeypatch)
    assert words[:2] == ["openclaw-rl", "rollout"]
    assert config.serve.url == "http://HEAD:8000"
    assert config.rollout.function_path is not None
    assert (ROOT / config.rollout.function_path).is_file()
