"""The time to the first token over a session of OpenClaw, with and without the prefix cache.

    python benchmarks/openclaw_session.py [--sessions 3] [--turns 10] [--together 12]

The real system (`openclaw-rl up`) on a model made on the spot: random weights, a context of 32,768 tokens, a tokenizer
trained on the spot. The requests have the shape that OpenClaw's were seen to have (`conversations.py`): a long system
prompt, twelve tools, the history as text, and last a passing context message that is gone from the next request: no
request is the beginning of the next one. First sessions one after the other; then many that take turns, with one cache
for them all. Writes benchmarks/results/openclaw_session.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import model_folder
from conversations import Conversation, Traffic
from openclaw_rl.store import heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from provenance import measured_at
from servers import RUNS

RESULTS = Path(__file__).parent / "results" / "openclaw_session.md"
# Tokens.
CONTEXT = 32_768
# Tokens.
REPLY = 64
CACHE = 32_768  # tokens; the default
# Bytes: of OpenClaw's gateway with nothing switched off.
SYSTEM = 30_000
TOOLS = 9_800
# The trainer never has a batch: what is measured is serving alone.
SETTINGS = {
    "train.batch.min_turns": 1_000_000,
    "train.batch.max_turns": 1_000_000,
    "run.log_level": "warning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request as its client saw it."""

    number: int  # in its session, from 1
    first_token: float  # seconds
    prompt: int  # tokens
    cached: int | None  # of them; None: the server does not say


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--together", type=int, default=12, help="sessions that take turns")
    options = parser.parse_args()
    RUNS.mkdir(exist_ok=True)
    arms: dict[int, list[list[Turn]]] = {}
    with tempfile.TemporaryDirectory(prefix="o-", dir=RUNS) as folder:
        word = make_model(Path(folder) / "model")
        for cache in (CACHE, 0):
            # Without the cache one session is like another, and every turn computes all of it.
            arms[cache] = run_arm(
                Path(folder), cache, word, options.sessions if cache else 1, options.turns
            )
        together = run_together(Path(folder), word, options.together, options.turns)
    text = report(arms, together)
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)


def make_model(folder: Path) -> int:
    """Random weights behind a real tokenizer. Returns the id of a word that is the same token wherever it stands."""
    model_folder.make(folder)
    settings = json.loads((folder / "config.json").read_text())
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=settings["vocab_size"],
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=settings["eos_token_id"],
    )
    (folder / "model.safetensors").unlink()
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    return int(tokenizer["model"]["vocab"]["\u0120session"])


def run_arm(folder: Path, cache: int, word: int, sessions: int, turns: int) -> list[list[Turn]]:
    settings = SETTINGS | {"model.path": str(folder / "model"), "engine.prefix_cache_tokens": cache}
    with SubprocessSystem(scratch_config(folder / f"home-{cache}", settings)) as system:
        out = [session(system, number, word, turns) for number in range(sessions)]
    shown = ", ".join(f"{t.first_token * 1e3:.0f}" for s in out for t in s)
    print(f"prefix cache {cache}: {shown} ms", file=sys.stderr, flush=True)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Sessions that take turns, and the engine's memory by them: MiB after the first turn of one, and at the end."""

    sessions: list[list[Turn]]
    before: float
    after: float


def run_together(folder: Path, word: int, sessions: int, turns: int) -> Together:
    with SubprocessSystem(
        scratch_config(folder / "home-together", SETTINGS | {"model.path": str(folder / "model")})
    ) as system:
        # The first of all computes the trunk, in slots that stay.
        ask(system, start(0, word), 1)
        before = engine_memory(system)
        talks = [start(1 + n, word) for n in range(sessions)]
        out: list[list[Turn]] = [[] for _ in talks]
        for number in range(1, turns + 1):
            for talk, told in zip(talks, out, strict=True):
                told.append(ask(system, talk, number))
            print(f"turn {number}: {out[0][-1]}", file=sys.stderr, flush=True)
        return Together(sessions=out, before=before, after=engine_memory(system))


def engine_memory(system: SubprocessSystem) -> float:
    """MiB that are the engine's process' own."""
    store = Store.open(system.config.store_path, create=False)
    with store.read() as conn:
        (pid,) = (beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == "engine")
    store.close()
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def session(system: SubprocessSystem, number: int, word: int, turns: int) -> list[Turn]:
    """A whole session, one turn after the other."""
    talk = start(number, word)
    return [ask(system, talk, n + 1) for n in range(turns)]


def start(number: int, word: int) -> Conversation:
    traffic = Traffic(
        agent=True, stream=True, max_tokens=REPLY, system_bytes=SYSTEM, tool_bytes=TOOLS
    )
    # The same word over and over: text that comes back as the very tokens that were sampled, as a trained model's does.
    bias = b'"logit_bias":{"%d":100},' % word
    traffic.head = traffic.head.replace(b'"include_usage":false', b'"include_usage":true').replace(
        b"{", b"{" + bias, 1
    )
    return Conversation(traffic, f"session {number}")


def ask(system: SubprocessSystem, talk: Conversation, number: int) -> Turn:
    connection = http.client.HTTPConnection("127.0.0.1", system.config.serve.port, timeout=300)
    headers = {"Authorization": f"Bearer {system.api_key}", "Content-Type": "application/json"}
    start = time.perf_counter()
    first = 0.0
    text = ""
    usage = {}
    connection.request("POST", "/v1/chat/completions", talk.body(), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read().decode()[:500]}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                first = first or time.perf_counter() - start
                text += piece
    connection.close()
    talk.heard(text)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Turn(number=number, first_token=first, prompt=usage["prompt_tokens"], cached=cached)


def report(arms: dict[int, list[list[Turn]]], together: Together) -> str:
    last = arms[CACHE][0][-1].number
    rows = [_row(cache, sessions, last) for cache, sessions in arms.items()]
    first = arms[CACHE][0][0]
    lines = [
        "# Time to first token over an OpenClaw session",
        "",
        f"{measured_at()}, {os.cpu_count()} cores, no GPU. `python benchmarks/openclaw_session.py`: "
        f"{len(arms[CACHE])} sessions of {last} turns, one after the other, in the form of OpenClaw's requests "
        f"({first.prompt:,} prompt tokens at turn 1, all but 100 of them system prompt and twelve tools), through "
        "`openclaw-rl up` with the embedded engine and a random model of 7 million parameters. Time from sending the "
        "request to the first token, in milliseconds (medians over sessions), and the prompt tokens that came from the "
        "prefix cache.",
        "",
        f"| prefix cache | turn 1, first | turn 1, later sessions | turn {last} | its prompt | cached tokens |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "Each OpenClaw request branches off from the previous one: its context message is removed, and the reply takes "
        "its place. In every turn the last reply and the new messages are computed, and everything before them comes "
        "from the cache; a new session takes the system prompt and the tools from the session before.",
        "",
        *_together(together),
    ]
    return "\n".join(lines) + "\n"


def _together(told: Together) -> list[str]:
    turns = [t for s in told.sessions for t in s[1:]]
    ends = [s[-1] for s in told.sessions]
    shares = [t.cached / t.prompt for t in turns if t.cached is not None]
    first = statistics.median(t.first_token for t in turns) * 1e3
    return [
        f"{len(ends)} interleaved sessions, {ends[0].number} turns each, on one cache of {CACHE:,} tokens (their last "
        f"prompts have {sum(t.prompt for t in ends):,} in total): from the second turn on, "
        f"{statistics.median(shares):.1%} of a prompt came from the cache (at least {min(shares):.1%}), and the first "
        f"token came after {first:,.0f} ms (median). The engine's memory grew from {told.before:,.0f} to "
        f"{told.after:,.0f} MiB: a shared prefix is stored once.",
    ]


def _row(cache: int, sessions: Sequence[Sequence[Turn]], last: int) -> str:
    def median(turns: Sequence[Turn]) -> str:
        return f"{statistics.median(t.first_token for t in turns) * 1e3:,.0f} ms" if turns else "-"

    ends = [s[-1] for s in sessions]
    cached = [t.cached for t in ends if t.cached is not None]
    share = f"{statistics.median(cached):,.0f}" if cached else "not told"
    name = f"{cache:,} tokens" if cache else "none"
    cells = [name, median([sessions[0][0]]), median([s[0] for s in sessions[1:]]), median(ends)]
    return f"| {' | '.join([*cells, f'{ends[0].prompt:,}', share])} |"


if __name__ == "__main__":
    main()
