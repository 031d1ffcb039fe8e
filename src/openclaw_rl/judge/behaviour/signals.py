"""Signals: what a turn shows without words. Pure functions from the judge's input to a statement, or None."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import DISTINCTIVE_CHARS, hashed_text, message_text
from openclaw_rl.store.behaviour.observations import ABANDONED, COPIED, EDITED, REGENERATED
from openclaw_rl.types import JudgeInput, Message

Signal = Callable[[JudgeInput], str | None]
"""Returns what the person or the tool did, as text for the verdict's reason; None: nothing of the kind."""

SEARCHED_CHARS = 4_096
"""Head and tail of a tool result in which an exit code is searched."""
_EXIT_CODE = re.compile(
    r"(?:^|\n)[^\w\n]{0,8}(?:(?:process|command|program|script|shell) )?"
    r"(?:exit(?:ed)?(?: with)?(?: exit)? (?:code|status)|return ?code)[ :=]+(-?\d{1,9})\b"
    r"|\"(?:exit_?code|exit_?status|return_?code)\": ?(-?\d{1,9})\b",
    re.IGNORECASE,
)


def regenerated(item: JudgeInput) -> str | None:
    """The person asked for another reply, and did not continue with this one."""
    happened = REGENERATED in item.observed and not item.reaction.messages
    return "the person asked for another reply to the same message" if happened else None


def edited(item: JudgeInput) -> str | None:
    """The person changed the message and sent it again, and did not continue with this reply."""
    happened = EDITED in item.observed and not item.reaction.messages
    return "the person changed the message and sent it again" if happened else None


def abandoned(item: JudgeInput) -> str | None:
    """Nothing followed the reply."""
    happened = ABANDONED in item.observed and not item.reaction.messages
    return "nothing followed the reply" if happened else None


def copied(item: JudgeInput) -> str | None:
    """Text of the reply went into another conversation or a tool call."""
    if COPIED not in item.observed:
        return None
    return "text of the reply stands in another conversation or a later tool call"


def repeated(item: JudgeInput) -> str | None:
    """The next message of the person asks the same again.

    A message that returns often is a program's. So may be one that returns letter by letter, unless it is the question
    with which the conversation began: loops send a fixed nudge ("Continue with the next step.").
    """
    asked = _person_texts(item.messages)
    asked_next = _person_texts(item.reaction.messages)
    if not asked or asked_next[-1:] != asked[-1:]:
        return None
    question = asked[-1]
    if len(question) < DISTINCTIVE_CHARS or asked.count(question) > 1:
        return None
    if len(asked) > 1 and _last_text(item.messages) == _last_text(item.reaction.messages):
        return None
    return "the person's next message asks the same again"


def tool_error(item: JudgeInput) -> str | None:
    """The client marked a tool result as an error."""
    results = _tool_results(item)
    failed = sum(message.get("is_error") is True for message in results)
    if not failed:
        return None
    return f"{failed} of {len(results)} tool results are marked as errors"


def exit_code(item: JudgeInput) -> str | None:
    """A command ended with another exit code than 0."""
    texts = [
        head_and_tail(message_text(message), SEARCHED_CHARS) for message in _tool_results(item)
    ]
    codes = [int(a or b) for text in texts for a, b in _EXIT_CODE.findall(text)]
    failed = next((code for code in codes if code), None)
    return f"a command ended with exit code {failed}" if failed is not None else None


SIGNALS: Mapping[str, Signal] = {
    REGENERATED: regenerated,
    EDITED: edited,
    "repeated": repeated,
    ABANDONED: abandoned,
    COPIED: copied,
    "tool_error": tool_error,
    "exit_code": exit_code,
}
"""Name -> signal. The weights are settings of the same name (`judge.signals`)."""


def may_occur(name: str, item: JudgeInput) -> bool:
    """Return whether the turn could show the signal at all; else its absence is no evidence."""
    if name in ("tool_error", "exit_code"):
        return bool(_tool_results(item))
    return name != "repeated" or bool(_person_texts(item.reaction.messages))


def _tool_results(item: JudgeInput) -> list[Message]:
    return [message for message in item.reaction.messages if message.get("role") == "tool"]


def _last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last user message as it was sent."""
    texts = [hashed_text(message) for message in messages if message.get("role") == "user"]
    return texts[-1] if texts else ""


def _person_texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of the user messages; case, white space and marks at the end are ignored."""
    texts = (hashed_text(message) for message in messages if message.get("role") == "user")
    return [" ".join(text.split()).rstrip(".!?").casefold() for text in texts]
