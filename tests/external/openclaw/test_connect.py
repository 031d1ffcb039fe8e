"""`openclaw-rl connect openclaw` and the guide's commands, on the real OpenClaw."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.external.openclaw.agent import OpenClaw
from tests.external.openclaw.rooms import model_folder

from openclaw_rl.connect import openclaw
from openclaw_rl.connect.json5 import parse, set_value
from openclaw_rl.settings.load import Config, from_flat


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folder = str(model_folder(tmp_path / "model"))
    return from_flat({"home": str(tmp_path), "model.path": folder, "serve.port": 8123, "serve.api_key": "sk-1"})


def test_openclaw_reads_what_is_written(env: Path, config: Config, tmp_path: Path) -> None:
    agent = OpenClaw(env, tmp_path / "openclaw", base_url="http://127.0.0.1:1/v1", key="old")
    text = set_value(agent.config_file.read_text(), ["models", "providers"], {}).replace("{", "{ // mine", 1)
    agent.config_file.write_text(text)
    openclaw.write_settings(config, agent.config_file)
    assert "// mine" in agent.config_file.read_text()
    agent.command("config", "validate")
    agent.command("models", "set", "openclaw-rl/openclaw")
    written = parse(agent.config_file.read_text()).value
    assert written["models"]["providers"]["openclaw-rl"] == openclaw.provider_entry(config)
    assert "openclaw-rl/openclaw" in agent.command("models", "list")


def test_the_plugin_is_installed_as_its_readme_says(env: Path, plugin: Path, tmp_path: Path) -> None:
    agent = OpenClaw(env, tmp_path / "openclaw", base_url="http://127.0.0.1:1/v1", key="old")
    agent.command("plugins", "install", "--link", "--force", "--accept-capabilities", str(plugin))
    shown = agent.command("plugins", "inspect", "rl-training-headers", "--runtime")
    assert "openclaw-rl" in shown
    assert "model_call_started" in shown
    settings = {"rollout_endpoint": "http://localhost:8000/rollout", "training_mode": "async", "session_tracking": True}
    text = agent.config_file.read_text()
    agent.config_file.write_text(set_value(text, ["plugins", "entries", "rl-training-headers", "config"], settings))
    agent.command("config", "validate")
    wrong = set_value(text, ["plugins", "entries", "rl-training-headers", "config"], {"training_mode": "never"})
    agent.config_file.write_text(wrong)
    assert "training_mode" in agent.command("config", "validate", check=False)
