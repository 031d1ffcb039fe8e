"""Prompts of the llm judge, for turns, evaluations, pairs of replies and lessons, and of the teacher.

The record is fenced by a hash that its authors cannot predict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openclaw_rl.common.assets import read_yaml_asset
from openclaw_rl.common.message_hash import visible_text
from openclaw_rl.types import JudgeInput, Message

SYSTEM_CHARS = 2_000
# Limit for one earlier message.
EARLIER_CHARS = 1_500
# Limit for all earlier messages together.
HISTORY_CHARS = 24_000

_PROMPTS = read_yaml_asset("judge_prompts.yaml")
JUDGE_PROMPT: Mapping[str, str] = _PROMPTS["judge"]
TEACHER_PROMPT: Mapping[str, str] = _PROMPTS["teacher"]
EVALUATION_PROMPT: Mapping[str, str] = _PROMPTS["evaluation"]
PAIR_PROMPT: Mapping[str, str] = _PROMPTS["pair"]
LESSON_PROMPT: Mapping[str, str] = _PROMPTS["lesson"]


def build_messages(
    prompt: Mapping[str, str], item: JudgeInput, is_ephemeral: Callable[[Message], bool]
) -> list[dict[str, str]]:
    """Return the instructions and the fenced record as messages.

    The user's last request, the reply and the reaction are always complete. The system prompt and the other messages
    are trimmed to a budget, with a visible mark for omitted text.
    """
    history = [m for m in item.messages if not is_ephemeral(m)]
    blocks = [
        *_conversation_blocks(history),
        ("REPLY under judgement", _message_text(item.reply)),
        *_reaction_blocks(item),
    ]
    return _fence_record(prompt, blocks)


def build_evaluation_messages(
    messages: Sequence[Message], reply: Message, references: Sequence[str]
) -> list[dict[str, str]]:
    """Return the instructions and the fenced record of a reply that nobody has reacted to.

    `references`: answers that count as correct, may be empty. Nothing is left out of the last request and the reply.
    """
    blocks = [*_conversation_blocks(messages), ("REPLY under judgement", _message_text(reply))]
    if references:
        blocks.append(("REFERENCE, answers that count as correct", "\n".join(references)))
    return _fence_record(EVALUATION_PROMPT, blocks)


def build_lesson_messages(
    item: JudgeInput,
    hints: Sequence[str],
    lessons: Sequence[str],
    is_ephemeral: Callable[[Message], bool],
) -> list[dict[str, str]]:
    """Return the instructions and the fenced record of a judged turn, its hints, and the lessons that are known."""
    history = [m for m in item.messages if not is_ephemeral(m)]
    blocks = [
        *_conversation_blocks(history),
        ("REPLY", _message_text(item.reply)),
        *_reaction_blocks(item),
    ]
    blocks += [("HINT", hint) for hint in hints]
    blocks += [(f"LESSON {number}", text) for number, text in enumerate(lessons, 1)]
    return _fence_record(LESSON_PROMPT, blocks)


def build_pair_messages(
    messages: Sequence[Message], first: str, second: str
) -> list[dict[str, str]]:
    """Return the instructions and the fenced record of two replies to the same request."""
    blocks = [*_conversation_blocks(messages), ("FIRST reply", first), ("SECOND reply", second)]
    return _fence_record(PAIR_PROMPT, blocks)


def _fence_record(
    prompt: Mapping[str, str], blocks: Sequence[tuple[str, str]]
) -> list[dict[str, str]]:
    fence = hashlib.sha256(repr(blocks).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    record = "\n".join(f"<<{fence} {title}>>\n{text}" for title, text in blocks)
    return [
        {"role": "system", "content": prompt["instructions"]},
        {
            "role": "user",
            "content": f"KEY {fence}\n{record}\n<<{fence} end>>\n\n{prompt['question']}",
        },
    ]


def _conversation_blocks(history: Sequence[Message]) -> list[tuple[str, str]]:
    last = max((i for i, m in enumerate(history) if m.get("role") == "user"), default=-1)
    budget = HISTORY_CHARS
    blocks: list[tuple[str, str]] = []
    left_out = 0
    # Newest first: recent messages matter most.
    for index in range(len(history) - 1, -1, -1):
        message = history[index]
        role = str(message.get("role", ""))
        text = _message_text(message)
        if index == last:
            blocks.append(("user: the last request", text))
            continue
        text = trim_middle(text, SYSTEM_CHARS if role in ("system", "developer") else EARLIER_CHARS)
        if len(text) > budget and role not in ("system", "developer"):
            left_out += 1
            continue
        budget -= len(text)
        blocks.append((_block_title(message), text))
    blocks.reverse()
    if left_out:
        blocks.insert(0, ("note", f"[... {left_out} earlier messages left out ...]"))
    return blocks


def _reaction_blocks(item: JudgeInput) -> list[tuple[str, str]]:
    reaction = item.reaction
    blocks = [(f"REACTION, {_block_title(m)}", _reaction_text(m)) for m in reaction.messages]
    for feedback in reaction.feedback:
        if feedback.comment:
            blocks.append(("REACTION, feedback by the user", feedback.comment))
    return blocks or [("REACTION", "(nothing)")]


def _block_title(message: Message) -> str:
    """Return the role, and whether a tool failed; a tool result cannot forge a title."""
    role = str(message.get("role", ""))
    is_tool_result = role in ("tool", "function")
    if is_tool_result and message.get("is_error") is True:
        return f"{role}: the call failed"
    return role


def _reaction_text(message: Message) -> str:
    """Return a message's text; trim the client's own long instructions, which would dominate the reaction."""
    text = _message_text(message)
    if message.get("role") in ("system", "developer"):
        return trim_middle(text, SYSTEM_CHARS)
    return text


def _message_text(message: Message) -> str:
    """Return text and tool calls of a message as readable text; images become a placeholder, reasoning is omitted."""
    content = message.get("content")
    lines = [visible_text(message)]
    if isinstance(content, list):
        lines = list(map(_part_text, content))
    calls = message.get("tool_calls") or ()
    lines += [f"[tool call] {_call_text(call)}" for call in calls]
    return "\n".join(filter(None, lines)) or "(empty)"


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return f"[{part.get('type', 'part') if isinstance(part, dict) else 'part'}]"


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return json.dumps(call, ensure_ascii=False, default=str)
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    return f"{function.get('name', '')}({arguments})"


def trim_middle(text: str, limit: int) -> str:
    """Return head and tail of a long text, with a mark that states the number of omitted characters."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit // 3
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[-tail:]}"
