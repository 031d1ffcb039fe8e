"""`openclaw-rl connect openclaw` and the guide's commands, on the real OpenClaw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.external.openclaw.agent import OpenClaw
from tests.external.openclaw.scripted_system import model_folder

from openclaw_rl.connect import openclaw
from openclaw_rl.settings.load import Config, from_flat


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folder = str(model_folder(tmp_path / "model"))
    return from_flat(
        {"home": str(tmp_path), "model.path": folder, "serve.port": 8123, "serve.api_key": "sk-1"}
    )


@pytest.mark.parametrize("renamed", [False, True])
def test_openclaw_adds_the_entry(
    env: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    agent = OpenClaw(env, tmp_path / "openclaw", base_url="http://127.0.0.1:1/v1", key="old")
    old = agent.config_file.read_text().replace(
        '"id": "openclaw"', '"id": "earlier"' if renamed else '"id": "openclaw"'
    )
    agent.config_file.write_text(old.replace('"apiKey"', '"headers": {"x-mine": "1"}, "apiKey"'))
    node = env / "node" / "node_modules" / "node" / "bin"
    monkeypatch.setenv("PATH", f"{env / 'node_modules' / '.bin'}:{node}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(agent.home))
    openclaw.apply_patch(openclaw.settings_snippet(config), agent.config_file)
    agent.command("config", "validate")
    agent.command("models", "set", "openclaw-rl/openclaw")
    written: Any = json.loads(agent.config_file.read_text())
    entry = written["models"]["providers"]["openclaw-rl"]
    assert entry == {"headers": {"x-mine": "1"}} | openclaw.provider_entry(config)
    assert written["gateway"]["port"] == agent.port
    assert "openclaw-rl/openclaw" in agent.command("models", "list")


def test_the_plugin_is_installed_as_its_readme_says(
    env: Path, plugin: Path, tmp_path: Path
) -> None:
    agent = OpenClaw(env, tmp_path / "openclaw", base_url="http://127.0.0.1:1/v1", key="old")
    agent.command("plugins", "install", "--link", "--force", "--accept-capabilities", str(plugin))
    shown = agent.command("plugins", "inspect", "rl-training-headers", "--runtime")
    assert "openclaw-rl" in shown
    assert "model_call_started" in shown
    settings = {
        "rollout_endpoint": "http://localhost:8000/rollout",
        "training_mode": "async",
        "session_tracking": True,
    }
    written: Any = json.loads(agent.config_file.read_text())
    entry = written["plugins"]["entries"]["rl-training-headers"]
    entry["config"] = settings
    agent.config_file.write_text(json.dumps(written))
    agent.command("config", "validate")
    entry["config"] = {"training_mode": "never"}
    agent.config_file.write_text(json.dumps(written))
    assert "training_mode" in agent.command("config", "validate", check=False)
