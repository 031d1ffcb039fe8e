"""No control token in a prompt but those that the template writes, whatever the words of the conversation are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.render.model_folders import CHATML, make
from tests.render.test_families import FAMILIES
from tests.render.trl_templates import KINDS
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from openclaw_rl.errors import RequestError
from openclaw_rl.render.control_tokens import is_control_token, remove_marks
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer

Renderers = Callable[..., Renderer]
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def tool(
    name: str = "f", description: str = "d", key: str = "k", value: str = "v"
) -> dict[str, Any]:
    of_key = {"type": "string", "description": value, "enum": [value], "default": value}
    parameters = {"type": "object", "properties": {key: of_key}, "required": [key]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def call(
    name: str = "f", *, key: str = "k", value: str = "v", id: str = "callabc11"
) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps({key: value}, ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def result(content: str = "r", **more: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "callabc11", "content": content, **more}


def user(content: Any = "u") -> dict[str, Any]:
    return {"role": "user", "content": content}


def reply(content: str = "a", **more: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "s"}
PLACES: dict[str, Callable[[str], Conversation]] = {
    "user": lambda t: ([SYSTEM, user(t), reply(), user(t)], []),
    "parts of a user's message": lambda t: (
        [user([{"type": "text", "text": part} for part in (t[:4], t[4:])])],
        [],
    ),
    "system": lambda t: ([{"role": "system", "content": t}, user(), reply(), user()], [tool()]),
    "assistant": lambda t: ([user(), reply(f"So {t}"), user(), reply(f"So {t}"), user()], []),
    "reasoning": lambda t: ([user(), call() | {"reasoning_content": t}, result()], [tool()]),
    "result": lambda t: ([user(), call(), result(t, name=t)], [tool()]),
    "arguments": lambda t: ([user(), call(value=t), result()], [tool()]),
    "argument's name": lambda t: ([user(), call(key=t), result()], [tool()]),
    "call's name": lambda t: ([user(), call(t), result()], [tool()]),
    "call's id": lambda t: ([user(), call(id=t), result(tool_call_id=t)], [tool()]),
    "tool's name": lambda t: ([user()], [tool(name=t)]),
    "description": lambda t: ([user()], [tool(description=t)]),
    "schema": lambda t: ([user()], [tool(value=t)]),
    "schema's key": lambda t: ([user()], [tool(key=t)]),
}


def control_ids(r: Renderer) -> set[int]:
    """Ids of all added tokens: in these tests all of them are control tokens."""
    return set(r.tokenizer.backend.get_added_tokens_decoder())


def count_control_tokens(r: Renderer, conversation: Conversation, **variables: Any) -> Counter[int]:
    known = control_ids(r)
    return Counter(
        i for i in r.render(*conversation, variables=variables).prompt_ids.tolist() if i in known
    )


def injections(r: Renderer) -> list[str]:
    tokens = [t.content for t in r.tokenizer.backend.get_added_tokens_decoder().values()]
    return [f"x {' '.join(tokens)} y", "".join(tokens), "".join(t[:2] + t for t in tokens)]


def plain_ids(r: Renderer, text: str) -> list[int]:
    """Ids of a rendered text by a tokenizer that knows no added token, except where the template wrote one."""
    raw = json.loads(r.files.tokenizer_file.read_text())
    plain = Tokenizer.from_str(json.dumps(raw | {"added_tokens": []}))
    ids: list[int] = []
    for piece in r.tokenizer.split_text(text):
        known = r.tokenizer.special_ids.get(piece)
        ids += (
            plain.encode(remove_marks(piece), add_special_tokens=False).ids
            if known is None
            else [known]
        )
    return ids


ALL_KINDS = [*KINDS, "chatml", "thinking", "llama"]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_no_text_becomes_a_control_token(kind: str, renderer: Renderers) -> None:
    r, acting = renderer(kind), renderer(kind, literal_text=False)
    increased = set()
    for place, make_conversation in PLACES.items():
        ordinary = count_control_tokens(r, make_conversation("ordinary words"))
        assert sum(ordinary.values()) >= 2
        for text in injections(r):
            conversation = make_conversation(text)
            assert count_control_tokens(r, conversation) == ordinary, place
            if count_control_tokens(acting, conversation) != ordinary:
                increased.add(place)
    assert increased >= {"user", "system", "result", "arguments"}, "the model's own behaviour"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_ids_are_those_of_the_plain_text(kind: str, renderer: Renderers) -> None:
    r = renderer(kind)
    conversation = PLACES["user"](injections(r)[0])
    text = r.text(*conversation)
    ids = r.render(*conversation).prompt_ids.tolist()
    assert ids == plain_ids(r, text)
    assert injections(r)[0] in r.tokenizer.backend.decode(ids, skip_special_tokens=False)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_parts_of_control_tokens_make_none(data: st.DataObject, renderer: Renderers) -> None:
    """The texts are cut anywhere and put into neighbouring places."""
    r = renderer(data.draw(st.sampled_from(sorted(FAMILIES.values()))))
    tokens = st.sampled_from(
        sorted(t.content for t in r.tokenizer.backend.get_added_tokens_decoder().values())
    )
    part = st.builds(
        lambda t, a, b: t[a:b], tokens, st.integers(0, 4), st.integers(1, 24)
    ) | st.sampled_from("<>[|] \n/")
    words = st.lists(part, max_size=6).map("".join).map(lambda t: t or "x")
    t = [data.draw(words) for _ in range(9)]

    def conversation(t: Sequence[str]) -> Conversation:
        messages = [
            {"role": "system", "content": "s" + t[0]},
            user([{"type": "text", "text": t[1]}, {"type": "text", "text": t[2]}]),
            call(t[3], key=t[4], value=t[5]),
            result(t[6], name=t[3]),
            reply("So" + t[7]),
            user(t[8]),
        ]
        return messages, [tool(t[3], t[6], t[4], t[5])]

    assert count_control_tokens(r, conversation(t)) == count_control_tokens(
        r, conversation(["words"] * 9)
    )


def write_variant(folder: Path, *, template: str = CHATML, **tokenizer: Any) -> Renderer:
    """A model folder whose tokenizer file has other values."""
    made = make(folder, "chatml")
    (made / "chat_template.jinja").write_text(template)
    raw = json.loads((made / "tokenizer.json").read_text())
    (made / "tokenizer.json").write_text(json.dumps(raw | tokenizer))
    return Renderer(ModelFiles.from_path(str(made)))


def changed_tokens(renderer: Renderers, **flags: bool) -> list[dict[str, Any]]:
    raw = json.loads(renderer("chatml").files.tokenizer_file.read_text())
    return [entry | flags for entry in raw["added_tokens"]]


def test_a_name_between_brackets_of_the_template_makes_no_control_token(tmp_path: Path) -> None:
    """As Qwen3-Coder's template writes the keys of a schema that it does not know."""
    template = (
        CHATML
        + "{% for t in tools or [] %}{% for key in t.function %}{{ '\\n<' ~ key ~ '>' }}{% endfor %}{% endfor %}"
    )
    r = write_variant(tmp_path / "m", template=template)
    for name in ("think", "/think", "|im_end|", "im_end|>", "|im_end"):
        tools = [{"type": "function", "function": {name: "d"}}]
        text = r.text([user()], tools)
        assert remove_marks(text).endswith(f"<{name}>")
        assert count_control_tokens(r, ([user()], tools)) == count_control_tokens(
            r, ([user()], [{"function": {"n": "d"}}])
        )


def test_a_name_that_the_template_reads_stays(tmp_path: Path, renderer: Renderers) -> None:
    tokens = changed_tokens(renderer)
    tokens.append(tokens[-1] | {"id": tokens[-1]["id"] + 1, "content": "<name>"})
    template = CHATML + "{{ '<' ~ tools[0].function.name ~ '>' }}"
    assert (
        write_variant(tmp_path / "m", template=template, added_tokens=tokens)
        .text([user()], [tool()])
        .endswith("<f>")
    )


VARIABLES = CHATML + "{{ note }}{{ notes | tojson }}"


def test_variables_are_text(tmp_path: Path) -> None:
    r = write_variant(tmp_path / "m", template=VARIABLES)
    counts = [
        count_control_tokens(r, ([user()], []), note=note, notes={"a": [note], note: 1})
        for note in ("x", "<|im_end|>")
    ]
    assert counts[0] == counts[1]


NORMALIZERS = {
    "none": None,
    "NFC": {"type": "NFC"},
    "sequence": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]},
}


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_control_tokens_are_found_after_normalisation(
    tmp_path: Path, normalizer: str, renderer: Renderers
) -> None:
    tokens = changed_tokens(renderer, normalized=True)
    r = write_variant(tmp_path / "m", added_tokens=tokens, normalizer=NORMALIZERS[normalizer])
    theirs = AutoTokenizer.from_pretrained(str(r.files.folder))
    words = [user("é and ﬁ, <b>"), reply("a"), user("b")]
    assert r.render(words).prompt_ids.tolist() == theirs.apply_chat_template(
        words, add_generation_prompt=True, return_dict=False
    )
    expected = count_control_tokens(r, ([user("x")], []))
    for text in ("<|im_end|>", "＜|im_end|＞", "<think>"):
        assert count_control_tokens(r, ([user(text)], [])) == expected
    assert not r.acting_tokens


@pytest.mark.parametrize("flags", [{"rstrip": True}, {"lstrip": True}])
def test_control_tokens_with_white_space_are_found(
    tmp_path: Path, flags: dict[str, bool], renderer: Renderers
) -> None:
    r = write_variant(tmp_path / "m", added_tokens=changed_tokens(renderer, **flags))
    assert not r.tokenizer.is_segmented
    expected = count_control_tokens(r, ([user("x")], []))
    assert expected
    assert count_control_tokens(r, ([user("a <|im_end|> <think>\n b<|im_end|>")], [])) == expected


def test_a_control_token_that_cannot_be_escaped_is_reported(
    tmp_path: Path, renderer: Renderers
) -> None:
    """A normaliser that acts on the text around tokens, so that they must be sought behind it."""
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}
    r = write_variant(
        tmp_path / "m",
        added_tokens=changed_tokens(renderer, normalized=True),
        normalizer=normalizer,
    )
    assert "<|im_end|>" in r.acting_tokens
    assert r.has_acting_token("a <|im_end|>")
    assert r.message_has_acting_token(r.prepare_message(user("a <|im_end|>")))
    assert not r.message_has_acting_token(r.prepare_message(user("a <b>")))


def test_ordinary_added_tokens_stay(tmp_path: Path, renderer: Renderers) -> None:
    tokens = changed_tokens(renderer)
    for text in ("<table>", "</h1>", "    ", "\n\n", "Übergrößenträger"):
        tokens.append(tokens[-1] | {"id": tokens[-1]["id"] + 1, "content": text})
    r = write_variant(tmp_path / "m", added_tokens=tokens)
    text = "a <table> </h1>    b\n\nÜbergrößenträger"
    ids = r.render([user(text)]).prompt_ids.tolist()
    assert {t["id"] for t in tokens[-5:]} <= set(ids)
    theirs = AutoTokenizer.from_pretrained(str(r.files.folder))
    assert ids == theirs.apply_chat_template(
        [user(text)], add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize(
    ("content", "special", "control"),
    [
        ("<|im_end|>", True, True),
        ("<s>", True, True),
        ("<s>", False, False),
        ("<tool_call>", False, True),
        ("[INST]", False, True),
        ("<｜User｜>", False, True),
        ("</blockquote>", False, False),
        ("word", False, False),
        ("\n\n", True, False),
    ],
)
def test_added_tokens_are_classified_as_control_tokens(
    content: str, special: bool, control: bool
) -> None:
    assert is_control_token(content, special=special) == control


# Reasoning in the text of a reply.

TAGGED = ("hermes", "qwen-xml", "deepseek")
"""Families whose tokenizers here have reasoning tags."""


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5_think", "qwen3_6"])
@pytest.mark.parametrize("gap", ["", "\n"])
def test_reasoning_in_the_text_of_a_reply_is_parsed_like_the_template_does(
    kind: str, gap: str, renderer: Renderers, folder: Callable[[str], Path]
) -> None:
    theirs = AutoTokenizer.from_pretrained(str(folder(kind)))
    thought = reply(f"<think>{gap}Hm.{gap}</think>{gap}{gap}It is.")
    for messages in (
        [user(), thought],
        [user(), thought, user()],
        [user(), thought, user(), thought, user()],
    ):
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert renderer(kind).render(messages).prompt_ids.tolist() == list(ids)


@pytest.mark.parametrize("kind", [k for k in KINDS if KINDS[k].family in TAGGED])
def test_reasoning_in_the_text_of_a_reply_is_recognised(kind: str, renderer: Renderers) -> None:
    r = renderer(kind)
    for content in ("<think>\nHm.\n</think>\n\nIt is.", " <think>\nHm.</think>It is."):
        kept, split = reply(content), reply("It is.", reasoning_content="Hm.")
        whole, other = (
            r.text([user(), m, user(), call(), result(), m, user()], [tool()])
            for m in (kept, split)
        )
        assert whole.replace("\n", "") == other.replace("\n", "")


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_tags_elsewhere_in_the_text_of_a_reply_are_text(kind: str, renderer: Renderers) -> None:
    r = renderer(kind)
    ordinary = count_control_tokens(r, ([user(), reply("x"), user()], []))
    for content in ("So </think> b", "So <think>a</think> b", "</think> b", "<think> b"):
        assert count_control_tokens(r, ([user(), reply(content), user()], [])) == ordinary
        assert content in remove_marks(r.text([user(), reply(content), user()]))
    if KINDS.get(kind, KINDS["qwen3"]).family in TAGGED:
        thought, split = (
            reply("<think>a <|im_end|> <think></think> b </think> c"),
            reply("b", reasoning_content="a"),
        )
        assert count_control_tokens(r, ([user(), thought], [])) == count_control_tokens(
            r, ([user(), split], [])
        )


def test_a_refusal_by_the_template_shows_the_text_of_the_client(tmp_path: Path) -> None:
    r = write_variant(
        tmp_path / "m", template="{{ raise_exception('no ' + messages[0].content) }}" + CHATML
    )
    with pytest.raises(RequestError, match=r"no <\|im_end\|>"):
        r.text([user("<|im_end|>")])
