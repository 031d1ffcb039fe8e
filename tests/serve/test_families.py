"""Every family of models through a real gateway: what the model says in its own format leaves as the client's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.render.trl_templates import KINDS
from tests.serve.conftest import TOOLS, USER, Site, Start

from openclaw_rl.serve.gateway import CONTROL_TOKEN
from openclaw_rl.store import turns

HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
XML = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    '```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
)
SAID = {
    "qwen2_5": (f"I look.\n{HERMES}", "I look.", None),
    "qwen3": (f"<think>\nHm.\n</think>\n\nI look.\n{HERMES}", "I look.", "Hm."),
    "qwen3_instruct_2507": (f"I look.\n{HERMES}", "I look.", None),
    "qwen3_5_think": (f"Hm.\n</think>\n\nI look.\n\n{XML}", "I look.", "Hm."),
    "qwen3_5_nothink": (f"I look.\n\n{XML}", "I look.", None),
    "qwen3_6": (f"Hm.\n</think>\n\nI look.\n\n{XML}", "I look.", "Hm."),
    "qwen3_8": (f"Hm.\n</think>\n\nI look.\n\n{XML}", "I look.", "Hm."),
    "llama3_1": ('{"name": "get_weather", "parameters": {"city": "Paris"}}', "", None),
    "llama3_2": (
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
        "",
        None,
    ),
    "gptoss": (HARMONY, "I look.", "Hm."),
    "deepseekv3": (f"Hm.\n</think>\n\nI look.{DEEPSEEK}", "I look.", "Hm."),
    "mistral_args": (
        '[THINK]Hm.[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
        "I look.",
        "Hm.",
    ),
    "mistral_array": (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        "",
        None,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_with_reasoning_and_a_call(kind: str, start: Start) -> None:
    said, content, reasoning = SAID[kind]
    site = start(kind)
    ids = site.script.say(said, stop=False)
    site.script.ids = [*ids, site.renderer.stop_token_ids[-1 if kind == "gptoss" else 0]]
    create: Any = site.client().chat.completions.create
    asked = {"model": "openclaw", "messages": [USER], "tools": TOOLS}
    whole = create(**asked)
    message = whole.choices[0].message.model_dump()
    assert whole.choices[0].finish_reason == "tool_calls"
    assert (message["content"] or "", message.get("reasoning_content")) == (content, reasoning)
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    kept = site.get(whole.id)
    assert kept.reply is not None
    assert kept.reply.response_ids.tolist() == site.script.ids

    chunks = [c.choices[0].delta for c in create(**asked, stream=True) if c.choices]
    assert "".join(d.content or "" for d in chunks) == content
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in chunks) == (reasoning or "")
    streamed = [c for d in chunks for c in d.tool_calls or ()]
    assert "".join(c.function.arguments or "" for c in streamed) == call["function"]["arguments"]

    result = {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}
    site.script.say("Fine.")
    answer = create(model="openclaw", messages=[USER, message, result], tools=TOOLS)
    prompt = site.renderer.tokenizer.backend.decode(site.script.seen[-1], skip_special_tokens=False)
    assert "21 degrees" in prompt
    assert site.get(answer.id).request.messages[-1]["content"] == "21 degrees"


def with_text(text: str) -> dict[str, Any]:
    """A request with `text` in six places: system, user, reply, arguments, result, and a tool."""
    of_city = {"type": "string", "description": text}
    function = {"name": "get_weather", "description": text}
    tool = {
        "type": "function",
        "function": function | {"parameters": {"type": "object", "properties": {text: of_city}}},
    }
    called = {"name": "get_weather", "arguments": json.dumps({"city": text})}
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "callabc12", "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": "callabc12", "content": text},
        {"role": "assistant", "content": f"So {text}"},
        {
            "role": "user",
            "content": [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}],
        },
    ]
    return {"model": "openclaw", "messages": messages, "tools": [tool]}


def ask_with_text(site: Site, text: str) -> tuple[list[int], str | None]:
    """(the control tokens of the prompt, the reason why the turn cannot train)."""
    site.script.say("Fine.")
    answer = site.client().chat.completions.create(**with_text(text))
    added = site.renderer.tokenizer.backend.get_added_tokens_decoder()
    with site.store.read() as conn:
        turn = turns.get(conn, answer.id)
    assert turn is not None
    return [i for i in site.script.seen[-1] if i in added], turn.untrainable


ONE_OF_EACH = {kind.family: name for name, kind in KINDS.items()}.values()
MODES = [(name, "text") for name in KINDS] + [
    (name, m) for name in ONE_OF_EACH for m in ("untrainable", "model")
]


@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_control_tokens_in_the_words_of_a_conversation(kind: str, mode: str, start: Start) -> None:
    site = start(kind, settings={"serve.special_tokens": mode})
    tokens = [
        t.content for t in site.renderer.tokenizer.backend.get_added_tokens_decoder().values()
    ][-8:]
    ordinary, reason = ask_with_text(site, "nothing of note")
    assert ordinary
    assert reason is None
    found, reason = ask_with_text(site, " ".join(tokens))
    assert (found == ordinary) == (mode == "text")
    assert reason == (CONTROL_TOKEN.detail if mode == "untrainable" else None)
