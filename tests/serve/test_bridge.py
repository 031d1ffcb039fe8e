"""Where the history is unchanged, the next prompt goes on from the stored tokens; also after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from tests.serve.conftest import OTHER_KEY, TOOLS, USER, Site, Start

from openclaw_rl.types import Exchange

CALL = '<tool_call>\n{"name":"get_weather",  "arguments":{"city":"Paris"}}\n</tool_call>'
PASSING = {
    "role": "user",
    "content": [
        {"type": "text", "text": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> x <<<END_OPENCLAW_INTERNAL_CONTEXT>>>"}
    ],
}


def ask(site: Site, messages: list[Any], **options: Any) -> tuple[Any, Exchange]:
    """(the reply as the client would send it back, the exchange)."""
    answer = site.client(options.pop("key", "sk-test")).chat.completions.create(
        model="openclaw", messages=messages, **options
    )
    message = answer.choices[0].message.model_dump(exclude_none=True)
    return message | {"content": message.get("content")}, site.get(answer.id)


def stored(exchange: Exchange) -> list[int]:
    assert exchange.reply is not None
    return [*exchange.request.prompt_ids.tolist(), *exchange.reply.response_ids.tolist()]


def goes_on(exchange: Exchange, earlier: Exchange) -> bool:
    before = stored(earlier)
    return exchange.request.prompt_ids.tolist()[: len(before)] == before


def odd(site: Site, text: str) -> None:
    """Say `text` in tokens that no tokenizer would choose."""
    tokens = site.renderer.tokens
    site.script.ids = [i for c in text for i in tokens.encode(c).tolist()] + [site.renderer.stop_token_ids[0]]


@pytest.mark.parametrize("kind", ["chatml", "thinking", "llama"])
def test_turn_after_turn(start: Start, kind: str) -> None:
    site = start(kind)
    history: list[Any] = [{"role": "system", "content": "Be kind."}]
    earlier = None
    for turn in range(4):
        odd(site, f"{'Hm.</think>' if kind == 'thinking' else ''}This is answer {turn}, it is sunny.")
        history.append({"role": "user", "content": f"question {turn}"})
        reply, exchange = ask(site, history)
        assert earlier is None or goes_on(exchange, earlier)
        assert site.script.seen[-1] == exchange.request.prompt_ids.tolist()
        reply.pop("reasoning_content", None)  # clients do not send it back
        history.append(reply | {"content": "  " + reply["content"].replace("\n", "\r\n")})
        earlier = exchange
    text = site.renderer.tokens.tokenizer.decode(exchange.request.prompt_ids.tolist(), skip_special_tokens=False)
    if kind == "chatml":
        plain = [h | {"content": h["content"].strip()} for h in history[:-1]]
        assert text == site.renderer.text(plain)


def test_through_tool_calls(site: Site) -> None:
    site.script.say(f"{CALL}\n{CALL}")
    reply, first = ask(site, [USER], tools=TOOLS)
    for n, made in enumerate(reply["tool_calls"]):
        made["id"] = f"rewritten{n}"
        made["function"]["arguments"] = '{ "city": "Paris" }'
    results = [{"role": "tool", "tool_call_id": f"rewritten{n}", "content": f"{n} degrees"} for n in range(2)]
    _, second = ask(site, [USER, reply, *results], tools=TOOLS)
    assert goes_on(second, first)
    rest = second.request.prompt_ids.tolist()[len(stored(first)) :]
    assert site.renderer.tokens.tokenizer.decode(rest, skip_special_tokens=False) == (
        "\n<|im_start|>user\n<tool_response>\n0 degrees\n</tool_response>\n<tool_response>\n1 degrees\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_truncated_reply_gets_its_end(site: Site) -> None:
    odd(site, "This is a long answer.")
    reply, first = ask(site, [USER], max_tokens=6)
    _, second = ask(site, [USER, reply, USER])
    assert goes_on(second, first)
    end = site.renderer.tokens.special_ids["<|im_end|>"]
    assert second.request.prompt_ids[len(stored(first))] == end


def test_what_is_no_longer_the_same_is_rendered(site: Site) -> None:
    odd(site, "This is the answer.")
    reply, first = ask(site, [USER, PASSING])
    renderer = site.renderer

    def is_rendered(messages: list[Any], **options: Any) -> bool:
        _, exchange = ask(site, messages, **options)
        plain = renderer.render(messages, options.get("tools", ())).prompt_ids.tolist()
        return exchange.request.prompt_ids.tolist() == plain and not goes_on(exchange, first)

    assert is_rendered([USER, reply, USER]), "the passing context is gone"
    assert is_rendered([USER, PASSING, reply, USER], tools=TOOLS), "other tools"
    assert is_rendered([USER, PASSING, reply, USER], key=OTHER_KEY), "another key"
    assert is_rendered([USER, PASSING, reply | {"content": "Other."}, USER]), "another reply"
    assert is_rendered([{"role": "system", "content": "s"}, USER, PASSING, reply, USER]), "another beginning"
    _, again = ask(site, [USER, PASSING, reply, USER])
    assert goes_on(again, first), "all the same"


def test_a_reply_cut_by_a_stop_string_is_rendered(site: Site) -> None:
    odd(site, "This is the answer.")
    reply, first = ask(site, [USER], stop=["answer"])
    _, second = ask(site, [USER, reply, USER])
    assert not goes_on(second, first)


def test_after_a_restart_the_store_remembers(start: Start) -> None:
    one = start()
    odd(one, "This is the answer.")
    reply, first = ask(one, [USER])
    cut, cut_first = ask(one, [{"role": "user", "content": "two"}], stop=["answer"])
    passing, passing_first = ask(one, [USER, PASSING])
    one.close()
    two = start(store=one.store)
    _, second = ask(two, [USER, reply, USER])
    assert goes_on(second, first)
    _, third = ask(two, [{"role": "user", "content": "two"}, cut, USER])
    assert not goes_on(third, cut_first)
    _, fourth = ask(two, [USER, PASSING, passing, USER])
    assert not goes_on(fourth, passing_first), "nobody knows whether the passing context is the same"


def test_big_new_text_is_rendered_all_the_same(start: Start) -> None:
    site = start(settings={"engine.max_context": 1_000_000}, context_length=1_000_000)
    for size in (20_000, 700_000):
        big = {"role": "user", "content": "abc " * (size // 4)}
        reply, first = ask(site, [big])
        assert first.request.prompt_ids.tolist() == site.renderer.render([big]).prompt_ids.tolist()
        _, second = ask(site, [big, reply, USER])
        assert goes_on(second, first)
