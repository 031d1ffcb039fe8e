"""Other people's clients against the real gateway. They are heavy: `make test-clients` installs them apart."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from tests.serve.conftest import Site, Start, empty_store, renderers, start

from openclaw_rl.collect.worker import Collector
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.store import turns
from openclaw_rl.types import Exchange, Reaction, Turn

# Read at import: nothing of the user's is read or written, nothing is looked up.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "DSPY_CACHEDIR": tempfile.mkdtemp(prefix="ocrl-dspy-"),
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": tempfile.mkdtemp(prefix="ocrl-msw-"),
    "MSWEA_SILENT_STARTUP": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

ROOT = Path(__file__).parents[3]
CONTEXT = 65_536  # tokens: an agent's instructions are long, and the test model's tokens short
__all__ = ["empty_store", "renderers", "start"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--opencode-env", default=str(ROOT / ".opencode-env"), help="where opencode is installed"
    )
    parser.addoption(
        "--copilot-env", default=str(ROOT / ".copilot-env"), help="where Copilot CLI is installed"
    )


@dataclass(frozen=True)
class Link:
    """What the collector found for one exchange, the parent by its position."""

    parent: int | None = None
    reaction: tuple[str, ...] | None = None
    how: str | None = None
    side: bool = False
    unlinked: str | None = None


class Talk:
    """A gateway whose engine says what it is told to, in turn; and what the store has of it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.said: list[list[int]] = []

    def says(self, *texts: str) -> None:
        self.said = [self.site.script.say(text) for text in texts]
        numbers = count()

        def reply(prompt: Sequence[int], version: int) -> Sequence[int]:
            return self.said[next(numbers)]

        self.site.engine.reply = reply

    def collected(self) -> list[tuple[Exchange, Turn, Reaction | None]]:
        """Everything that was asked, in order, after the collector has seen it."""
        collector = Collector(self.site.store, self.site.config.collect)
        while collector.step():
            pass
        with self.site.store.read() as conn:
            ids = [
                row[0]
                for row in conn.exec_driver_sql("SELECT id FROM exchanges ORDER BY seq").all()
            ]
            found = [
                (self.site.get(id), turns.get(conn, id), turns.current_reaction(conn, id))
                for id in ids
            ]
        return [
            (exchange, turn, reaction) for exchange, turn, reaction in found if turn is not None
        ]

    def links(self) -> list[Link]:
        rows = self.collected()
        position = {turn.id: at for at, (_, turn, _) in enumerate(rows)}
        return [
            Link(
                parent=None if turn.parent is None else position[turn.parent],
                reaction=None
                if reaction is None
                else tuple(message_text(m) for m in reaction.messages),
                how=None if reaction is None else reaction.how,
                side="side traffic" in (turn.reason or ""),
                unlinked=turn.unlinked,
            )
            for _, turn, reaction in rows
        ]

    def check_captured(self) -> list[tuple[Exchange, Turn, Reaction | None]]:
        """Each exchange holds the very tokens that the engine gave, and the turns follow one another."""
        rows = self.collected()
        assert len(rows) == len(self.said)
        for (exchange, turn, _), ids, before in zip(rows, self.said, [None, *rows], strict=False):
            assert exchange.reply is not None
            assert exchange.reply.response_ids.tolist() == ids
            assert exchange.reply.mask.all()
            assert exchange.request.sampling.untrainable_reason() is None, (
                "its defaults leave it trainable"
            )
            assert turn.relation == ("fresh" if before is None else "continuation")
            assert turn.parent == (None if before is None else before[1].id)
        return rows


@pytest.fixture
def talk(start: Start) -> Talk:
    return Talk(start(settings={"engine.max_context": CONTEXT}, context_length=CONTEXT))


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


Say = Callable[..., None]
