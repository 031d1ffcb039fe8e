"""GitHub's Copilot CLI, unmodified, with a provider of its own: each type of provider that it knows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.external.clients.conftest import Talk, call
from tests.serve.conftest import KEY, Start

CONTEXT = 400_000  # tokens: its instructions and tools are long, and the test model's tokens short
NOTES = "The river is the Tiber."
RIVER = "The Tiber flows through Rome."
QUESTION = "Which river do the notes name?"
# The client asks for temperature 0 and a cut distribution.
TRAINABLE = {"temperature": 1, "top_p": 1}
PROVIDERS: dict[str, Mapping[str, str]] = {
    "azure": {"TYPE": "azure", "BASE_URL": "{url}"},
    "azure with a version": {
        "TYPE": "azure",
        "BASE_URL": "{url}",
        "AZURE_API_VERSION": "2024-10-21",
    },
    "azure responses": {"TYPE": "azure", "BASE_URL": "{url}", "WIRE_API": "responses"},
    "openai": {"TYPE": "openai", "BASE_URL": "{url}/v1"},
    "responses": {"TYPE": "openai", "BASE_URL": "{url}/v1", "WIRE_API": "responses"},
    "anthropic": {"TYPE": "anthropic", "BASE_URL": "{url}"},
}


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Path:
    folder = Path(request.config.getoption("--copilot-env")).resolve()
    path = folder / "node_modules" / ".bin" / "copilot"
    if not path.exists():
        pytest.fail(f"{path}: Copilot CLI is not installed there; `make test-clients` does it")
    return path


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_tool_is_called_and_its_result_is_linked(
    provider: str, start: Start, program: Path, tmp_path: Path
) -> None:
    settings = {"engine.max_context": CONTEXT, "serve.sampling_override": TRAINABLE}
    talk = Talk(start(settings=settings, context_length=CONTEXT))
    work = tmp_path / "work"
    work.mkdir()
    notes = work / "notes.txt"
    notes.write_text(NOTES)
    tokenizer = talk.site.renderer.tokenizer.backend

    def reply(prompt: Sequence[int], version: int) -> Sequence[int]:
        text = tokenizer.decode(list(prompt[-4000:]), skip_special_tokens=False)
        said = RIVER if NOTES in text else call("view", json.dumps({"path": str(notes)}))
        return talk.site.script.say(said)

    talk.site.engine.reply = reply
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "COPILOT_OFFLINE": "true",
        "COPILOT_MODEL": "openclaw",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(CONTEXT - 20_000),
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": "2000",
    }
    for name, value in PROVIDERS[provider].items():
        environment[f"COPILOT_PROVIDER_{name}"] = value.format(url=talk.site.url)
    done = subprocess.run(
        [program, "-p", QUESTION, "--allow-all-tools", "--silent", "--no-auto-update"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert RIVER in done.stdout
    rows = [row for row in talk.collected() if row[0].reply is not None]
    answers = [row for row in rows if row[1].parent is not None]
    assert len(answers) == 1
    called = next(row for row in rows if row[1].id == answers[0][1].parent)
    reaction = called[2]
    assert reaction is not None
    assert NOTES in json.dumps(reaction.messages)
    assert called[0].request.sampling.untrainable_reason() is None
