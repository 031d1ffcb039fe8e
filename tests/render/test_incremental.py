"""A conversation that grows: each prompt is what the template writes of the whole, and little is rendered again."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.render.model_folders import TEMPLATES, make
from tests.render.trl_templates import KINDS

from openclaw_rl.render.incremental import IncrementalRenderer, TemplateMismatch
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.types import Message

Renderers = Callable[[str], Renderer]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
    }
]
WORDS = (
    "Yes.",
    "",
    "é 😀\n",
    "<think>a</think>b",
    "of <|im_end|> it",
    "a long answer of many words",
    "Xq7",
)


def reply(rng: random.Random, *, call: str | None, thinks: bool) -> Message:
    out: dict[str, Any] = {"role": "assistant", "content": rng.choice(WORDS)}
    if thinks and rng.random() < 0.5:
        out["reasoning_content"] = rng.choice(("Hm.", "Let me see.\n"))
    if call is not None:
        function = {"name": "look", "arguments": {"at": rng.choice(WORDS), "n": rng.randrange(9)}}
        out["tool_calls"] = [{"id": call, "type": "function", "function": function}]
    return out


def conversation(
    seed: int, turns: int, *, tools: bool, thinks: bool
) -> list[tuple[list[Message], Message]]:
    """(everything before a reply, the reply), a turn after the other: questions, and loops of calls and results."""
    rng = random.Random(seed)
    history: list[Message] = [{"role": "system", "content": "Be kind."}] if seed % 2 else []
    out, call = [], None
    for n in range(turns):
        if call is None:
            history = [*history, {"role": "user", "content": f"{rng.choice(WORDS)} {n}?"}]
        else:
            history = [
                *history,
                {
                    "role": "tool",
                    "tool_call_id": call,
                    "name": "look",
                    "content": rng.choice(WORDS),
                },
            ]
        call = f"callabc{n % 90 + 10}" if tools and rng.random() < 0.7 else None
        said = reply(rng, call=call, thinks=thinks)
        out.append((history, said))
        history = [*history, said]
    return out


def whole(
    renderer: Renderer, messages: list[Message], said: Message, tools: Any
) -> tuple[list[int], str | None]:
    """(ids of the prompt, what the template writes behind it where the reply goes on from it)."""
    before = renderer.text(messages, tools)
    text = renderer.text([*messages, said], tools, generation=False)
    return renderer.tokenizer.encode(before).tolist(), text[len(before) :] if text.startswith(
        before
    ) else None


@pytest.mark.parametrize("shape", ["words", "tools", "thoughts", "both"])
@pytest.mark.parametrize("kind", [*KINDS, *TEMPLATES, "starter"])
def test_incremental_prompts_equal_complete_ones(
    kind: str, shape: str, renderer: Renderers
) -> None:
    r, tools = renderer(kind), TOOLS if shape in ("tools", "both") else []
    for seed in range(4):
        growing = IncrementalRenderer(r, long=3)
        wrong = False
        try:
            for messages, said in conversation(
                seed, 12, tools=bool(tools), thinks=shape in ("thoughts", "both")
            ):
                ids, before, text = growing.render_turn(messages, said, tools)
                behind = text[len(before) :] if text.startswith(before) else None
                wrong |= (ids.tolist(), behind) != whole(r, messages, said, tools)
            growing.verify_last_turn()
        except TemplateMismatch:
            assert (kind, bool(tools)) == ("deepseekv3", True), (
                "of these it alone writes a loop's end differently"
            )
        else:
            assert not wrong


@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3", "llama3_1", "gptoss", "starter"])
def test_rendered_text_grows_linearly_with_the_turns(
    kind: str, renderer: Renderers, monkeypatch: pytest.MonkeyPatch
) -> None:
    r, rendered = renderer(kind), 0
    text = r.text

    def counted(messages: Sequence[Message], *more: Any, **named: Any) -> str:
        nonlocal rendered
        rendered += len(messages)
        return text(messages, *more, **named)

    monkeypatch.setattr(r, "text", counted)
    counts = []
    for turns in (60, 240):
        rendered, growing = 0, IncrementalRenderer(r)
        for messages, said in conversation(1, turns, tools=False, thinks=True):
            growing.render_turn(messages, said)
        growing.verify_last_turn()
        counts.append(rendered / turns)
    assert counts[1] < 1.5 * counts[0], "messages for each turn"


COUNTING = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>{{ 'HOW' }}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TELLING = {
    "how many there are": "{{ messages|length }}",
    "which is an odd one": "{{ 'odd' if messages|length % 4 == 1 and loop.last else '' }}",
    "every other": "{{ loop.index0 % 2 }}",
    "what was said first": "{{ messages[0].content if messages|length > 5 else '' }}",
    "the last four": "{{ 'old' if loop.revindex > 4 else '' }}",
}


@pytest.mark.parametrize("how", TELLING)
def test_a_template_that_looks_further_back_is_detected(how: str, tmp_path: Path) -> None:
    """At once, and rendered whole; or when the whole is tried."""
    folder = make(tmp_path / "model", "chatml")
    (folder / "chat_template.jinja").write_text(COUNTING.replace("{{ 'HOW' }}", TELLING[how]))
    r = Renderer(ModelFiles.from_path(str(folder)))
    growing, wrong, found = IncrementalRenderer(r), False, False
    try:
        for messages, said in conversation(0, 40, tools=False, thinks=False):
            wrong |= (
                growing.render_turn(messages, said).prompt_ids.tolist()
                != whole(r, messages, said, [])[0]
            )
        growing.verify_last_turn()
    except TemplateMismatch:
        found = True
    assert (found, wrong) == (how == "the last four", False)


def test_another_conversation_is_rendered_from_its_start(renderer: Renderers) -> None:
    """One that went back, one that is shorter, and one that has nothing in common."""
    r = renderer("starter")
    growing = IncrementalRenderer(r)
    turns = conversation(0, 20, tools=False, thinks=False)
    back = [*turns[12][0][:-1], {"role": "user", "content": "No, this"}]
    other = conversation(7, 14, tools=False, thinks=False)[-1]
    for messages, said, same in [
        *((*turn, len(turn[0]) - 2) for turn in turns),
        (back, turns[12][1], len(back) - 1),
        (*turns[10], len(turns[10][0])),
        (*other, 0),
    ]:
        growing.keep_at_most(same)
        assert (
            growing.render_turn(messages, said).prompt_ids.tolist()
            == whole(r, messages, said, [])[0]
        )
    growing.verify_last_turn()
