"""An hour of talk on a busy machine: is a healthy worker killed, and is each judged turn trained on?

    python -m benchmarks.loaded_hour [--minutes 60] [--load 20] [--model-path starter]

Starts a whole system, then `--load` processes that compute all the time beside it. One person talks without a pause and
wants replies of at most 18 words: each reply is answered by thanks or by "Too long". At the end the trainer is stopped
by a signal, and must be found. Writes benchmarks/results/loaded_hour.md; ends with 1 if a healthy worker was killed, if
a judged turn was neither trained on nor has a reason, or if the stopped trainer was not found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.provenance import write_result
from sqlalchemy import select

from openclaw_rl.settings.load import Config
from openclaw_rl.store import heartbeats, schema, turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lineage import policies
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import PolicyState

RESULTS = Path(__file__).parent / "results" / "loaded_hour.md"
MOST_WORDS = 18
QUESTIONS = (
    "What is the capital of France?",
    "How does a bicycle stay upright?",
    "What should I cook tonight?",
    "Why is the sky blue?",
    "How do I sleep better?",
    "What is a good name for a cat?",
    "How do I learn to swim?",
    "What is the largest planet?",
    "How do I clean a window?",
)
# Seconds that the person waits for a reply.
REPLY_SECONDS = 3600.0
# Seconds for the supervisor to find a trainer that was stopped, on a busy machine.
FOUND_WITHIN = 3600.0
CRASH_LINE = re.compile(r"(\S+) ended \((.+?)\): crash (\d+)")
BUSY_LOOP = "import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"


@contextmanager
def busy_processes(count: int, seconds: float) -> Iterator[list[int]]:
    """Run processes that compute, and end them with the block. They end by themselves after `seconds`."""
    command = [sys.executable, "-c", BUSY_LOOP.format(seconds=seconds)]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@dataclass(slots=True)
class Talk:
    """The replies that the person got."""

    words: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def request_reply(
    system: SubprocessSystem, messages: Sequence[dict[str, str]], most_tokens: int
) -> dict[str, str]:
    """Return the message of the reply. Raises `OSError`."""
    body = {
        "model": "openclaw",
        "messages": list(messages),
        "max_tokens": most_tokens,
        "temperature": 1.0,
    }
    headers = {"Authorization": f"Bearer {system.api_key}", "Content-Type": "application/json"}
    url = f"{system.base_url}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=REPLY_SECONDS) as response:
        message: dict[str, str] = json.load(response)["choices"][0]["message"]
    return message


def talk_until(system: SubprocessSystem, end: float, most_tokens: int) -> Talk:
    """Talk without a pause until `end` (monotonic seconds): three questions in each conversation."""
    talk = Talk()
    number = 0
    while time.monotonic() < end:
        history: list[dict[str, str]] = []
        reaction = ""
        for _ in range(3):
            history.append(
                {
                    "role": "user",
                    "content": f"{reaction} {QUESTIONS[number % len(QUESTIONS)]}".strip(),
                }
            )
            number += 1
            began = time.monotonic()
            try:
                message = request_reply(system, history, most_tokens)
            except (OSError, ValueError) as error:
                talk.failures.append(str(error))
                break
            talk.seconds.append(time.monotonic() - began)
            count = len((message["content"] or "").split())
            talk.words.append(count)
            history.append({"role": "assistant", "content": message["content"] or "..."})
            reaction = (
                "Perfect, thanks!" if count <= MOST_WORDS else "Too long. Keep it short, please."
            )
            print(f"reply {len(talk.words)}: {count} words in {talk.seconds[-1]:.0f} s", flush=True)
            if time.monotonic() >= end:
                break
    return talk


def read_crashes(config: Config) -> list[tuple[str, str]]:
    """Return (worker, how it ended) of each crash and kill in the log of the supervisor."""
    log = config.logs_dir / "supervisor.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    messages = [str(json.loads(line)["message"]) for line in lines]
    return [(match[1], match[2]) for message in messages if (match := CRASH_LINE.match(message))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """What became of the turns that were judged."""

    judged: int
    used: int  # by a version that is the head or one of its ancestors, or a candidate
    no_opinion: int  # the verdict has no score, and no hint
    untrainable: dict[str, int]  # reason -> turns
    waiting: int
    note: str  # of the trainer: what the turns wait for
    versions: list[tuple[int, str, int, str]]  # version, state, turns of people, reason
    practice: int  # replies


def read_accounts(config: Config) -> Accounts:
    """Read the store of a system."""
    with Store.open(config.store_path, create=False) as store, store.read() as conn:
        rows = conn.execute(
            select(schema.turns.c.id, schema.turns.c.untrainable).where(
                schema.turns.c.state == "judged"
            )
        ).all()
        verdicts = turns.current_verdicts(conn, [row.id for row in rows])
        versions = policies.list_all(conn)
        used: set[str] = set()
        table = []
        for policy in versions:
            people = {use.turn for use in policies.uses_of_version(conn, policy.version)} & {
                row.id for row in rows
            }
            table.append((policy.version, policy.state.value, len(people), policy.reason or ""))
            if policy.state in (PolicyState.LIVE, PolicyState.CANDIDATE):
                used |= people
        beats = {beat.name: beat.note for beat in heartbeats.read_heartbeats(conn)}
        practice = practice_turns.count_all(conn)
    reasons = Counter(row.untrainable for row in rows if row.untrainable and row.id not in used)
    open_turns = [row.id for row in rows if row.id not in used and not row.untrainable]
    silent = {
        id_
        for id_ in open_turns
        if (v := verdicts.get(id_)) and v.score in (None, 0) and not v.hints
    }
    return Accounts(
        judged=len(rows),
        used=len(used),
        no_opinion=len(silent),
        untrainable=dict(reasons),
        waiting=len(open_turns) - len(silent),
        note=beats.get("train", ""),
        versions=table,
        practice=practice,
    )


def stop_trainer_until_found(system: SubprocessSystem) -> tuple[float, str]:
    """Stop the trainer by a signal. Return the seconds until the supervisor killed it, and why it says that it did."""
    before = len(read_crashes(system.config))
    with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
        pid = next(beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == "train")
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    while time.monotonic() < began + FOUND_WITHIN:
        crashes = read_crashes(system.config)[before:]
        for worker, how in crashes:
            if worker == "train":
                return time.monotonic() - began, how
        time.sleep(1.0)
    return FOUND_WITHIN, ""


def render(
    arguments: argparse.Namespace, talk: Talk, crashes: Sequence[tuple[str, str]], data: Accounts
) -> list[str]:
    """Return the lines of the report."""
    replies = len(talk.words)
    short = sum(count <= MOST_WORDS for count in talk.words)
    seconds = sorted(talk.seconds) or [0.0]
    lines = [
        f"`python -m benchmarks.loaded_hour --minutes {arguments.minutes:g} --load {arguments.load}`, "
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end, "
        f"{len(os.sched_getaffinity(0))} of them for the system and the load",
        "",
        "| what | figure |",
        "|---|---|",
        f"| replies, of at most {MOST_WORDS} words, failed | {replies}, {short}, {len(talk.failures)} |",
        f"| seconds for a reply: median, longest | {seconds[len(seconds) // 2]:.0f}, {seconds[-1]:.0f} |",
        f"| kills and crashes | {len(crashes)}{''.join(f'; {worker}: {how}' for worker, how in crashes)} |",
        f"| judged turns | {data.judged} |",
        f"| trained on | {data.used} |",
        f"| no opinion to train on | {data.no_opinion} |",
        *(f"| {reason} | {count} |" for reason, count in data.untrainable.items()),
        f"| waiting | {data.waiting}: {data.note} |",
        f"| replies of practice | {data.practice} |",
        "",
        "| version | state | turns of people | reason |",
        "|---|---|---|---|",
        *(
            f"| {version} | {state} | {count} | {reason} |"
            for version, state, count, reason in data.versions
        ),
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--load", type=int, default=20, help="processes that compute beside the system"
    )
    parser.add_argument("--model-path", default="starter", help="folder of the model")
    parser.add_argument("--tokens", type=int, default=60, help="tokens of a reply at most")
    parser.add_argument(
        "--home", help="folder of the system, which is kept; default: a new one, which is removed"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--no-hang", action="store_true", help="do not stop the trainer at the end")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        settings: dict[str, Any] = {"model.path": arguments.model_path}
        config = scratch_config(Path(arguments.home or scratch), settings)
        seconds = 60.0 * arguments.minutes
        with (
            SubprocessSystem(config) as system,
            busy_processes(arguments.load, 2 * seconds + FOUND_WITHIN),
        ):
            talk = talk_until(system, time.monotonic() + seconds, arguments.tokens)
            crashes = read_crashes(config)
            data = read_accounts(config)
            lines = render(arguments, talk, crashes, data)
            found = True
            if not arguments.no_hang:
                took, how = stop_trainer_until_found(system)
                found = bool(how)
                lines += [
                    "",
                    f"A trainer that was stopped by SIGSTOP was found after {took:.0f} s: {how or 'it was not'}",
                ]
        with Store.open(config.store_path, create=False) as store, store.read() as conn:
            states = Counter(lesson.state.value for lesson in lessons.list_lessons(conn))
        lines += ["", f"Lessons: {dict(states)}"]
    print("\n".join(lines))
    write_result(arguments.out, "# An hour of talk on a busy machine\n\n" + "\n".join(lines))
    has_reason = data.waiting == 0 or bool(data.note)
    sys.exit(0 if not crashes and found and has_reason else 1)


if __name__ == "__main__":
    main()
