"""`openclaw-rl chat`: chat with the model in the terminal and watch it learn from the conversation.

The chat is an HTTP client of the gateway. It reads verdicts, lessons and new versions from the event log in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from rich.text import Text
from sqlalchemy import Connection

from openclaw_rl.cli.load_config import with_running_gateway
from openclaw_rl.cli.prompt_line import PromptLine
from openclaw_rl.common.gateway_address import running_address
from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.errors import OpenClawError, StoreError
from openclaw_rl.settings.load import Config
from openclaw_rl.status import chat_notes
from openclaw_rl.status.chat_notes import learning_source
from openclaw_rl.status.report import open_store
from openclaw_rl.status.understanding import is_understood
from openclaw_rl.store import events, exchanges, turns
from openclaw_rl.store.lessons import lessons
from openclaw_rl.store.lessons.lessons import Lesson
from openclaw_rl.store.lessons.withdrawals import RESTORED_EVENT, WITHDRAWN_EVENT
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import policy_name, stored_owner
from openclaw_rl.supervisor.home_folder import is_home_locked, prepare_home
from openclaw_rl.supervisor.subprocess_system import StartingNotes, SubprocessSystem, is_ready
from openclaw_rl.supervisor.supervisor import read_key
from openclaw_rl.types import Event

_PROMPT = Text("you ", "bold green")
_HELP_TEXT = """Your next message is the feedback. Commands:
  /good [comment]      thumbs up for the last reply
  /bad  [correction]   thumbs down; describe how the reply should have been
  + or -               the same, or the answer if the chat has just asked about a reply
  /new                 start a new conversation
  /help, /quit         show this help; quit"""
_THUMBS = {"/good": "up", "/bad": "down"}
_ANSWERS = {"+": "up", "-": "down"}
"""Whole lines: a message may begin with such a character, too."""
_QUESTION = f"{chat_notes.NOT_UNDERSTOOD}; + or - says whether the reply before it was good"
# Seconds; long, for slow models.
_HTTP_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)
_SHOWN_KINDS = (
    "turn.judged",
    "lesson.made",
    "lesson.learned",
    WITHDRAWN_EVENT,
    RESTORED_EVENT,
    "policy.live",
    "policy.rejected",
    "policy.rolled_back",
)


@dataclass(slots=True)
class ChatConversation:
    """Messages so far, the id of the last reply, and the ids of all replies.

    `unclear_id`: of the reply that the person is asked about, because the judge did not understand what came next.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    last_id: str | None = None
    reply_ids: set[str] = field(default_factory=set)
    unclear_id: str | None = None


def run_chat(config: Config, *, before_start: Callable[[], object], yes: bool) -> None:
    """Chat with the system that runs on the home. If none runs, start one and stop it afterwards.

    `before_start`: called before a system is started; raises `ConfigError` if the settings do not allow it.
    `yes`: as for `SubprocessSystem`.
    """
    console = TerminalConsole()
    prepare_home(config)
    with contextlib.ExitStack() as stack:
        if is_home_locked(config):
            _wait_until_ready(config, console)
        else:
            before_start()
            console.print(
                f"  starting the system on {config.home_dir} (its log: {config.logs_dir / 'up.log'}) ..."
            )
            stack.enter_context(
                SubprocessSystem(config, yes=yes, on_note=lambda note: console.print(f"  {note}"))
            )
        config = with_running_gateway(config)
        console.print(
            Text.assemble("  ", (config.model.name, "bold"), f" at {config.serve.url}/v1")
        )
        console.print(_HELP_TEXT + "\n")
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            asyncio.run(_ChatSession(config, console).run())


def _wait_until_ready(config: Config, console: TerminalConsole) -> None:
    """Wait for a system that is starting. Raises `OpenClawError` if it stops."""
    notes = StartingNotes(config, lambda note: console.print(f"  {note}"))
    for attempt in itertools.count():
        address = running_address(config.home_dir)
        if address is not None and is_ready(address.url, config.serve.api_key):
            return
        if not is_home_locked(config):
            raise OpenClawError(
                f"the system stopped before it was ready. Its logs: {config.logs_dir}"
            )
        if attempt == 0:
            console.print(f"  waiting until the system on {config.home_dir} is ready ...")
        notes.read_note()
        time.sleep(0.3)


def _note(text: str) -> Text:
    return Text(f"      · {text}", style="dim italic")


class _ChatSession:
    def __init__(self, config: Config, console: TerminalConsole) -> None:
        self._config = config
        self._console = console
        self._prompt = PromptLine(console, _PROMPT)
        self._url = config.serve.url
        self._conversation = ChatConversation()
        self._headers = {"Authorization": f"Bearer {read_key(config)}"}
        self._store = open_store(config)
        # Held during a reply, so that no event is printed into it.
        self._printing = asyncio.Lock()

    async def run(self) -> None:
        async with open_http_session(headers=self._headers, timeout=_HTTP_TIMEOUT) as self._http:
            watcher = asyncio.create_task(self._watch_events())
            try:
                while True:
                    line = await asyncio.to_thread(self._prompt.read)
                    if line == "/quit":
                        break
                    if line.strip():
                        await self._handle_line(line.strip())
            finally:
                watcher.cancel()
                self._store.close()

    async def _handle_line(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == "/help":
            self._console.print(_HELP_TEXT)
        elif command == "/new":
            self._conversation = ChatConversation(reply_ids=self._conversation.reply_ids)
        elif command in _THUMBS:
            await self._send_feedback(_THUMBS[command], argument, self._conversation.last_id)
        elif line in _ANSWERS:
            target = self._conversation.unclear_id or self._conversation.last_id
            self._conversation.unclear_id = None
            await self._send_feedback(_ANSWERS[line], "", target)
        elif command.startswith("/"):
            self._console.print(f"  {command}: unknown command. {_HELP_TEXT}")
        else:
            async with self._printing:
                await self._send_message(line)

    async def _send_message(self, text: str) -> None:
        self._conversation.unclear_id = None
        messages = [*self._conversation.messages, {"role": "user", "content": text}]
        body = {"model": self._config.model.name, "messages": messages, "stream": True}
        content = ""
        version = "?"
        try:
            async for chunk in self._stream_chunks(body):
                delta = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
                if not content:
                    version = chunk["system_fingerprint"]
                    self._console.print(Text(f"{version:>3} ", style="bold cyan"), end="")
                if delta:
                    self._console.print(Text(delta), end="")
                    content += delta
                self._conversation.last_id = chunk["id"]
        except (aiohttp.ClientError, TimeoutError, OpenClawError) as error:
            self._console.print(Text.assemble(("\n  no reply:", "red"), f" {error}"))
            return
        self._console.print()
        self._conversation.reply_ids.add(str(self._conversation.last_id))
        self._conversation.messages = [*messages, {"role": "assistant", "content": content}]

    async def _stream_chunks(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise OpenClawError(f"{response.status} {await response.text()}")
            async for line in response.content:
                data = line.decode().removeprefix("data: ").strip()
                if not data or data == "[DONE]":
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise OpenClawError(str(chunk["error"]["message"]))
                yield chunk

    async def _send_feedback(self, thumbs: str, text: str, target: str | None) -> None:
        if target is None:
            self._console.print("  there is no reply yet to give feedback on")
            return
        body: dict[str, Any] = {"id": target, "thumbs": thumbs}
        if text:
            body["comment" if thumbs == "up" else "correction"] = text
        async with self._http.post(f"{self._url}/v1/feedback", json=body) as response:
            if response.status != 200:
                refusal = f" {await response.text()}"
                self._console.print(Text.assemble(("  feedback not accepted:", "red"), refusal))

    async def _watch_events(self) -> None:
        """Follow the event log: print verdicts and lessons of this conversation's turns, and versions of its policy."""
        with self._store.read() as conn:
            seen = events.last_seq(conn)
        while True:
            await asyncio.sleep(0.3)
            try:
                for event in await asyncio.to_thread(self._new_events, seen):
                    seen = event.seq
                    line = await asyncio.to_thread(self._event_line, event)
                    if line is not None:
                        async with self._printing:
                            self._prompt.print_above(_note(line))
            except StoreError as error:
                self._prompt.print_above(_note(f"the event log cannot be read: {error}"))
                return

    def _new_events(self, seen: int) -> list[Event]:
        with self._store.read() as conn:
            return events.read_after(conn, seen, 100, kinds=_SHOWN_KINDS)

    def _event_line(self, event: Event) -> str | None:
        if event.kind == "turn.judged":
            if event.ref not in self._conversation.reply_ids:
                return None
            return self._verdict_line(event.ref)
        if event.kind.startswith("lesson."):
            return self._lesson_line(event)
        if not self._is_own_version(int(event.ref)):
            return None
        if event.kind == "policy.live":
            return self._live_line(int(event.ref))
        return f"version {event.ref} {event.kind.removeprefix('policy.').replace('_', ' ')}: {event.data.get('reason')}"

    def _live_line(self, version: int) -> str:
        """Return the line for a version that is served now: whether it learned from this conversation."""
        with self._store.read() as conn:
            source = learning_source(conn, version, self._conversation.reply_ids)
        return chat_notes.live_text(version, source)

    def _verdict_line(self, turn: str) -> str | None:
        """Return the line for the verdict on a reply; a question to the person if the judge understood nothing."""
        with self._store.read() as conn:
            verdict = turns.current_verdict(conn, turn)
        if verdict is None or not chat_notes.says_something(verdict):
            return None
        if is_understood(verdict):
            return chat_notes.verdict_text(verdict.score, verdict.hints)
        self._conversation.unclear_id = turn
        return _QUESTION

    def _is_own_version(self, version: int) -> bool:
        """Return whether a version is of the policy that answers here. Before the first reply, nobody knows which."""
        if self._conversation.last_id is None:
            return True
        with self._store.read() as conn:
            answered = exchanges.get(conn, self._conversation.last_id)
            policy = policies.get(conn, version)
            per = stored_owner(conn)
        if policy is None or answered is None:
            return True
        asked = answered.request
        own_policy = policy_name(per, agent=asked.agent, user=asked.user, key=asked.scope)
        return policy.name == own_policy

    def _lesson_line(self, event: Event) -> str | None:
        """Return the line for a lesson from this conversation, or for one of its prompts that has another state now."""
        reply_ids = self._conversation.reply_ids
        is_made = event.kind == "lesson.made"
        if is_made and event.data["turn"] not in reply_ids:
            return None
        with self._store.read() as conn:
            lesson = lessons.get(conn, event.ref)
            if lesson is None or not (is_made or self._is_own_lesson(conn, lesson)):
                return None
        if event.kind == WITHDRAWN_EVENT:
            return chat_notes.withdrawn_text(lesson, event.data)
        if event.kind == RESTORED_EVENT:
            return chat_notes.restored_text(lesson)
        return chat_notes.lesson_text(lesson, is_learned=not is_made)

    def _is_own_lesson(self, conn: Connection, lesson: Lesson) -> bool:
        """Return whether a lesson comes from this conversation, or is for prompts of its agent and user.

        Before the first reply, nobody knows which those are.
        """
        reply_ids = self._conversation.reply_ids
        last = self._conversation.last_id
        answered = None if last is None else exchanges.get(conn, last)
        if answered is None or any(
            each.turn in reply_ids for each in lessons.turns_of_lesson(conn, lesson.id)
        ):
            return True
        asked = answered.request
        policy = policy_name(
            stored_owner(conn), agent=asked.agent, user=asked.user, key=asked.scope
        )
        owners = (asked.agent, ""), (asked.agent, asked.user)
        is_for_owner = lesson.is_practised and lesson.owner in owners
        return is_for_owner and (lesson.policy, lesson.key) == (policy, asked.scope)
