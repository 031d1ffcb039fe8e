"""A client replays its history with every request: it is shown, changed where it must be, and never refused."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.render.trl_templates import write_kind
from tests.serve import replayed_histories as histories
from tests.serve.conftest import Answer, Script, Site
from tests.serve.replayed_histories import APIS, PATHS, called, gave, said, system, user

from openclaw_rl.render.degradation import Degradation
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage.policy_names import start_policies
from openclaw_rl.testing import ScriptedEngine
from openclaw_rl.types import Exchange

Gateways = Callable[[str], Site]
HEADER = "X-OpenClaw-Degraded"


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """Replace the check after each test: these tests share their gateways, which are closed after the last one."""


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Gateways]:
    """Running gateways by the kind of their template."""
    sites: dict[str, Site] = {}

    def get(kind: str) -> Site:
        if kind not in sites:
            home = tmp_path_factory.mktemp("home")
            folder = write_kind(home / "model", histories.TEMPLATES[kind])
            config = from_flat(
                {"home": str(home), "engine.max_context": 8192, "serve.examine_lessons": False}
            )
            shutil.copy(empty_store, config.store_path)
            store = Store.open(config.store_path)
            with store.write() as conn:
                start_policies(conn, config.policy.per)
            renderer = Renderer(ModelFiles.from_path(str(folder)))
            script = Script(renderer)
            script.say("Fine.")
            engine = ScriptedEngine(
                script, context_length=8192, versions=config.engine.max_loaded_versions
            )
            sites[kind] = Site(config, renderer, store, engine, script)
        return sites[kind]

    yield get
    for site in sites.values():
        site.close()
        site.store.close()


def ask(
    site: Site, history: list[Any], api: str = "chat", *, newest: str = "on", tools: bool = True
) -> tuple[Answer, dict[str, Any]]:
    body = histories.body_of(api, history, newest, tools=tools)
    answer = site.http.post(PATHS[api], histories.encoded(body))
    assert answer.status_code == 200, answer.text
    return answer, body


def prompt(site: Site) -> str:
    """The text of the newest prompt that the engine got."""
    ids = site.script.seen[-1]
    return str(site.renderer.tokenizer.backend.decode(ids, skip_special_tokens=False))


def degraded(answer: Answer) -> list[str]:
    return [name for name in answer.headers.get(HEADER, "").split(", ") if name]


def check_continued(site: Site, answer: Answer, body: dict[str, Any], api: str = "chat") -> None:
    """The next request of the conversation is answered, and linked to the reply: its marks continue the first's."""
    first = site.get(answer.json()["id"])
    second = continued(site, answer, body, api)
    assert first.reply is not None
    assert first.reply.mark is not None
    sent = [*first.request.marks, first.reply.mark]
    assert [mark.chain for mark in second.request.marks[: len(sent)]] == [m.chain for m in sent]


def continued(site: Site, answer: Answer, body: dict[str, Any], api: str) -> Exchange:
    history = histories.replied(api, body, answer.json())
    second, _ = ask(site, history, api, newest="and more", tools="tools" in body)
    stored = site.get(second.json()["id"])
    assert stored.request.prompt_ids.tolist() == site.script.seen[-1]
    return stored


@pytest.mark.parametrize("kind", ["qwen3_5_think", "qwen3_8"])
@pytest.mark.parametrize("name", histories.ARGUMENTS)
def test_arguments_that_are_no_object_are_shown(name: str, kind: str, gateways: Gateways) -> None:
    site = gateways(kind)
    arguments = histories.ARGUMENTS[name]
    history = [user(), called("c1", arguments=arguments), gave("c1", "bad arguments")]
    answer, body = ask(site, history)
    # Qwen3.8's template takes arguments that are empty.
    is_empty = kind == "qwen3_8" and arguments in ("", None)
    assert is_empty or Degradation.CALL_ARGUMENTS in degraded(answer)
    assert "<function=edit>" in prompt(site)
    check_continued(site, answer, body)
    if arguments is histories.ABSENT:
        return
    call = {"type": "function_call", "call_id": "c1", "name": "edit", "arguments": arguments}
    result = {"type": "function_call_output", "call_id": "c1", "output": "bad arguments"}
    answer, body = ask(site, [user(), call, result], "responses")
    assert "<function=edit>" in prompt(site)
    check_continued(site, answer, body, "responses")


def test_words_of_broken_arguments_stay(gateways: Gateways) -> None:
    site = gateways("qwen3_5_think")
    ask(site, [user(), called("c1", arguments="ls -la"), gave("c1")])
    assert "<parameter=arguments>\nls -la\n</parameter>" in prompt(site)
    ask(site, [user(), called("c1", arguments='{"cmd": NaN}'), gave("c1")])
    assert "<parameter=cmd>\nNaN\n</parameter>" in prompt(site)


def test_valid_arguments_are_shown_as_they_were_sent(gateways: Gateways) -> None:
    site = gateways("qwen3_5_think")
    answer, _ = ask(site, [system(), user(), called("c1"), gave("c1")])
    assert degraded(answer) == []
    assert "<parameter=cmd>\nls\n</parameter>" in prompt(site)


@pytest.mark.parametrize("kind", ["qwen3_5_think", "gemma"])
@pytest.mark.parametrize("letters", histories.SYSTEMS)
def test_system_messages_anywhere_are_shown(letters: str, kind: str, gateways: Gateways) -> None:
    site = gateways(kind)
    history, words = histories.by_letters(letters)
    answer, body = ask(site, history)
    assert degraded(answer) or (kind, letters[1:].count("s")) == ("qwen3_5_think", 0)
    text = prompt(site)
    assert [word for word in words if word not in text] == []
    check_continued(site, answer, body)


@pytest.mark.parametrize("letters", histories.NEIGHBOURS)
def test_neighbours_of_one_role_are_shown(letters: str, gateways: Gateways) -> None:
    site = gateways("gemma")
    history, words = histories.by_letters(letters)
    answer, body = ask(site, history)
    text = prompt(site)
    assert [word for word in words if word not in text] == []
    assert {Degradation.ALTERNATION, Degradation.USER_MESSAGE} & set(degraded(answer))
    check_continued(site, answer, body)


def halves_of_chat(half: str) -> Iterator[list[Any]]:
    """Histories with half a surrogate pair in each of twelve places."""
    function = {"name": "edit", "arguments": "{}"}
    yield [user(half)]
    yield [system(half), user()]
    yield [user(), said(half)]
    yield [user(), said("x", reasoning_content=half)]
    yield [user(), called("c1", text=half), gave("c1")]
    yield [user(), called("c1"), gave("c1", half)]
    yield [user(), called("c1"), gave("c1", [{"type": "text", "text": half}])]
    yield [user(), called("c1", arguments={half: "x"}), gave("c1")]
    yield [user(), called("c1", arguments={"cmd": {"a": [half]}}), gave("c1")]
    yield [user(), called("c1", arguments=f'{{"cmd": "{half}"}}'), gave("c1")]
    yield [user(), called(f"c{half}"), gave(f"c{half}")]
    yield [user() | {"name": half}]
    yield [user(), said(None, tool_calls=[{"id": "c1", "function": function | {"name": half}}])]
    yield [user() | {half: "x"}]


@pytest.mark.parametrize("half", histories.HALVES)
@pytest.mark.parametrize("place", range(14))
def test_half_a_surrogate_pair_is_replaced(place: int, half: str, gateways: Gateways) -> None:
    site = gateways("qwen3")
    history = next(itertools.islice(halves_of_chat(half), place, None))
    answer, body = ask(site, history)
    assert degraded(answer) == [Degradation.HALF_SURROGATE]
    check_continued(site, answer, body)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("half", histories.HALVES)
def test_the_newest_message_may_have_a_half(half: str, api: str, gateways: Gateways) -> None:
    site = gateways("qwen3")
    history = ["a"] if api == "completions" else [user()]
    answer, _ = ask(site, history, api, newest=f"log {half}")
    assert "\ufffd" in prompt(site)
    assert degraded(answer) == [Degradation.HALF_SURROGATE]


def test_halves_that_were_encoded_are_replaced_and_pairs_are_joined(gateways: Gateways) -> None:
    site = gateways("qwen3")
    body = b'{"model": "openclaw", "messages": [{"role": "user", "content": "%s"}]}'
    pair = "\ud83d\ude00".encode("utf-8", "surrogatepass")
    half = "\ud83d".encode("utf-8", "surrogatepass")
    for text, shown in (
        (pair, "😀"),
        (b"a" + half, "a\ufffd"),
        (b"\\\\ud83d" + half, "\\ud83d\ufffd"),
    ):
        answer = site.http.post(PATHS["chat"], body % text)
        assert answer.status_code == 200, answer.text
        assert shown in prompt(site)


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
@pytest.mark.parametrize("name", histories.CONTENTS)
def test_odd_content_is_shown(name: str, role: str, gateways: Gateways) -> None:
    site = gateways("qwen3")
    content = histories.CONTENTS[name]
    answer, body = ask(site, [user(), {"role": role, "content": content, "tool_call_id": "c1"}])
    assert "odd" in prompt(site) or "odd" not in str(content)
    check_continued(site, answer, body)
    if role == "tool":
        return
    for api in ("messages", "responses"):
        answer, body = ask(site, [user(), {"role": role, "content": content}], api)
        assert "odd" in prompt(site) or "odd" not in str(content)
        check_continued(site, answer, body, api)


@pytest.mark.parametrize("name", histories.MESSAGES)
def test_odd_messages_are_shown(name: str, gateways: Gateways) -> None:
    site = gateways("qwen3")
    message = histories.MESSAGES[name]
    answer, body = ask(site, [user(), message])
    assert "odd" in prompt(site) or message is None
    assert degraded(answer)
    check_continued(site, answer, body)


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("name", histories.FOREIGN_BLOCKS)
def test_parts_of_other_servers_are_shown(name: str, role: str, gateways: Gateways) -> None:
    site = gateways("qwen3")
    block = histories.FOREIGN_BLOCKS[name]
    for api in ("chat", "messages"):
        answer, body = ask(site, [user(), {"role": role, "content": ["x", block]}], api)
        reasons = role == "assistant" and name.startswith(("thinking", "reasoning"))
        assert "odd" in prompt(site) or reasons or "odd" not in str(block) or "video" in name
        check_continued(site, answer, body, api)


@pytest.mark.parametrize("name", histories.FOREIGN_ITEMS)
def test_items_of_other_servers_are_shown(name: str, gateways: Gateways) -> None:
    site = gateways("qwen3")
    item = histories.FOREIGN_ITEMS[name]
    answer, body = ask(site, [user(), item], "responses")
    assert "odd" in prompt(site) or "odd" not in str(item) or "reasoning" in name
    assert degraded(answer)
    check_continued(site, answer, body, "responses")


def test_encrypted_reasoning_of_our_own_reply_keeps_its_mark(gateways: Gateways) -> None:
    """A client may put parts of another server beside the text of our reply: it is linked all the same."""
    site = gateways("qwen3")
    answer, body = ask(site, [user()])
    reply = answer.json()["choices"][0]["message"]
    parts = [{"type": "redacted_thinking", "data": "Q"}, {"type": "text", "text": reply["content"]}]
    replayed = {"role": "assistant", "content": parts}
    second, _ = ask(site, [*body["messages"], replayed], newest="more")
    first = site.get(answer.json()["id"])
    assert first.reply is not None
    assert first.reply.mark is not None
    assert first.reply.mark.chain in [m.chain for m in site.get(second.json()["id"]).request.marks]


@pytest.mark.parametrize("kind", ["mistral_array", "gemma", "llama3_1", "qwen3_5_think"])
@pytest.mark.parametrize("name", histories.LOOSE)
def test_results_whose_call_is_gone_are_shown(name: str, kind: str, gateways: Gateways) -> None:
    site = gateways(kind)
    answer, body = ask(site, histories.LOOSE[name])
    # Llama's template shows no text beside a call, and this Mistral's neither.
    assert "odd" in prompt(site) or "call" in name
    check_continued(site, answer, body)


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("name", histories.CALLS)
def test_calls_are_shown_without_a_form_for_them(
    name: str, tools: bool, gateways: Gateways
) -> None:
    site = gateways("gemma")
    answer, body = ask(site, histories.CALLS[name], tools=tools)
    assert Degradation.CALLS_AS_TEXT in degraded(answer)
    assert "odd" in prompt(site)
    assert "Call of the tool edit with" in prompt(site)
    check_continued(site, answer, body)


def test_several_calls_are_shown_one_by_one_where_the_template_takes_one(
    gateways: Gateways,
) -> None:
    site = gateways("llama3_1")
    history = [user(), called("c1", "c2"), gave("c2", "second"), gave("c1", "first")]
    answer, body = ask(site, history)
    assert degraded(answer) == [Degradation.SINGLE_CALLS]
    assert prompt(site).index("first") < prompt(site).index("second")
    check_continued(site, answer, body)


@pytest.mark.parametrize(
    ("api", "newest"),
    [
        ("chat", {"role": "critic", "content": "x"}),
        ("chat", user(5)),
        ("chat", user([{"type": "x_new"}])),
        ("chat", said("x", tool_calls=[None])),
        ("messages", {"role": "critic", "content": "x"}),
        ("messages", user(None)),
        ("messages", user([{"type": "server_tool_use"}])),
        ("responses", {"role": "critic", "content": "x"}),
        ("responses", {"type": "x_new"}),
        ("responses", {"type": "function_call_output", "call_id": "c1", "output": None}),
        ("responses", None),
        ("chat", user([{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}])),
    ],
)
def test_the_newest_message_is_refused(api: str, newest: Any, gateways: Gateways) -> None:
    site = gateways("qwen3")
    field = "input" if api == "responses" else "messages"
    body = {"model": "openclaw", "max_tokens": 8, field: [user(), newest]}
    if api == "responses":
        del body["max_tokens"]
    answer = site.http.post(PATHS[api], body)
    assert answer.status_code == 400, answer.text
    # The same message, once it is an earlier one.
    ask(site, [user(), newest], api)


def test_an_earlier_image_is_replaced_where_the_model_reads_none(gateways: Gateways) -> None:
    site = gateways("qwen3")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer, body = ask(site, [user(["see", image]), said()])
    assert degraded(answer) == [Degradation.IMAGE]
    assert "(Here was an image, which this model cannot see.)" in prompt(site)
    check_continued(site, answer, body)


def test_a_forced_number_is_still_refused(gateways: Gateways) -> None:
    site = gateways("qwen3")
    answer = site.http.post(
        PATHS["chat"], b'{"model": "openclaw", "temperature": NaN, "messages": [{"role": "user"}]}'
    )
    assert answer.status_code == 400
    answer, _ = ask(site, [user(), called("c1", arguments={"a": float("nan")}), gave("c1")])
    assert degraded(answer) == [Degradation.NON_FINITE_NUMBER]
    assert "NaN" in prompt(site)


@pytest.mark.parametrize("letters", [*histories.SYSTEMS, *histories.NEIGHBOURS])
def test_a_degraded_prompt_is_rendered_again_alike(letters: str, gateways: Gateways) -> None:
    """The trainer renders stored conversations again, to put a hint into them."""
    site = gateways("gemma")
    history, _ = histories.by_letters(letters)
    answer, _ = ask(site, history)
    request = site.get(answer.json()["id"]).request
    again = site.renderer.render(request.messages, request.tools, variables=request.template)
    assert again.prompt_ids.tolist() == request.prompt_ids.tolist()
    assert [mark.index for mark in request.marks] == list(range(len(letters) + 1))


def test_random_histories_are_answered_and_linked(
    gateways: Gateways, request: pytest.FixtureRequest
) -> None:
    """`make fuzz` tries ten times as many."""
    count = request.config.getoption("--histories")
    seed = request.config.getoption("--histories-seed")
    changed = 0
    for api, kind, history, tools in histories.random_histories(count, seed):
        site = gateways(kind)
        answer, body = ask(site, history, api, tools=tools and api != "completions")
        changed += bool(degraded(answer))
        if api != "completions":
            check_continued(site, answer, body, api)
    assert changed > count // 2
