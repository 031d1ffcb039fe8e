"""What the Codex command line sends and does, replayed: the shape is that of codex-cli 0.169.0, the words are ours.

It keeps the conversation itself (`store: false`), sends every output item back as it came with its
`output_item.done`, acts on nothing else but the end, and names its session in headers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.serve.conftest import Answer, Site, Start, wait_for
from tests.serve.dialects.responses_client import call, events_of
from tests.serve.dialects.test_openai_responses_stored import answers
from tests.serve.test_sampled_prompts import goes_on

from openclaw_rl.collect.reply_slot import EXACT
from openclaw_rl.serve.dialects.validation import image_placeholder
from openclaw_rl.types import Exchange, ExchangeStatus, Kind

SESSION = "01a1fe10-8ac0-7af2-b064-a2d4fcae1547"


def function(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}}
    return {
        "type": "function",
        "name": name,
        "description": f"Does {name}.",
        "strict": False,
        "parameters": schema | {"additionalProperties": False},
    }


TOOLS = [
    function("exec_command", cmd="string", tty="boolean", yield_time_ms="number"),
    function("write_stdin", session_id="number", chars="string"),
    function("view_image", path="string"),
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "Other agents.",
        "tools": [
            function("spawn_agent", message="string"),
            function("wait_agent", timeout_ms="number"),
        ],
    },
    {"type": "web_search", "external_web_access": False},
]
OLD_TOOLS = [
    function("shell", command="array"),
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
    },
    {"type": "web_search"},
]


def text(role: str, *parts: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{SESSION}",
        "role": role,
        "content": [{"type": "input_text", "text": part} for part in parts],
    }


@dataclass
class Codex:
    """As much of the program as the wire shows. `old`: as versions before the unified tools sent it."""

    site: Site
    old: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    kind: str = "turn"

    def __post_init__(self) -> None:
        before = (
            []
            if self.old
            else [text("developer", "You are an agent."), text("developer", "Sandbox: none", "x")]
        )
        self.history = [*before, text("user", "<environment_context>here</environment_context>")]

    def headers(self) -> dict[str, str]:
        shared = {
            "Authorization": "Bearer sk-test",
            "Accept": "text/event-stream",
            "originator": "codex_exec",
        }
        if self.old:
            return shared | {"conversation_id": SESSION, "session_id": SESSION, "version": "0.46.0"}
        turn = {"session_id": SESSION, "request_kind": self.kind, "thread_source": "user"}
        return shared | {
            "session-id": SESSION,
            "thread-id": SESSION,
            "x-client-request-id": SESSION,
            "x-codex-beta-features": "remote_compaction_v2",
            "x-codex-turn-metadata": json.dumps(turn),
        }

    def body(self) -> dict[str, Any]:
        return {
            "model": "openclaw",
            "stream": True,
            "input": self.history,
            "tools": OLD_TOOLS if self.old else TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": not self.old,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": SESSION,
            **(
                {"instructions": "You are an agent."}
                if self.old
                else {"client_metadata": {"session_id": SESSION}}
            ),
        }

    def send(self) -> Answer:
        return self.site.http.post("/v1/responses", self.body(), self.headers())

    def ask(self, said: str) -> list[Exchange]:
        """One turn of the user: requests until a reply calls no tool. Returns their exchanges."""
        self.history.append(text("user", said))
        out: list[Exchange] = []
        while True:
            events = events_of(self.send())
            assert events[-1]["type"] == "response.completed"
            out.append(self.site.get(events[-1]["response"]["id"]))
            made = [e["item"] for e in events if e["type"] == "response.output_item.done"]
            self.history += made
            results = [self._run(item) for item in made if "call_id" in item]
            if not results:
                return out
            self.history += results

    def _run(self, item: dict[str, Any]) -> dict[str, Any]:
        output = f"Process exited with code 0\nOutput:\n{item.get('arguments', item.get('input'))}"
        return {
            "type": f"{item['type']}_output",
            "id": "fco_1",
            "call_id": item["call_id"],
            "output": output,
        }


def saying(site: Site, *texts: str) -> None:
    """One text for each request, in turn."""
    left = list(texts)
    tokens, stop = site.renderer.tokenizer, site.renderer.stop_token_ids[0]
    site.engine.reply = lambda prompt, version: [*tokens.encode(left.pop(0)).tolist(), stop]


@pytest.mark.parametrize("kind", ["chatml", "thinking"])
def test_a_turn_with_tools_and_the_next(start: Start, kind: str) -> None:
    site = start(kind, settings={"engine.max_context": 8192}, context_length=8192)
    thought = "Let me see.</think>" if kind == "thinking" else ""
    one, other = '{"cmd":  "echo 1"}', '{"cmd": "echo 2"}'
    two = f"I look.\n{call('exec_command', one)}\n{call('exec_command', other)}"
    saying(site, thought + two, thought + "It said one and then two.", thought + "You are welcome.")
    codex = Codex(site)
    first, second = codex.ask("run it")
    (third,) = codex.ask("thanks, that was right")
    assert [e.request.session for e in (first, second, third)] == [SESSION] * 3
    if kind == "chatml":  # the other template takes earlier reasoning away
        assert goes_on(second, first)
        assert goes_on(third, second)
    results = [f"Process exited with code 0\nOutput:\n{arguments}" for arguments in (one, other)]
    assert answers(site, second) == {first.request.id: (results, EXACT)}
    assert answers(site, third)[second.request.id] == (["thanks, that was right"], EXACT)
    roles = [
        "developer",
        "developer",
        "user",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert [m["role"] for m in third.request.messages] == roles
    assert first.reply is not None
    assert (
        site.renderer.tokenizer.backend.decode(first.reply.response_ids[:-1].tolist())
        == thought + two
    )
    thoughts = [
        m.get("reasoning_content") for m in third.request.messages if m["role"] == "assistant"
    ]
    assert thoughts == ["Let me see." if thought else None] * 2


def test_agents_of_agents_are_called_within_their_namespace(start: Start) -> None:
    site = start(settings={"engine.max_context": 8192}, context_length=8192)
    saying(site, call("multi_agent_v1__spawn_agent", '{"message": "count"}'), "It is done.")
    codex = Codex(site)
    first, second = codex.ask("let another one count")
    made = codex.history[-3]
    assert (made["name"], made["namespace"]) == ("spawn_agent", "multi_agent_v1")
    assert goes_on(second, first)
    assert first.request.id in answers(site, second)


def test_as_it_was_before(start: Start) -> None:
    site = start(settings={"engine.max_context": 8192}, context_length=8192)
    saying(
        site,
        call("apply_patch", '{"input": "*** Begin Patch"}'),
        "The file is changed as you wished.",
        "Bye.",
    )
    codex = Codex(site, old=True)
    first, second = codex.ask("change it")
    (third,) = codex.ask("good")
    assert codex.history[2]["type"] == "custom_tool_call"
    assert third.request.session == SESSION
    assert third.request.messages[0]["content"] == "You are an agent."
    assert goes_on(second, first)
    assert answers(site, third)[second.request.id] == (["good"], EXACT)


def test_what_it_does_besides_is_side_traffic(start: Start) -> None:
    site = start(settings={"engine.max_context": 8192}, context_length=8192)
    codex = Codex(site, kind="compaction")
    (summary,) = codex.ask("sum up")
    assert summary.request.kind is Kind.SIDE


def test_ignored_fields_and_errors_are_reported(start: Start) -> None:
    site = start(settings={"engine.max_context": 8192}, context_length=8192)
    codex = Codex(site)
    ignored = codex.send().headers["X-OpenClaw-Ignored"]
    assert ignored.startswith("tools: web_search; client_metadata; store: false")
    site.script.say("one two three four")
    site.engine.gone_at = 2
    events = events_of(codex.send())
    failed = next(e for e in events if e["type"] == "response.failed")
    assert "engine disconnected" in failed["response"]["error"]["message"]
    broken = failed["response"]["id"]
    wait_for(
        lambda: site.get(broken).reply,
        lambda r: r is not None and r.status is ExchangeStatus.FAILED,
    )
    site.engine.revive()
    picture = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]
    codex.history += [
        {"type": "function_call", "name": "view_image", "arguments": "{}", "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": picture},
    ]
    assert codex.send().status_code == 200, "a picture does not end the work"
    words = {"type": "text", "text": image_placeholder("input_image")}
    assert site.last().request.messages[-1]["content"] == [words]
    codex.history.append({"role": "user", "content": picture})
    refused = codex.send()
    assert refused.status_code == 400
    assert (
        "got an image, but the model 'openclaw' reads text only"
        in refused.json()["error"]["message"]
    )
