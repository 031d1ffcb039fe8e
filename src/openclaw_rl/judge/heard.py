"""Leave in a reaction only the person's own words, and what tools said. Every judge gets its turns through here.

Words of others in a person's message (quotations, pasted and forwarded texts, what a client added) reach no judge, so
that their wording changes no verdict. A tool result is heard without what it says to the judge.
"""

from __future__ import annotations

from dataclasses import replace

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import normalise_text, strip_time_stamp, visible_text
from openclaw_rl.common.rules.lesson_topics import MAX_WISH_CHARS, HintTopics
from openclaw_rl.common.rules.speakers import is_observation, own_words
from openclaw_rl.judge.head.judge_addressed import without_addressed_text
from openclaw_rl.judge.hint_support import HintSupport
from openclaw_rl.judge.voting import make_verdict
from openclaw_rl.protocols import Judge
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.types import Feedback, JudgeInput, Message, Reaction, Verdict

SILENT = "own-words"
"""Judge of a reaction in which others alone spoke."""


async def judge_heard(judge: Judge, item: JudgeInput, topics: HintTopics) -> Verdict:
    """Return a judge's verdict on what is heard of a turn, with the hints that the person's words support.

    `topics`: of the rules. Where others alone spoke, no judge is asked. Raises what the judge raises.
    """
    heard = heard_item(item)
    if is_silent(heard.reaction):
        reason = "no evidence: the reaction has no words of the person"
        return make_verdict(heard, SILENT, None, reason, reason_code=ReasonCode.NO_EVIDENCE)
    return HintSupport(heard.reaction, topics, heard.messages).keep_supported(
        await judge.judge(heard)
    )


def heard_item(item: JudgeInput) -> JudgeInput:
    """Return a turn with what is heard of its reaction. What is heard of that is the same."""
    reaction = heard_reaction(item.reaction)
    if reaction is not item.reaction:
        item = replace(item, reaction=reaction)
    return without_addressed_text(item)


def heard_reaction(reaction: Reaction) -> Reaction:
    """Return a reaction with the person's own words alone; what agents of the ReAct kind send is a tool result."""
    messages = tuple(map(_heard_message, reaction.messages))
    feedback = tuple(map(_heard_feedback, reaction.feedback))
    if messages == reaction.messages and feedback == reaction.feedback:
        return reaction
    return replace(reaction, messages=messages, feedback=feedback)


def is_silent(reaction: Reaction) -> bool:
    """Return whether a heard reaction has neither words of the person nor a tool result."""
    has_tool_result = any(message.get("role") != "user" for message in reaction.messages)
    has_words = any(visible_text(message) for message in reaction.messages)
    return (
        not has_tool_result and not has_words and not any(one.comment for one in reaction.feedback)
    )


def _heard_message(message: Message) -> Message:
    if message.get("role") != "user":
        return message
    visible = visible_text(message)
    text = head_and_tail(strip_time_stamp(visible), MAX_WISH_CHARS)
    if is_observation(text):
        return {"role": "tool", "content": visible}
    own = own_words(text, with_reports=True)
    return message if own == text else {**message, "content": own}


def _heard_feedback(feedback: Feedback) -> Feedback:
    comment = _heard_text(feedback.comment, with_reports=True)
    correction = _heard_text(feedback.correction, with_reports=False)
    if (comment, correction) == (feedback.comment, feedback.correction):
        return feedback
    return replace(feedback, comment=comment, correction=correction)


def _heard_text(text: str | None, *, with_reports: bool) -> str | None:
    """Return the own words of a text of feedback; None without any. Of a text without others, itself."""
    if text is None:
        return None
    normal = head_and_tail(normalise_text(text), MAX_WISH_CHARS)
    own = own_words(normal, with_reports=with_reports)
    if own == normal:
        return text
    return own or None
