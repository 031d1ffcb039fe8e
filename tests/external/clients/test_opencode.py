"""opencode, unmodified, with a compaction: at its own limit, and after the gateway refused a prompt."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.external.clients.conftest import Link, Talk, call
from tests.serve.conftest import KEY, Start

from openclaw_rl.common.message_hash import visible_text

PARIS = "The capital of France is Paris."
RIVER = "The Tiber flows through the city of Rome."
GOES_ON = "I have read the notes, and nothing is left to do."
LENGTH = "The Tiber is 405 kilometres long."
SUMMARY = "## Objective\n- The user asks about capitals and rivers."
TITLE = "Capitals and rivers"
NOTES = (
    "The river is the Tiber.\n" + "The water is cold and clear.\n" * 600
)  # some 15 000 of the test model's tokens
MODEL_LIMIT = 33_000  # tokens: opencode's first prompt has some 23 000 of the test model's tokens
GATEWAY_LIMIT = 44_000
FORGOTTEN = "You forgot the length."


class OpenCode:
    """opencode in a folder of its own, talked to by one command for each message of the person."""

    def __init__(self, program: Path, home: Path, url: str, context: int) -> None:
        self.work = home / "work"
        self.work.mkdir()
        (self.work / "notes.txt").write_text(NOTES)
        model = {"name": "openclaw", "limit": {"context": context, "output": 1000}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "OpenClaw-RL",
            "options": {"baseURL": f"{url}/v1", "apiKey": "{env:OPENCLAW_API_KEY}"},
            "models": {"openclaw": model},
        }
        config = {
            "model": "openclaw-rl/openclaw",
            "provider": {"openclaw-rl": provider},
            "snapshot": False,
        }
        self._program, self._asked = program, False
        self._environment = {
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "OPENCLAW_API_KEY": KEY,
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }

    def ask(self, text: str) -> str:
        """Send one message. Returns the text of the last reply that opencode showed."""
        done = subprocess.run(
            [self._program, "run", "--format", "json", *(["--continue"] if self._asked else [])],
            cwd=self.work,
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self._asked = True
        events = [json.loads(line) for line in done.stdout.splitlines()]
        shown = [str(event["part"]["text"]) for event in events if event["type"] == "text"]
        assert shown, (
            done.stdout + done.stderr
        )  # the exit code is 1 also after an overflow that a compaction mended
        return shown[-1]


def script(talk: Talk, notes: Path) -> None:
    """Reply to each prompt by what it asks, because opencode asks for a title beside the first reply."""
    replies = {
        "You are a title generator": TITLE,
        "You are a context summarization agent": SUMMARY,
        "capital of France": PARIS,
        "Which river": call("read", json.dumps({"filePath": str(notes)})),
        "The river is the Tiber": RIVER,
        "Continue if you have next steps": GOES_ON,
        FORGOTTEN: LENGTH,
    }
    tokenizer = talk.site.renderer.tokenizer.backend

    def reply(prompt: Sequence[int], version: int) -> Sequence[int]:
        parts = tokenizer.decode(list(prompt), skip_special_tokens=False).split("<|im_start|>")
        asked = parts[1][:200] + parts[-2]  # the system message's task, and the last message
        said = next(said for words, said in replies.items() if words in asked)
        return talk.site.script.say(said)

    talk.site.engine.reply = reply


def links(talk: Talk) -> tuple[dict[str, Link], dict[str, int]]:
    """Return the links by the text of the reply ("" for a call), and the positions that name their parents."""
    replies = [visible_text(e.reply.message) for e, _, _ in talk.collected() if e.reply is not None]
    return dict(zip(replies, talk.links(), strict=True)), {
        text: at for at, text in enumerate(replies)
    }


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Path:
    path = (
        Path(request.config.getoption("--opencode-env")).resolve()
        / "node_modules"
        / ".bin"
        / "opencode"
    )
    if not path.exists():
        pytest.fail(f"{path}: opencode is not installed there; `make test-clients` does it")
    return path


def test_opencode_compacts_by_its_own_limit(talk: Talk, program: Path, tmp_path: Path) -> None:
    """It goes on by itself behind its summary, so the person reacts to what it said then, not to what it hides."""
    agent = OpenCode(program, tmp_path, talk.site.url, context=MODEL_LIMIT)
    script(talk, agent.work / "notes.txt")
    assert agent.ask("What is the capital of France?") == PARIS
    assert agent.ask("Which river do the notes name?") == GOES_ON
    assert agent.ask(FORGOTTEN) == LENGTH
    found, at = links(talk)
    result = found.pop("")
    assert (result.parent, result.how) == (at[PARIS], "exact")
    assert result.reaction is not None
    assert "The river is the Tiber." in result.reaction[0]
    assert found == {
        TITLE: Link(side=True),
        PARIS: Link(None, ("Which river do the notes name?",), "exact"),
        RIVER: Link(at[""]),
        SUMMARY: Link(side=True),
        GOES_ON: Link(at[SUMMARY], (FORGOTTEN,), "exact"),
        LENGTH: Link(at[GOES_ON]),
    }
    rows = talk.collected()
    assert len({turn.session for _, turn, _ in rows}) == 1
    assert all(exchange.request.sampling.untrainable_reason() is None for exchange, _, _ in rows)


def test_opencode_compacts_when_the_gateway_refuses_a_prompt(
    start: Start, program: Path, tmp_path: Path
) -> None:
    """It sends the message again behind its summary. The message reacts to the reply that the summary hides."""
    talk = Talk(start(settings={"engine.max_context": GATEWAY_LIMIT}, context_length=GATEWAY_LIMIT))
    agent = OpenCode(program, tmp_path, talk.site.url, context=10 * GATEWAY_LIMIT)
    script(talk, agent.work / "notes.txt")
    assert agent.ask("Which river do the notes name?") == RIVER
    words = " ".join([FORGOTTEN] * 700)  # some 12 000 tokens
    assert agent.ask(words) == LENGTH
    found, at = links(talk)
    assert found[RIVER] == Link(at[""], (words,), "distinctive")
    assert found[SUMMARY] == Link(side=True)
    assert found[LENGTH] == Link(at[SUMMARY])
    assert len({turn.session for _, turn, _ in talk.collected()}) == 1
