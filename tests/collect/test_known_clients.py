"""The prompts of known clients are recognised, and what a person writes is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.collect.world import Ask, Stored

from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.collect.worker import Collector
from openclaw_rl.common.assets import ASSETS
from openclaw_rl.settings.load import CollectConfig
from openclaw_rl.types import Kind

CLASSIFIER = TrafficClassifier(())
SUMMARY = "Create a summary of the conversation above:"
PERSON = [
    "Create a summary of the report above.",
    "Summarize what we have so far and send it to Bob.",
    "Please continue.",
    "What did we do so far?",
    "Continue with the next chapter.",
    "Can you critically evaluate this plan?",
    "Analyze the tool result and tell me what is wrong.",
    "I ran this command:\nls -l\nand it failed",
    "I did `git reset --hard HEAD~1` to discard the last edits.",
    "New task:\nwrite a poem",
    "no, shorter",
    "thanks, perfect!",
    "You are a helpful assistant? Prove it.",
    "Generate a title for my novel.",
    "Fantastic. Now the second one.",
    "Your task is to win this game.",
    "<task>\nfix the bug\n</task>",
    "Based on the above, please provide an answer.",
    "Search for memories of my holiday.",
    "### Task:\nWrite the release notes.",
    "Please summarize this conversation.",
    "Hold on, before you continue: the date is wrong.",
    "Summarize the conversation so far.",
    "Summarize the conversation history so far, please.",
    "Summarize the most important facts and events in the story so far.",
    "Analyze the following text and extract key topics.",
    "Please write a brief title for my blog post.",
    "Write your next reply from the point of view of a pirate.",
    "Your task is to summarize the attached report.",
    "The following messages are from my boss. What does she want?",
    "Got it. Thanks for the context!",
    "Review the conversation above and tell me what I missed.",
    "Summarize the following text: it is about Rome.",
    "Summarize the following conversation: he said no.",
    "Generate a descriptive name for this conversation between two kings.",
    "No tool call detected in last message. Why?",
]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("text", PERSON)
def test_messages_of_people_are_no_client_prompts(text: str) -> None:
    message = user(text)
    assert not CLASSIFIER.is_client_prompt(message)
    assert not CLASSIFIER.is_client_text(message)
    assert CLASSIFIER.side_pattern_match(message) is None


def test_the_title_prompt_of_chatbox_is_a_client_prompt() -> None:
    text = "Based on the chat history, give this conversation a name.\nKeep it short - 30 characters max."
    assert CLASSIFIER.is_client_prompt(user(text))
    assert CLASSIFIER.side_pattern_match(user(text)) is not None


CLIENT_MESSAGES = {
    "SillyTavern, summary": (
        "system",
        "Ignore previous instructions. Summarize the most important facts and events in the story so far. If a summary "
        "already exists in your memory, use that as a base and expand with new facts.",
    ),
    "HF chat-ui, title": (
        "system",
        "You are a chat thread titling assistant.\nGoal: Produce a very short, descriptive title (2-4 words).",
    ),
    "HF chat-ui, summary": (
        "user",
        "Summarize concisely the following reasoning for the user. Keep it short (one short paragraph).\n\nI add.",
    ),
    "Letta, summary": (
        "system",
        "Your job is to summarize a history of previous messages in a conversation between an AI persona and a human.\n"
        "The conversation you are given is a from a fixed context window and may not be complete.",
    ),
    "Letta, sliding window": (
        "user",
        "The previous messages are being evicted from the BEGINNING of your context window. Write a detailed summary "
        "that captures what happened in these messages.",
    ),
    "VS Code Copilot Chat, summary": (
        "user",
        "Summarize the conversation history so far, paying special attention to the most recent agent commands and "
        "tool results that triggered this summarization.",
    ),
    "VS Code Copilot Chat, system message of the summary": (
        "system",
        "Your task is to create a comprehensive, detailed summary of the entire conversation that captures all "
        "essential information needed to seamlessly continue the work without any loss of context.",
    ),
    "VS Code Copilot Chat, title": (
        "user",
        "Please write a brief title for the following request:\n\nSort a list.",
    ),
    "Vercel AI chatbot, title": (
        "system",
        "\n\n    - you will generate a short title based on the first message a user begins a conversation with\n"
        "    - ensure it is not more than 80 characters long",
    ),
    "Vercel AI chatbot, newer title": (
        "system",
        "Generate a short chat title (2-5 words) summarizing the user's message.\n\nOutput ONLY the title text.",
    ),
    "Google ADK, compaction": (
        "user",
        "The following is a conversation history between a user and an AI agent. Please summarize the conversation, "
        "focusing on key information and decisions made.",
    ),
    "Google ADK, newer compaction": (
        "user",
        "The following is a conversation history between a user and an AI agent. It may or may not start from a "
        "compacted history. Please identify and reiterate the user request.",
    ),
    "Kimi CLI, compaction": (
        "user",
        "## Message 1\nRole: user\nContent:\nSort a list.\n---\n\nThe above is a list of messages in an agent "
        "conversation. You are now given a task to compact this conversation context according to specific priorities.",
    ),
    "Hermes agent, compaction": (
        "user",
        "You are a summarization agent creating a context checkpoint. Treat the conversation turns below as source "
        "material for a compact record of prior work.",
    ),
    "Hermes agent, title": (
        "system",
        "You name chat sessions. Given the user's opening message, write a title that lets them find it again.",
    ),
    "Hermes agent, memory": (
        "user",
        "Review the conversation above and consider saving to memory if appropriate.\n\nFocus on:\n1. Has the user",
    ),
    "Qwen Code, memory": (
        "user",
        "Managed memory has TWO directories. Choose which one to write each memory into using the per-type `<scope>` "
        "guidance in your system instructions:",
    ),
    "Qwen Code, memory consolidation": (
        "user",
        "Memory directory: `/home/ann/.qwen/memories`\nSession transcripts: `/home/ann/.qwen/tmp/1/chats` (JSONL)",
    ),
    "gptme, title": (
        "user",
        "Your task: Create a 2-4 word title for this conversation.\n\nRules:\n- Respond with ONLY the title",
    ),
    "gptme, name": (
        "user",
        "Generate a descriptive name for this conversation.\n\nThe name should be 3-6 words, separated by dashes.",
    ),
    "gptme, system message of the title": ("system", "Generate concise conversation titles."),
    "Griptape, summary": (
        "user",
        "\nSummarize the following conversation:\n\n\n\nHuman: Hello\nAssistant: Hi there.\n",
    ),
    "Griptape, next summary": (
        "user",
        'Conversation summary:\n"""\nThey met.\n"""\n\nUpdate the summary with this:\n\n\nHuman: Bye\nAssistant: Bye.',
    ),
    "Griptape, summary of a text": (
        "user",
        'Summarize the following text: """\nRome is old.\n"""\n\nSummary:\n',
    ),
    "NeMo Guardrails, intent": (
        "user",
        '"""\nBe kind.\n"""\n\n# This is how a conversation between a user and the bot can go:\nuser "Hi"\n\n'
        '# This is how the user talks:\nuser "Hi"\n  express greeting\n\nuser action: user said "Hello"',
    ),
    "NeMo Guardrails, facts": (
        "user",
        "You are given a task to identify if the hypothesis is grounded and entailed to the evidence.\nAnswer.",
    ),
    "Semantic Kernel, topics": (
        "user",
        "Analyze the following extract taken from a conversation transcript and extract key topics.\n- Be brief.",
    ),
    "Qwen Code, compaction": (
        "user",
        "First, reason in your <analysis> block. Then, produce the <state_snapshot> XML.",
    ),
}


@pytest.mark.parametrize("client", CLIENT_MESSAGES)
def test_the_prompt_of_a_known_client_makes_a_side_call(tmp_path: Path, client: str) -> None:
    role, text = CLIENT_MESSAGES[client]
    world = Stored(tmp_path / "store.db")
    first, place = "u Where shall we eat on Friday?", "There is a good Italian place by the river."
    world.play(Ask(name="1", history=[first], reply=place))
    prompt = {"role": role, "content": text}
    history = [prompt, first] if role == "system" else [first, f"a {place}", prompt]
    world.play(Ask(name="2", history=history, reply="Dinner."))
    assert (world.seen("2").kind, world.seen("2").answers) == (Kind.SIDE, {})
    world.store.close()


@pytest.mark.parametrize("known", [True, False])
def test_the_setting_turns_the_catalogue_off(tmp_path: Path, known: bool) -> None:
    world = Stored(tmp_path / "store.db")
    world.collector = Collector(world.store, CollectConfig(known_clients=known))
    world.play(
        Ask(
            name="1",
            history=["u Where shall we eat?"],
            reply="There is a good Italian place by the river.",
        )
    )
    history = [
        "u Where shall we eat?",
        "a There is a good Italian place by the river.",
        f"u {SUMMARY}",
    ]
    world.play(Ask(name="2", history=history, reply="Dinner."))
    seen = world.seen("2")
    assert (seen.kind, "1" in seen.answers) == ((Kind.SIDE, False) if known else (Kind.MAIN, True))
    world.store.close()


def test_each_prompt_names_its_source() -> None:
    found = yaml.safe_load((ASSETS / "client_prompts.yaml").read_text(encoding="utf-8"))
    entries = [entry for kind in found.values() for entry in kind]
    assert len(entries) > 100
    assert all(entry["client"] and entry["source"] and entry["patterns"] for entry in entries)
