"""Adversarial messages: how long rules, wishes, side patterns, linking and the parser of judge answers take for each.

The messages are made of the words of the shipped patterns: repeated, mixed at random, and cut off where a repetition
has begun. A pattern that backtracks takes minutes for some of them. Times are CPU times of one thread.

    python benchmarks/adversarial_messages.py                                 # 1,000 messages of 65 kB, two minutes
    python benchmarks/adversarial_messages.py --messages 100 --bytes 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml

from openclaw_rl.collect.link import link_request
from openclaw_rl.collect.traffic import TrafficClassifier
from openclaw_rl.common import client_patterns, message_hash
from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.rules.lesson_topics import MAX_WISH_CHARS, HintTopics
from openclaw_rl.judge.rules import RulesJudge
from openclaw_rl.judge.vote_parser import parse_vote
from openclaw_rl.settings.load import CollectConfig, ServeConfig
from openclaw_rl.store.db import Store
from openclaw_rl.store.exchange_index import ExchangeIndex
from openclaw_rl.types import JudgeInput, Reaction, Request, Sampling

LIMIT_MS = 100.0
ATTEMPTS = 4
BYTES = 65_000
_WORDS = re.compile(r"[^\s()\[\]{}|*+?^$\\.]+ ?")
_SYMBOLS = (
    *(" ", "\n", " \n", "\t", ".", ", ", "! ", "é"),
    *("{", "}", "[", "<", "</", '"', "```", "<think>", "</think>", '{"', "[[", "\\"),
    "\u0301\u0327",
)


def pattern_sources() -> list[str]:
    """Return all shipped patterns, as texts."""
    prompts = yaml.safe_load((ASSETS / "client_prompts.yaml").read_text(encoding="utf-8"))
    found = [p for kind in prompts.values() for entry in kind for p in entry["patterns"]]
    for file in sorted((ASSETS / "rules").glob("*.yaml")):
        language = yaml.safe_load(file.read_text(encoding="utf-8"))
        patterns = [*language["parts"].values()]
        patterns += [
            entry[key]
            for entry in (language, *language["rules"])
            for key in ("when", "unless")
            if key in entry
        ]
        wishes = language.get("wishes", {})
        patterns += [wishes["asked"], *wishes["topics"].values()] if wishes else []
        patterns += language.get("scopes", {}).values()
        for pattern in patterns:
            found += pattern if isinstance(pattern, list) else [pattern]
    return [
        *found,
        *client_patterns.EPHEMERAL_PATTERNS,
        *client_patterns.SIDE_PATTERNS,
        *client_patterns.CLIENT_PROMPT_PATTERNS,
    ]


def adversarial_texts(count: int, size: int, seed: int = 0) -> Iterator[str]:
    """Yield `count` texts of `size` bytes; the same ones for the same seed."""
    rng = random.Random(seed)
    sources = pattern_sources()
    words = [
        _WORDS.findall(re.sub(r"\\[a-zA-Z]|\(\?[a-z]*", " ", source)) or ["x"] for source in sources
    ]
    every = [word for part in words for word in part]
    for number in range(count):
        own = words[rng.randrange(len(words))]
        head = "".join(own[: rng.randint(0, len(own))])
        match number % 5:
            case 0:
                unit = "".join(rng.choices(own, k=rng.randint(1, 4)))
            case 1:
                unit = head + rng.choice(_SYMBOLS)
            case 2:
                unit = rng.choice(_SYMBOLS)
            case 3:
                unit = "".join(rng.choice([*own, *_SYMBOLS]) for _ in range(2000))
            case _:
                unit = "".join(rng.choice(every) + rng.choice(_SYMBOLS) for _ in range(2000))
        text = head + unit * (size // len(unit.encode()) + 1)
        yield text.encode()[: size - 1].decode(errors="ignore") + rng.choice("!x}")


def _cpu_time(read: Callable[[str], object], text: str) -> float:
    begun = time.thread_time()
    read(text)
    return 1000 * (time.thread_time() - begun)


class Readers:
    """What reads a message of a client or an answer of a judge, with the shipped patterns; each takes a text."""

    def __init__(self, store: Store) -> None:
        collect = CollectConfig()
        self._store = store
        self._rules = RulesJudge.load()
        self._topics = HintTopics(self._rules.files)
        self._sides = TrafficClassifier(collect.side_patterns, collect.client_prompt_patterns)
        self._is_ephemeral = message_hash.EphemeralMatcher(ServeConfig().ephemeral_patterns)

    def measure(self, text: str) -> dict[str, float]:
        """Return the CPU time of each reader, in milliseconds: of the quickest attempt, if the first takes too long.

        Other work on the same core makes CPU time longer, too; a pattern that backtracks is slow at each attempt.
        """
        readers = {
            "rules": self._judge,
            "wishes": self._read_wishes,
            "scopes": self._find_scope,
            "side patterns": self._classify,
            "linking": self._link,
            "vote": parse_vote,
        }
        out = {}
        for name, read in readers.items():
            out[name] = _cpu_time(read, text)
            for _ in range(ATTEMPTS - 1):
                if out[name] > LIMIT_MS:
                    out[name] = min(out[name], _cpu_time(read, text))
        return out

    def _judge(self, text: str) -> None:
        """Apply the rules to a person's message and to a tool result."""
        said = tuple({"role": role, "content": text} for role in ("user", "tool"))
        reaction = Reaction(turn="t", revision=1, messages=said, source="s", how="exact", at=1.0)
        asyncio.run(
            self._rules.judge(JudgeInput(turn="t", messages=(), reply={}, reaction=reaction))
        )

    def _read_wishes(self, text: str) -> None:
        """Read what the newest message of a prompt asks for, as the gateway does for each reply."""
        self._topics.read_wishes({"role": "user", "content": text}, text)

    def _find_scope(self, text: str) -> None:
        """Search for what limits a wish, as the judge does for each lesson."""
        self._topics.find_scope([head_and_tail(text, MAX_WISH_CHARS)], "Keep answers short.")

    def _classify(self, text: str) -> None:
        for role in ("user", "system"):
            self._sides.side_pattern_match({"role": role, "content": text})

    def _link(self, text: str) -> None:
        """Hash and link a request whose three messages are the text."""
        messages = [{"role": role, "content": text} for role in ("user", "assistant", "tool")]
        marks = message_hash.mark_messages(messages, self._store.secret, self._is_ephemeral)
        request = Request(
            id="r",
            scope="key",
            messages=messages,
            marks=marks,
            sampling=Sampling(),
            prompt_ids=np.zeros(0, np.int32),
            version=0,
            identity="i",
            admitted_at=1.0,
        )
        with self._store.read() as conn:
            link_request(request, 1, ExchangeIndex(conn, self._store.secret), self._sides)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--bytes", type=int, default=BYTES, help="size of a message")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    times: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "store.db") as store:
        readers = Readers(store)
        for text in adversarial_texts(args.messages, args.bytes, args.seed):
            for name, ms in readers.measure(text).items():
                times.setdefault(name, []).append(ms)
    print(
        f"{args.messages} messages of {args.bytes} bytes; milliseconds of CPU time for one message"
    )
    print(f"{'':14}{'median':>9}{'p99':>9}{'longest':>9}{f'over {LIMIT_MS:.0f} ms':>13}")
    for name, found in times.items():
        median, p99 = np.percentile(found, [50, 99])
        print(
            f"{name:14}{median:9.2f}{p99:9.2f}{max(found):9.2f}{sum(ms > LIMIT_MS for ms in found):13d}"
        )
    return int(any(ms > LIMIT_MS for found in times.values() for ms in found))


if __name__ == "__main__":
    raise SystemExit(main())
