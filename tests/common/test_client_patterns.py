"""The shipped expressions: each knows what it is for, and none of them takes long, whatever the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.growth import FACTOR, check_linear_growth

from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common import client_patterns, message_hash
from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.linear_regex import LinearPattern
from openclaw_rl.errors import ConfigError
from openclaw_rl.settings.load import CollectConfig, from_flat
from openclaw_rl.types import Message

SIZE = 50_000  # characters

WAKE = "[Sat 2026-11-21 12:13 UTC] [OpenClaw exec completion]\nDisable automatic completion turns with x.\n"
RUN = "Runtime: agent=main | session=agent:main:main | sessionId=7f3a | host=vm"
CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nit is 6 pm\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\n"
BEAT = "Read HEARTBEAT.md and follow it. If nothing needs attention, reply HEARTBEAT_OK."
FLUSH = "Pre-compaction memory flush. Store what lasts. If there is nothing, reply NO_REPLY."
EVENTS = "System: [2026-11-21] the node came up\nSystem: it went away\n\nSystem:  one more \n \n"
TIME = "\nCurrent time: Saturday"
QUEUED = (
    "[Queued user message from a previous active turn; preserved as context only.]\nExplain it.\n\n"
)
CONTINUE = "Continue the current task from the existing transcript, preserving completed work. "

PASSING = (
    CONTEXT * 2,
    f"{WAKE}{WAKE[27:]}{RUN}\n",
    "<system-reminder>\nx\n</system-reminder>\n" * 2,
)
COMMAND = "<command-name>/x</command-name>\n<local-command-stdout>y</local-command-stdout>"
TASKS = (
    "Please generate a concise, 3-5 word title for this conversation.",
    "Write a short title of few words, from the user's first message",
    "You are a helpful summarization assistant",
    "Summarize this coding conversation",
    "You write short conversation titles",
    "Based on this conversation, generate a short 2-3 word slug",
    "You write the live status line for an AI assistant",
    "### Task:\nSay more. \n### Chat History:\n",
    "### Task:\n Generate a concise, 3-5 word title",
    "<session>\nhello\n</session>\n</session> \n Write the title",
    "CRITICAL: Respond with TEXT ONLY. Do not call any tools. Your task is to create a detailed summary of the "
    "conversation",
    "[SUGGESTION MODE: suggest what",
    "The user stepped away and is coming back. Recap",
    "quota",
)
PROMPTS = (
    f"{WAKE}{RUN}",
    "Follow the heartbeat monitor scratch context when provided. And so on",
    f"A scheduled reminder has been triggered. Water the plants.\n{TIME}",
    f"An async command completion event was triggered, handle it.\n{TIME}",
    "[cron:0123abcd-0123-0123-0123-0123456789ab nightly] look at the logs",
    EVENTS + BEAT,
    EVENTS + FLUSH,
)
RESUMED = f"{QUEUED}{CONTINUE} \n"
EXAMPLES = (*PASSING, COMMAND, *TASKS, *PROMPTS, RUN, RESUMED)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def test_every_shipped_expression_has_an_example() -> None:
    passing = message_hash.EphemeralMatcher(client_patterns.EPHEMERAL_PATTERNS)
    assert all(passing(user(text)) for text in (*PASSING, COMMAND))
    known = [LinearPattern(p) for p in client_patterns.SIDE_PATTERNS]
    assert all(any(p.matches(text) for text in TASKS) for p in known)
    assert all(any(p.matches(text) for p in known) for text in TASKS)
    known = [LinearPattern(p) for p in client_patterns.CLIENT_PROMPT_PATTERNS]
    assert all(any(p.fullmatch(text) for text in PROMPTS) for p in known)
    assert all(any(p.fullmatch(text) for p in known) for text in PROMPTS)


@pytest.mark.parametrize(
    "text",
    [
        BEAT,
        f"System: one\n{BEAT}",
        f"System: one \n\n  System: two\n\n\n{BEAT}\nWhatever it says.",
        EVENTS + FLUSH,
    ],
)
def test_a_wake_is_the_clients_own(text: str) -> None:
    sides = TrafficClassifier((), CollectConfig().client_prompt_patterns)
    assert sides.is_client_prompt(user(text))
    assert not sides.is_client_prompt(user(f"I wrote this. {text}"))


# --- none of them takes long -------------------------------------------------------------------------------------


def adversarial(size: int) -> Iterator[str]:
    """Each example cut off at a few places, where something goes on and on, and then does not end as it should."""
    for example in EXAMPLES:
        cuts = {m.end() for m in re.finditer(r"[\w>\]]+[^\w\s]*\s*", example)} | {len(example)}
        for cut in (*sorted(cuts)[:: max(1, len(cuts) // 8)], len(example)):
            head = example[:cut]
            for unit in (" ", "\n", " \n", "a", "a ", "[", "System: x\n", head, example):
                yield head + unit * (size // len(unit)) + "!"
    known = yaml.safe_load((ASSETS / "client_prompts.yaml").read_text(encoding="utf-8"))
    for pattern in (p for kind in known.values() for entry in kind for p in entry["patterns"]):
        head = re.split(r"(?<!\\)[()\[\]{}|*+?^$]", pattern.removeprefix("\\A"))[0].replace(
            "\\", ""
        )
        for unit in (" ", "\n", head or "x"):
            yield head + unit * (size // len(unit)) + "!"
    for unit in (
        " ",
        "\n",
        RUN,
        f"{RUN} \n",
        CONTINUE,
        f"{CONTINUE} \n",
        QUEUED,
        QUEUED[:-20],
        TIME,
    ):
        yield f"[Queued user message {QUEUED}Runtime: agent={unit * (size // len(unit))}!"


def test_no_expression_takes_more_than_linear_time() -> None:
    passing, sides = (
        message_hash.EphemeralMatcher(client_patterns.EPHEMERAL_PATTERNS),
        TrafficClassifier(client_patterns.SIDE_PATTERNS, client_patterns.CLIENT_PROMPT_PATTERNS),
    )

    def match_all(text: str) -> None:
        passing(user(text))
        sides.side_pattern_match(user(text))
        message_hash.strip_client_text(text)
        message_hash.openclaw_session(user(text))
        message_hash.visible_text({"role": "assistant", "content": text})

    smaller = SIZE // FACTOR
    for short, long in zip(adversarial(smaller), adversarial(SIZE), strict=True):
        texts = {smaller: short, SIZE: long}
        try:
            check_linear_growth(match_all, texts.__getitem__, SIZE)
        except AssertionError as error:
            pytest.fail(f"{error}; at the text {long[:200]!r}")


@pytest.mark.parametrize(
    "key", ["collect.side_patterns", "collect.client_prompt_patterns", "serve.ephemeral_patterns"]
)
def test_an_invalid_expression_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        from_flat({key: ["("]})


@pytest.mark.parametrize(
    "key", ["collect.side_patterns", "collect.client_prompt_patterns", "serve.ephemeral_patterns"]
)
@pytest.mark.parametrize("expression", ["a(?=b)", "(?<!a)b", r"(a)\1", "a*+"])
def test_an_expression_that_needs_backtracking_is_refused_at_the_start(
    key: str, expression: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"{key}: .* is not a regular expression of RE2: .* not supported"
    ):
        from_flat({key: [expression]})


def test_an_owners_expression_reads_all_of_a_long_text_in_linear_time() -> None:
    passing = message_hash.EphemeralMatcher(["^(<x>(y+)+</x>)+$"])

    def almost(size: int) -> dict[str, Any]:
        return user("<x>" + "y" * size + "</x>!")

    assert passing(user("<x>" + "y" * SIZE + "</x>"))
    assert not passing(almost(SIZE))
    check_linear_growth(passing, almost, SIZE)


def test_messages_typed_during_a_run_are_never_ephemeral() -> None:
    typed = "<system-reminder>\n The user sent a new message while you were working: stop\n</system-reminder>"
    passing = message_hash.EphemeralMatcher(client_patterns.EPHEMERAL_PATTERNS)
    assert passing(user("<system-reminder>The user opened a.py</system-reminder>"))
    assert not passing(user(typed))
    assert not passing(user(f"<system-reminder>x</system-reminder>{typed}"))


def test_text_in_the_middle_of_a_long_message_is_read() -> None:
    """Words of a person's in the middle of a long message are not passed over."""
    block = CONTEXT.replace("it is 6 pm", "y" * SIZE)
    passing = message_hash.EphemeralMatcher(client_patterns.EPHEMERAL_PATTERNS)
    assert passing(user(block + block))
    assert not passing(user(f"{block}What is this?\n{block}"))
