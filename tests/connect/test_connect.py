"""`openclaw-rl connect`: what is printed can be pasted; OpenClaw itself edits its settings."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.render.model_folders import make

from openclaw_rl.cli import connect as commands
from openclaw_rl.cli.main import cli
from openclaw_rl.connect import claude_code_codex, openclaw
from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config, from_flat

KEY = "sk-here"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    model = make(tmp_path / "model", "chatml")
    context = {"model_type": "qwen3", "max_position_embeddings": 32768}
    (model / "config.json").write_text(json.dumps(context))
    return from_flat(
        {"home": str(tmp_path), "model.path": str(model), "serve.port": 8123, "serve.api_key": KEY}
    )


def connect(config: Config, *arguments: str) -> Result:
    sets = {
        "home": config.home,
        "model.path": config.model.path,
        "serve.port": 8123,
        "serve.api_key": KEY,
    }
    given = [f"--set={k}={v}" for k, v in sets.items()]
    return CliRunner().invoke(cli, ["connect", *arguments, *given], catch_exceptions=False)


def test_the_entry_is_of_the_served_model(config: Config) -> None:
    done = connect(config, "openclaw")
    entry = json.loads(done.stdout)["models"]["providers"]["openclaw-rl"]
    assert (entry["baseUrl"], entry["apiKey"]) == ("http://127.0.0.1:8123/v1", KEY)
    assert entry["api"] == "openai-completions"
    (model,) = entry["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("openclaw", 32768, 8192)
    assert "Next: openclaw models set openclaw-rl/openclaw" in done.stderr


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which an `openclaw` on PATH records what it is given; it fails if the folder has a file `fail`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "openclaw"
    program.write_text(
        f"""#!/bin/sh
cd {shlex.quote(str(folder))}
printf '%s\\n' "$@" > arguments
cat > stdin
printf %s "$OPENCLAW_CONFIG_PATH" > file
printf %s "$OPENCLAW_API_KEY" > key
if [ -e fail ]; then echo "config is invalid" >&2; exit 3; fi
echo "Applied 4 config update(s)."
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("OPENCLAW_API_KEY", KEY)
    return folder


def test_openclaw_itself_adds_the_entry(config: Config, recorded: Path) -> None:
    done = connect(config, "openclaw", "--write")
    assert done.exit_code == 0
    assert (recorded / "arguments").read_text().split() == [
        *("config", "patch", "--stdin", "--replace-path", "models.providers.openclaw-rl.models")
    ]
    patch = json.loads((recorded / "stdin").read_text())
    assert patch == {"models": {"providers": {"openclaw-rl": openclaw.provider_entry(config)}}}
    assert (recorded / "file").read_text() == ""
    assert (recorded / "key").read_text() == "", "our own variables are not for other programs"
    assert done.stdout == ""
    assert "Applied 4 config update(s)." in done.stderr
    assert "Next: openclaw models set openclaw-rl/openclaw" in done.stderr


def test_another_file_is_named_to_openclaw(config: Config, recorded: Path, tmp_path: Path) -> None:
    assert connect(config, "openclaw", "--into", str(tmp_path / "other.json")).exit_code == 0
    assert (recorded / "file").read_text() == str(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_a_refusal_is_shown_and_the_entry_is_printed(
    config: Config, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (recorded / "fail").touch()
    with pytest.raises(
        OpenClawError, match=r"exit code 3:\nconfig is invalid\nNothing was changed\. Add the entry"
    ):
        commands.connect_openclaw(config, write=True, into=None)
    assert capsys.readouterr().out.strip() == openclaw.settings_snippet(config)


def test_without_openclaw_the_entry_is_printed(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(OpenClawError, match=r"not on PATH.*npm install.*by hand"):
        commands.connect_openclaw(config, write=True, into=None)
    assert capsys.readouterr().out.strip() == openclaw.settings_snippet(config)


def test_a_context_that_is_too_small_is_reported(config: Config) -> None:
    small = config.model_copy(
        update={"engine": config.engine.model_copy(update={"max_context": 4096})}
    )
    assert openclaw.context_warning(config) is None
    assert "context is 4096 tokens" in (openclaw.context_warning(small) or "")


def test_a_missing_key_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OpenClawError, match="no key yet"):
        openclaw.provider_entry(from_flat({"home": str(tmp_path)}))


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:1"), ("::1", "http://[::1]:1")]
)
def test_the_address_is_one_that_can_be_reached(host: str, url: str) -> None:
    assert (
        from_flat({"serve.host": host, "serve.port": 1, "serve.api_key": "k" * 16}).serve.url == url
    )


def test_claude_code_gets_an_environment(config: Config) -> None:
    lines = connect(config, "claude-code").stdout.splitlines()
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8123" in lines
    assert f"export ANTHROPIC_AUTH_TOKEN={KEY}" in lines


def test_codex_gets_a_provider(config: Config) -> None:
    table = tomllib.loads(connect(config, "codex").stdout)
    provider = table["model_providers"][table["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8123/v1", "responses")
    assert KEY not in str(table)


def test_a_name_with_a_quote_is_still_toml(config: Config) -> None:
    odd = config.model_copy(
        update={"model": config.model.model_copy(update={"name": 'my "own"\\\x7f'})}
    )
    assert tomllib.loads(claude_code_codex.codex_settings(odd))["model"] == 'my "own"\\\x7f'


def test_the_next_command_names_the_home_that_was_meant(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.connect_codex(config)
    assert f"$(openclaw-rl key --home {config.home})" in capsys.readouterr().err


def test_the_function_for_open_webui_has_address_and_key(config: Config) -> None:
    done = connect(config, "open-webui")
    assert done.exit_code == 0
    module: dict[str, object] = {"__name__": "function"}
    exec(compile(done.stdout, "function", "exec"), module)
    assert (module["GATEWAY_URL"], module["API_KEY"]) == ("http://127.0.0.1:8123", KEY)
    assert '"X-OpenWebUI-Message-Id": "{{MESSAGE_ID}}"' in done.stderr


def test_thumbs_of_open_webui_as_requests(config: Config) -> None:
    module: dict[str, Any] = {"__name__": "function"}
    exec(compile(connect(config, "open-webui").stdout, "function", "exec"), module)
    message = {"content": '<details type="reasoning">hm</details>\nHello.', "role": "assistant"}
    stored = {
        "id": "f1",
        "user_id": "u1",
        "data": {"rating": "-1", "reason": "not_helpful", "comment": "Why?"},
        "meta": {"message_id": "m1", "chat_id": "c1"},
        "snapshot": {"chat": {"chat": {"history": {"messages": {"m1": message}}}}},
    }
    assert module["feedback_body"](stored) == {
        "score": -1,
        "comment": "Not helpful. Why?",
        "by": "u1",
        "idempotency_key": "open-webui-f1",
    }
    assert module["reply_matches"](stored) == [
        {"client_message_id": "m1"},
        {"text": "Hello.", "session": "c1"},
        {"text": "Hello."},
    ]
    assert module["reply_matches"]({"id": "f2", "user_id": "u1"}) == []


def test_the_app_of_slack_asks_for_reactions(config: Config) -> None:
    done = connect(config, "slack")
    manifest = json.loads(done.stdout)
    assert manifest["settings"]["event_subscriptions"]["bot_events"] == [
        "reaction_added",
        "reaction_removed",
    ]
    assert "examples/feedback/slack_relay.py" in done.stderr


@pytest.mark.parametrize(
    ("service", "missing"),
    [
        ("langfuse", "LANGFUSE_PUBLIC_KEY"),
        ("langsmith", "LANGSMITH_API_KEY"),
    ],
)
def test_keys_of_services_come_from_the_environment(
    config: Config, monkeypatch: pytest.MonkeyPatch, service: str, missing: str
) -> None:
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "LANGSMITH_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    done = connect(config, service, "--name", "thumb")
    assert done.exit_code == 2
    assert missing in done.stderr
