"""Prompts equal transformers' own, and bridged prompts go on from the stored tokens."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model_identity import identity_of
from tests.render.model_folders import CHATML, make
from transformers import AutoTokenizer

from openclaw_rl.errors import ModelError, RequestError
from openclaw_rl.render import chat_template
from openclaw_rl.render.chat_template import ChatTemplate
from openclaw_rl.render.hint import HintFormat, with_hint
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer

KINDS = ("chatml", "thinking", "llama", "starter")
Renderers = Callable[..., Renderer]
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "<d> & 'e' é", "parameters": {"type": "object"}},
}


def call(n: int) -> dict[str, Any]:
    return {
        "id": f"call{n}",
        "type": "function",
        "function": {"name": "f", "arguments": {"city": "Par<is>", "n": n}},
    }


SYSTEM = {"role": "system", "content": "Be kind.\n\n<b>&amp;</b>"}
ASK = {"role": "user", "content": "What is <|im_end|> and <think>? é 😀\r\n"}
HARMLESS = {"role": "user", "content": "What is <|im_en|> and < think>? é 😀\r\n"}
ANSWER = {"role": "assistant", "content": "It is sunny."}
THOUGHT = {"role": "assistant", "content": "Yes.", "reasoning_content": "Let me see.\nHm."}
CALLS = {"role": "assistant", "content": None, "tool_calls": [call(1)]}
RESULT = {"role": "tool", "tool_call_id": "call1", "content": '{"t": 21}'}

CONVERSATIONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([ASK], []),
    ([SYSTEM, ASK, ANSWER, ASK], []),
    ([SYSTEM, ASK, THOUGHT, ASK, THOUGHT], []),
    ([SYSTEM, ASK], [TOOL, TOOL]),
    ([ASK, CALLS, RESULT], [TOOL]),
    ([SYSTEM, ASK, CALLS, RESULT, THOUGHT, ASK, CALLS, RESULT], [TOOL]),
]


@pytest.fixture(scope="module")
def reference(folder: Callable[[str], Path]) -> Callable[[str], Any]:
    made: dict[str, Any] = {}

    def get(kind: str) -> Any:
        if kind not in made:
            made[kind] = AutoTokenizer.from_pretrained(str(folder(kind)))
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(CONVERSATIONS)))
def test_ids_equal_transformers(
    kind: str, number: int, renderer: Renderers, reference: Callable[[str], Any]
) -> None:
    given, tools = CONVERSATIONS[number]
    plain = [HARMLESS if message is ASK else message for message in given]
    for generation, literal_text in itertools.product((True, False), (True, False)):
        messages = plain if literal_text else given
        ours = renderer(kind, literal_text=literal_text).render(
            messages, tools, generation=generation
        )
        theirs = reference(kind).apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=generation, return_dict=False
        )
        assert ours.prompt_ids.tolist() == list(theirs)
        assert ours.prompt_ids.dtype == np.int32
        assert ours.thinking == (kind == "thinking" and generation)


PIECES = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        " ",
        "\n",
        "a",
        " b",
        "é",
        "\u0301",
        "😀",
        "'ll",
        "12",
    ]
)
TEXT = st.lists(PIECES | st.text(max_size=6), max_size=12).map("".join)


@given(text=TEXT)
@settings(max_examples=150, deadline=None)
def test_pieces_make_the_ids_of_the_whole(text: str, renderer: Renderers) -> None:
    tokens = renderer("chatml").tokenizer
    whole = tokens.backend.encode(text, add_special_tokens=False).ids
    assert tokens.encode(text).tolist() == whole
    assert tokens.encode(text).tolist() == whole, "from the cache, too"


def test_a_tokenizer_that_is_not_independent_is_not_cut(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "chatml")
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "first",
        "split": True,
    }
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    renderer = Renderer(ModelFiles.from_path(str(folder)))
    assert not renderer.tokenizer.is_segmented
    assert renderer.bridge_unsupported_reason is not None
    text = renderer.text([SYSTEM, ASK])
    assert (
        renderer.tokenizer.encode(text).tolist()
        == renderer.tokenizer.backend.encode(text, add_special_tokens=False).ids
    )


def bridged(
    renderer: Renderer, reply: list[int], message: dict[str, Any], new: list[Any], tools: list[Any]
) -> Any:
    prompt = renderer.render([SYSTEM, ASK], tools).prompt_ids
    text = renderer.text_after(message, new, tools=bool(tools))
    assert text is not None
    made = renderer.bridge_prompt(prompt, np.array(reply, dtype=np.int32), renderer.tokenize(text))
    assert made is not None
    assert made.prompt_ids[: len(prompt) + len(reply)].tolist() == [*prompt.tolist(), *reply]
    return made


NEXT: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    (ANSWER, [ASK], []),
    (ANSWER, [SYSTEM, ASK], [TOOL]),
    (CALLS, [RESULT], [TOOL]),
    (CALLS, [RESULT, ANSWER, ASK], [TOOL]),
]


@pytest.mark.parametrize("kind", ["chatml", "llama", "starter"])
@pytest.mark.parametrize("number", range(len(NEXT)))
def test_a_reply_that_was_tokenised_as_usual_is_bridged_to_the_templates_ids(
    kind: str, number: int, renderer: Renderers
) -> None:
    r, (message, new, tools) = renderer(kind), NEXT[number]
    prompt, whole = r.text([SYSTEM, ASK], tools), r.text([SYSTEM, ASK, message, *new], tools)
    assert whole.startswith(prompt)
    end = r.end_of_turn or ""
    said = whole[len(prompt) : whole.index(end, len(prompt)) + len(end)]
    made = bridged(r, r.tokenizer.encode(said).tolist(), message, new, tools)
    assert (
        made.prompt_ids.tolist()
        == r.render([SYSTEM, ASK, message, *new], tools).prompt_ids.tolist()
    )


def test_reasoning_stays_in_a_bridged_prompt(renderer: Renderers) -> None:
    r = renderer("keeping")
    assert r.bridge_unsupported_reason is None
    reply = r.tokenizer.encode("Hm.\n</think>\n\nIt is sunny.<|im_end|>").tolist()
    made = bridged(r, reply, ANSWER, [ASK], [])
    assert made.thinking
    assert r.tokenizer.backend.decode(made.prompt_ids.tolist(), skip_special_tokens=False).endswith(
        "<think>\nHm.\n</think>\n\nIt is sunny.<|im_end|>\n<|im_start|>user\n"
        + ASK["content"]
        + "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_sampled_tokens_are_kept_unchanged(renderer: Renderers) -> None:
    r = renderer("chatml")
    end = r.tokenizer.special_ids["<|im_end|>"]
    odd = [r.tokenizer.backend.token_to_id(c) for c in "Itissunny."]  # no tokenizer would cut it so
    made = bridged(r, [*odd, end], ANSWER, [ASK], [])
    assert (
        r.tokenizer.backend.decode(made.prompt_ids.tolist(), skip_special_tokens=False).count(
            "Itissunny."
        )
        == 1
    )


def test_a_truncated_reply_gets_its_end_of_turn(renderer: Renderers) -> None:
    r = renderer("chatml")
    end = r.tokenizer.special_ids["<|im_end|>"]
    reply = r.tokenizer.encode("It is").tolist()
    with_end, without = (
        bridged(r, [*reply, end], ANSWER, [ASK], []),
        bridged(r, reply, ANSWER, [ASK], []),
    )
    assert with_end.prompt_ids.tolist() == without.prompt_ids.tolist()


def test_another_stop_token_is_not_bridged(renderer: Renderers) -> None:
    r = renderer("chatml")
    other = np.array([r.tokenizer.special_ids["<|endoftext|>"]], dtype=np.int32)
    assert r.bridge_prompt(other, other, r.tokenize("x")) is None


def test_a_template_that_looks_back_is_not_bridged(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "chatml")
    (folder / "chat_template.jinja").write_text(CHATML + "{{- messages | length }}")
    renderer = Renderer(ModelFiles.from_path(str(folder)))
    assert renderer.bridge_unsupported_reason is not None
    assert "depends on what came before" in renderer.bridge_unsupported_reason
    assert renderer.text_after(ANSWER, [ASK], tools=False) is None


def test_text_as_it_was_sent_is_refused_where_the_template_refuses_it(renderer: Renderers) -> None:
    with pytest.raises(RequestError, match="single tool-calls"):
        renderer("llama").text([ASK, {**CALLS, "tool_calls": [call(1), call(2)]}], [TOOL])


def test_templates_cannot_reach_python(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "chatml")
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(RequestError, match=r"unsafe|undefined"):
        Renderer(ModelFiles.from_path(str(folder))).render([ASK])


def test_messages_are_converted_for_templates(renderer: Renderers) -> None:
    r = renderer("chatml")
    odd = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}],
        },
        {"role": "user", "content": "hi", "name": None},
        {
            "role": "assistant",
            "tool_calls": [{**call(1), "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "function", "content": "r"},
    ]
    plain = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "r"},
    ]
    assert r.text(odd) == r.text(plain)


# Model folders.


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither a folder nor a hub id"):
        ModelFiles.from_path("no such thing")
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        ModelFiles.from_path(str(tmp_path))
    folder = make(tmp_path / "m", "chatml")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        ModelFiles.from_path(str(folder))
    (folder / "tokenizer.json").write_text("{")
    (folder / "chat_template.jinja").write_text(CHATML)
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        Renderer(ModelFiles.from_path(str(folder)))


def test_a_broken_template_is_reported(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "chatml")
    (folder / "chat_template.jinja").write_text("a\n{% if %}")
    with pytest.raises(ModelError, match="line 2"):
        Renderer(ModelFiles.from_path(str(folder)))


def test_templates_in_the_tokenizer_config_are_read(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "chatml")
    (folder / "chat_template.jinja").unlink()
    settings_file = folder / "tokenizer_config.json"
    listed = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "T" + CHATML},
    ]
    settings_file.write_text(
        json.dumps(json.loads(settings_file.read_text()) | {"chat_template": listed})
    )
    renderer = Renderer(ModelFiles.from_path(str(folder)))
    assert not renderer.text([ASK]).startswith("T")
    assert renderer.text([ASK], [TOOL]).startswith("T")


def test_the_identity_covers_everything_that_determines_tokens(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", "chatml")
    (folder / "model.safetensors").write_bytes(b"weights")

    def now() -> str:
        return identity_of(ModelFiles.from_path(str(folder)))

    first = now()
    assert first == now()
    (folder / "config.json").write_text(
        json.dumps({"max_position_embeddings": 8, "model_type": "qwen3"})
    )
    assert now() == first
    seen = {first}
    (folder / "model.safetensors").write_bytes(b"other weights")
    seen.add(now())
    (folder / "chat_template.jinja").write_text(CHATML + " ")
    seen.add(now())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    seen.add(now())
    raw = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(raw, indent=1))
    seen.add(now())
    assert len(seen) == 5


# Hints.


def transient(message: Any) -> bool:
    return str(message["content"]).startswith("<<<")


def test_a_hint_is_added_to_the_last_stored_user_message() -> None:
    passing = {"role": "user", "content": "<<<now"}
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]}
    assert with_hint([ASK, ANSWER, passing], "Be short.", transient, HintFormat.BRACKETED) == [
        {"role": "user", "content": ASK["content"] + "\n\n[Hint: Be short.]"},
        ANSWER,
        passing,
    ]
    hinted = with_hint([ASK, parts, ANSWER], "Be short.", transient, HintFormat.BRACKETED)
    assert hinted[1]["content"][0]["text"] == "hi\n\n[Hint: Be short.]"
    assert parts["content"][0]["text"] == "hi", "the original is untouched"
    plain = with_hint([ASK], "Be short.", transient, HintFormat.PARAGRAPH)
    assert plain[0]["content"] == ASK["content"] + "\n\nBe short."
    with pytest.raises(ValueError, match="needs a user message"):
        with_hint([SYSTEM, passing], "Be short.", transient, HintFormat.BRACKETED)


ENDLESS_TEMPLATES = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
}


@pytest.mark.parametrize("kind", ENDLESS_TEMPLATES)
def test_a_template_that_loops_is_ended(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.05)
    template = ChatTemplate({"default": ENDLESS_TEMPLATES[kind]}, {})
    with pytest.raises(RequestError, match="a loop of the template may have no end"):
        template.render([{"role": "user", "content": "hi"}], [], generation=True)


def test_loops_of_templates_know_their_place() -> None:
    text = (
        "{% for m in messages if m.content %}{{ loop.index }}/{{ loop.length }} {{ loop.revindex }} "
        "{{ loop.last }} {{ loop.previtem is defined }};{% else %}nothing{% endfor %}"
    )
    template = ChatTemplate({"default": text}, {})
    messages = [{"role": "user", "content": content} for content in ("a", "", "b")]
    assert template.render(messages, [], generation=True) == "1/2 2 False False;2/2 1 True True;"
    assert template.render([], [], generation=True) == "nothing"
