"""An engine with a script instead of a model: what it says follows from the last words of the conversation.

    python tests/external/openclaw/engine.py SETTINGS.json

It speaks the engine's own wire on a Unix socket, so the gateway cannot tell. Settings: `socket`, `model` (folder),
`context` (tokens), `script` (a list of cues: where `when` stands in the last message and `near` in the last characters
of the prompt, `say` and `calls` are the reply; the first that fits), `silence` (the reply when nothing fits), `die_at`
(a cue's words: this process ends itself once, in the middle of its reply) and `died` (a file that says that it has).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from tokenizers import Tokenizer

from openclaw_rl.common.frames import FrameDecoder
from openclaw_rl.engines.embedded import protocol
from openclaw_rl.protocols import EngineInfo
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer

LOGPROB = -0.5
CONTEXT = re.compile(
    r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?<<<END_OPENCLAW_INTERNAL_CONTEXT>>>", re.DOTALL
)
PIECE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\n?|$)", re.DOTALL)


def last_words(prompt: str) -> str:
    """The last message of a ChatML prompt that is no passing context."""
    said = [(m[1], CONTEXT.sub("", m[2]).strip()) for m in PIECE.finditer(prompt)]
    return next((text for role, text in reversed(said) if role != "assistant" and text), "")


def written(cue: Mapping[str, Any]) -> str:
    """A cue's reply as a Hermes model writes it."""
    calls = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in cue.get("calls", ())]
    return "\n".join([*([cue["say"]] if cue.get("say") else []), *calls])


class Script:
    """Chooses the reply to a prompt."""

    def __init__(self, settings: Mapping[str, Any], renderer: Renderer) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(settings["model"]) / "tokenizer.json"))
        self._cues: Sequence[Mapping[str, Any]] = settings["script"]
        self._silence = settings.get("silence", "I have nothing to say to that.")
        self._renderer = renderer
        self._die_at, self._died = settings.get("die_at"), Path(settings.get("died", os.devnull))

    def reply(self, prompt_ids: Sequence[int]) -> tuple[list[int], bool]:
        """The reply's ids, and whether to die in the middle of it."""
        prompt = self._tokenizer.decode(prompt_ids, skip_special_tokens=False)
        words, end = last_words(prompt), prompt[-4000:]
        fitting = (c for c in self._cues if c["when"] in words and c.get("near", "") in end)
        cue = next(fitting, {"say": self._silence})
        ids = self._renderer.tokenizer.encode(written(cue)).tolist()
        dies = (
            self._die_at is not None and cue.get("when") == self._die_at and not self._died.exists()
        )
        if dies:
            self._died.touch()
        return [*ids, self._renderer.stop_token_ids[0]], dies


class Peer(asyncio.Protocol):
    """One connection: a token of each running reply in each step."""

    def __init__(self, script: Script, info: Mapping[str, Any]) -> None:
        self._script, self._info = script, info
        self._versions: tuple[int, ...] = (0,)
        self._frames = FrameDecoder()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        for task in self._running.values():
            task.cancel()

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._call(protocol.call_decoder.decode(body))

    def _call(self, call: protocol.EngineCall) -> None:
        if isinstance(call, protocol.GenerateCall):
            self._running[call.id] = asyncio.get_running_loop().create_task(self._say(call))
        elif isinstance(call, protocol.CancelCall):
            if task := self._running.pop(call.id, None):
                task.cancel()
        elif isinstance(call, protocol.LoadCall):
            self._versions = tuple(policy.version for policy in call.policies)
            self._send(protocol.LoadReply(call.id))
        elif isinstance(call, protocol.InfoCall):
            running = len(self._running)
            info = EngineInfo(
                versions=self._versions, running=running, waiting=0, pid=os.getpid(), **self._info
            )
            self._send(protocol.InfoReply(call.id, info))
        else:
            self._send(protocol.RejectionReply(call.id, "the scripted engine does not score"))

    async def _say(self, call: protocol.GenerateCall) -> None:
        ids, dies = self._script.reply(protocol.unpack_ids(call.prompt_ids).tolist())
        for n, token in enumerate(ids):
            await asyncio.sleep(0)
            if dies and n == len(ids) // 2:
                os._exit(1)
            finish = {call.id: "stop"} if n + 1 == len(ids) else {}
            self._send(protocol.TokensReply([call.id], [token], [LOGPROB], finish))
        self._running.pop(call.id, None)

    def _send(self, answer: protocol.EngineReply) -> None:
        if not self._transport.is_closing():
            self._transport.write(protocol.encode_frame(answer))


async def serve(settings: Mapping[str, Any]) -> None:
    """Answer until killed; says `ready` once it does."""
    renderer = Renderer(ModelFiles.from_path(settings["model"]))
    info = {
        "context_length": settings["context"],
        "vocab_size": renderer.vocabulary_size,
        "model": "scripted",
    }
    info |= {"device": "none", "dtype": "none"}
    script = Script(settings, renderer)
    await asyncio.get_running_loop().create_unix_server(
        lambda: Peer(script, info), settings["socket"]
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    with contextlib.suppress(FileNotFoundError):
        Path(given["socket"]).unlink()
    uvloop.run(serve(given))
