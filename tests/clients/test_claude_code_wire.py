"""What Claude Code sends, replayed through the Anthropic SDK: the shape is that of version 2.1.197, the words are ours.

It keeps the conversation itself. Its date and notes come as a reminder beside the person's first words, its tools and
agents as a system message behind them; words typed while it works come as a system message, too. Blocks that it has
sent once may come back as a plain string, and its cache marks move with every request. Titles are asked for apart,
under the same session.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import pytest
from tests.clients.test_codex_wire import saying
from tests.serve.conftest import KEY, Site, Start
from tests.serve.test_sampled_prompts import goes_on

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.settings.load import CollectConfig
from openclaw_rl.store import turns
from openclaw_rl.types import Exchange, TurnState

SESSION = "6f1c0d52-3a62-464c-baa7-ac8136390f4c"
DEVICE = "5e" * 32
BETAS = [
    "claude-code-20250219",
    "interleaved-thinking-2025-05-14",
    "mid-conversation-system-2026-04-07",
]
REMINDER = (
    "<system-reminder>\nSome context:\n# currentDate\nToday is {day}.\n</system-reminder>\n\n"
)
TYPED = "The user sent a new message while you were working:\n{words}\n\nIMPORTANT: answer it, too."
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def tool(name: str, *keys: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {k: {"type": "string"} for k in keys},
        "additionalProperties": False,
    }
    return {"name": name, "description": f"Does {name}.", "input_schema": schema}


TOOLS = [tool("Agent", "prompt"), tool("Bash", "command", "description"), tool("Read", "file_path")]


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


@dataclass
class ClaudeCode:
    """As much of the program as the wire shows."""

    client: anthropic.Anthropic
    site: Site
    day: str = "Friday"
    typed: list[str] = field(default_factory=list)  # what the person types while the next tools run
    history: list[dict[str, Any]] = field(default_factory=list)

    def common(self, system: str) -> dict[str, Any]:
        packed = {"device_id": DEVICE, "account_uuid": "", "session_id": SESSION}
        header = "x-anthropic-billing-header: cc_version=2.1.197.437; cc_entrypoint=cli;"
        mark = {"type": "ephemeral"}
        return {
            "model": "openclaw",
            "max_tokens": 32000,
            "system": [
                text(header),
                text("You are an agent.", cache_control=mark),
                text(system, cache_control=mark),
            ],
            "metadata": {"user_id": json.dumps(packed)},
            "betas": BETAS,
            "extra_headers": {"X-Claude-Code-Session-Id": SESSION},
        }

    def title(self, said: str) -> Exchange:
        asked = (
            f"<session>\n{said}\n</session>\n\nWrite the title in the language the user wrote in."
        )
        return self._sent(
            **self.common(
                "Generate a concise title (3-7 words) that captures the goal of this coding session."
            ),
            messages=[{"role": "user", "content": [text(asked)]}],
            tools=[],
            thinking={"type": "disabled"},
            output_config={"effort": "high", "format": {"type": "json_schema", "schema": TITLE}},
        )[0]

    def ask(self, said: str) -> list[Exchange]:
        """One turn of the user: requests until a reply calls no tool. Returns their exchanges."""
        reminder = [] if self.history else [text(REMINDER.format(day=self.day))]
        self.history.append({"role": "user", "content": [*reminder, text(said)]})
        if reminder:
            self.history.append({"role": "system", "content": "Agent types: claude.\nSkills: run."})
        out: list[Exchange] = []
        while True:
            exchange, reply = self._sent(
                **self.common("You help with code."),
                messages=self._marked(),
                tools=TOOLS,
                thinking={"type": "adaptive"},
                output_config={"effort": "high"},
                context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            )
            out.append(exchange)
            self.history.append(reply)
            results = [
                self._run(block) for block in reply["content"] if block["type"] == "tool_use"
            ]
            if not results:
                return out
            self.history.append({"role": "user", "content": results})
            self.history += [
                {"role": "system", "content": TYPED.format(words=w)} for w in self.typed
            ]
            self.typed.clear()

    def _marked(self) -> list[dict[str, Any]]:
        """The cache mark stands on the last block of the user's last message; older words are strings again."""
        out = []
        last = max(n for n, m in enumerate(self.history) if m["role"] == "user")
        for n, message in enumerate(self.history):
            blocks = message["content"]
            if n == last:
                message = message | {
                    "content": [*blocks[:-1], blocks[-1] | {"cache_control": {"type": "ephemeral"}}]
                }
            elif message["role"] == "user" and len(blocks) == 1 and blocks[0]["type"] == "text":
                message = message | {"content": blocks[0]["text"]}
            out.append(message)
        return out

    def _sent(self, **body: Any) -> tuple[Exchange, dict[str, Any]]:
        with self.client.beta.messages.stream(**body) as stream:
            reply = stream.get_final_message()
        keys = ("type", "text", "thinking", "signature", "id", "name", "input")
        blocks = [{k: v for k, v in b.to_dict().items() if k in keys} for b in reply.content]
        return self.site.get(reply.id), {"role": "assistant", "content": blocks}

    @staticmethod
    def _run(block: dict[str, Any]) -> dict[str, Any]:
        done = f"ran {json.dumps(block['input'])}"
        return {
            "tool_use_id": block["id"],
            "type": "tool_result",
            "content": done,
            "is_error": False,
        }


@pytest.fixture
def program(start: Start) -> Iterator[ClaudeCode]:
    site = start(settings={"engine.max_context": 8192}, context_length=8192)
    http = anthropic.DefaultHttpxClient(
        verify=False
    )  # loading the certificates would take 20 ms of each test
    with anthropic.Anthropic(
        base_url=site.url, auth_token=KEY, max_retries=0, timeout=240, http_client=http
    ) as client:
        yield ClaudeCode(client, site)


def reactions(site: Site, *exchanges: Exchange) -> list[tuple[str, ...] | None]:
    """What the collector has found to be each one's reaction, by an unchanged history; None: nothing yet."""
    collector = Collector(site.store, CollectConfig())
    while collector.step():
        pass
    with site.store.read() as conn:
        found = [turns.current_reaction(conn, e.request.id) for e in exchanges]
    assert {r.how for r in found if r} <= {"exact"}
    return [tuple(map(message_text, r.messages)) if r else None for r in found]


def test_a_turn_with_tools_and_the_next(program: ClaudeCode) -> None:
    site = program.site
    two = f"Let me look.\n{call('Bash', command='echo  é', description='Say it')}\n{call('Read', file_path='/a.py')}"
    saying(site, two, "It printed é, and the file is short.", "You are welcome.")
    first, second = program.ask("run it and read the file")
    (third,) = program.ask("thanks, that was right")
    assert {(e.request.session, e.request.user) for e in (first, second, third)} == {
        (SESSION, DEVICE)
    }
    assert goes_on(second, first)
    assert goes_on(third, second)
    roles = ["system", "user", "user", "system", "assistant", "tool", "tool", "assistant", "user"]
    assert [m["role"] for m in third.request.messages] == roles
    assert third.request.messages[0]["content"] == "You are an agent.\nYou help with code."
    results = (
        'ran {"command": "echo  \\u00e9", "description": "Say it"}',
        'ran {"file_path": "/a.py"}',
    )
    assert reactions(site, first, second, third) == [results, ("thanks, that was right",), None]
    assert first.reply is not None
    assert site.renderer.tokenizer.backend.decode(first.reply.response_ids[:-1].tolist()) == two


def test_words_typed_while_it_works_are_a_reaction(program: ClaudeCode) -> None:
    saying(
        program.site,
        f"I look.\n{call('Read', file_path='/a.py')}",
        "As you wish, in one line.",
        "Bye.",
    )
    program.typed = ["No, the other file."]
    first, second = program.ask("what is in the file?")
    (third,) = program.ask("good")
    assert goes_on(third, second)
    said = TYPED.format(words="No, the other file.")
    assert reactions(program.site, first, second) == [
        ('ran {"file_path": "/a.py"}', said),
        ("good",),
    ]
    assert second.request.messages[-1] == {"role": "user", "content": said}


def test_another_day_is_the_same_conversation(program: ClaudeCode) -> None:
    """The reminder changes, and says nothing about the reply."""
    saying(program.site, "Hello to you, too.", "It is.")
    (first,) = program.ask("hello")
    program.history[0]["content"][0] = text(REMINDER.format(day="Saturday"))
    (second,) = program.ask("nice weather")
    assert reactions(program.site, first) == [("nice weather",)]
    transient = [
        m
        for n, m in enumerate(second.request.messages)
        if n not in {k.index for k in second.request.marks}
    ]
    assert transient == [{"role": "user", "content": REMINDER.format(day="Saturday")}]


def test_titles_are_side_traffic(program: ClaudeCode) -> None:
    site = program.site
    saying(site, '{"title": "Say hello"}', "Hello to you, too.", "It is.")
    title = program.title("hello")
    (first,) = program.ask("hello")
    (second,) = program.ask("nice weather")
    assert reactions(site, title, first, second) == [None, ("nice weather",), None]
    with site.store.read() as conn:
        turn = turns.get(conn, title.request.id)
        cause = conn.exec_driver_sql(
            "SELECT cause FROM turns WHERE id = ?", (title.request.id,)
        ).scalar_one()
    assert turn is not None
    assert (turn.state, cause, turn.session) == (TurnState.DROPPED, "side", SESSION)


@pytest.mark.parametrize(
    "asked",
    [
        "Your task is to create a detailed summary of the conversation so far, minding every request.",
        "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- No file.\n\n"
        "Your task is to create a detailed summary of the conversation so far.",
        "[SUGGESTION MODE: Suggest what the user might type next.]",
        "The user stepped away and is coming back. Recap in one sentence.",
    ],
)
def test_what_it_asks_for_itself_is_no_reaction(program: ClaudeCode, asked: str) -> None:
    """It goes on from the conversation, and is gone in the next request."""
    site = program.site
    saying(site, "Hello to you, too.", "They said hello.", "It is.")
    (first,) = program.ask("hello")
    (aside,) = program.ask(asked)
    del program.history[-2:]
    assert reactions(site, first, aside) == [None, None]
    (second,) = program.ask("nice weather")
    assert reactions(site, first, aside, second) == [("nice weather",), None, None]


def test_the_error_of_a_conversation_that_is_too_long(program: ClaudeCode) -> None:
    """By these words it knows that it must compact."""
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 8192 maximum"
    ):
        program.ask("word " * 9000)
