"""Files, cut into trajectories, and what is said of those that are wrong."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trajectories.world import PRINTED, Home, main, put

from openclaw_rl.errors import OpenClawError
from openclaw_rl.trajectories import files
from openclaw_rl.trajectories.parser import parse_trajectory
from openclaw_rl.trajectories.schema import TrajectoryRefused

SIGNS = st.text('"\\[]{},: é', max_size=8)
values = st.recursive(
    st.none() | st.integers(0, 9) | SIGNS,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(SIGNS, v, max_size=3),
    max_leaves=6,
)
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(items=st.lists(values, max_size=4), ascii_=st.booleans(), indent=st.sampled_from([None, 1]))
def test_an_array_is_cut_into_its_items(
    items: list[Any], ascii_: bool, indent: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("array") / "a.json"
    file.write_text(f" {json.dumps(items, ensure_ascii=ascii_, indent=indent)}\n", encoding="utf-8")
    found = list(files.read_entries(file))
    assert [json.loads(e.raw) for e in found] == items
    assert [e.problem for e in found] == [None] * len(items)
    assert sum(e.size for e in found) == (file.stat().st_size if items else 0)


@pytest.mark.parametrize(
    ("text", "taken", "said"),
    [
        ("{0} {0}", 0, "Extra data: line 1 column"),
        ("[{0},]", 1, "item 2: expected an array of trajectories: Expecting value"),
        ("[{0}", 1, "item 2: expected an array of trajectories: something else"),
        ("[{0}] {0}", 1, "item 2: expected an array of trajectories: something else"),
        ("[{0}, {{, {0}]", 1, "item 2: expected an array of trajectories: Expecting property name"),
        ("", 0, "the file is empty"),
    ],
)
def test_a_document_that_is_not_json_is_refused(
    tmp_path: Path, text: str, taken: int, said: str
) -> None:
    (tmp_path / "a.json").write_text(text.format(json.dumps(PRINTED)))
    *good, bad = files.read_entries(tmp_path / "a.json")
    assert [e.parse_trajectory() for e in good] == [parse_trajectory(PRINTED)] * taken
    with pytest.raises(TrajectoryRefused) as refused:
        bad.parse_trajectory()
    assert refused.value.reason == "not JSON"
    assert said in f"{bad.place}: {refused.value.detail}"


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "plain.txt", PRINTED)
    with pytest.raises(
        OpenClawError, match=r"plain.txt: expected a file that ends with \.json, \.jsonl"
    ):
        files.find_files([tmp_path / "plain.txt"])


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson", "one.json", "bom.json"])
def test_every_layout_is_read(tmp_path: Path, name: str) -> None:
    two = [PRINTED, PRINTED | {"session_id": "b"}]
    lines = "\n".join(json.dumps(t) for t in two)
    text = {
        "a.json": json.dumps(two, indent=2),
        "one.json": json.dumps(PRINTED, indent=2),
        "bom.json": "\ufeff" + json.dumps(two),
    }.get(name, lines)
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = [
        e.parse_trajectory().session_id
        for f in files.find_files([tmp_path / name])
        for e in files.read_entries(f)
    ]
    assert found == ["user_session_abc123", "b"][: 1 if name == "one.json" else 2]


def test_hidden_and_other_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    for name in ("b.jsonl", "deep/a.json", ".hidden.json", ".git/x.json", "notes.md"):
        put(tmp_path / name, PRINTED)
    assert [str(f.relative_to(tmp_path)) for f in files.find_files([tmp_path])] == [
        "b.jsonl",
        "deep/a.json",
    ]


def test_an_empty_selection_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OpenClawError, match="no such file or folder"):
        files.find_files([tmp_path / "none"])
    with pytest.raises(OpenClawError, match="no trajectories there"):
        files.find_files([tmp_path])


def test_endless_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OpenClawError, match="got a pipe or a device"):
        files.find_files([tmp_path / "pipe.json"])
    put(tmp_path / "a.jsonl", PRINTED)
    assert files.find_files([tmp_path]) == [tmp_path / "a.jsonl"]


def test_entries_that_are_too_large_are_refused_and_the_others_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ENTRY_BYTES", 2000)
    long = PRINTED | {"turns": [main("x" * 5000, "y")]}
    put(tmp_path / "a.jsonl", long, PRINTED)
    (tmp_path / "b.json").write_text(json.dumps([long, PRINTED]))
    for name in ("a.jsonl", "b.json"):
        first, second = files.read_entries(tmp_path / name)
        assert first.problem is not None
        assert first.problem.reason == "too large"
        assert second.parse_trajectory() == parse_trajectory(PRINTED)


@pytest.mark.parametrize("name", ["in.json", "in.jsonl"])
def test_a_compressed_file_is_recognised(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(json.dumps(PRINTED).encode()))
    (entry,) = files.read_entries(tmp_path / name)
    assert entry.problem is not None
    assert "got a gzip file; unpack it first" in entry.problem.detail


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ('"session_id": ', '"session_id": "x", "session_id": ', "session_id"),
        ('"prompt": ', '"prompt": "x", "prompt": ', "prompt"),
        ('"prompt": ', '"messages": [{"role": "user", "role": "tool"}], "prompt": ', "role"),
    ],
)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_duplicate_key_is_an_error_of_its_line(
    tmp_path: Path, home: Home, name: str, before: str, after: str, key: str
) -> None:
    wrong = json.dumps(PRINTED).replace(before, after, 1)
    right = json.dumps(PRINTED | {"session_id": "b"})
    (tmp_path / name).write_text(
        f"[{wrong},{right}]" if name == "a.json" else f"{wrong}\n{right}\n"
    )
    report = home.bring(tmp_path / name)
    assert (report.counts.refused, report.counts.imported) == ({"key twice": 1}, 1)
    assert report.file is not None
    (refusal,) = [json.loads(line) for line in report.file.read_text().splitlines()]
    assert refusal["detail"] == f"{key!r} is given twice in one object. Keep one of them"
    assert refusal["place"].endswith(" 1")


CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown key": (
        {"promt": "x"},
        "unknown key",
        "turn 1: unknown key 'promt'; did you mean 'prompt'?",
    ),
    "inner key": (
        {"verdict": {"scor": 1}},
        "unknown key",
        "verdict: unknown key 'scor'; did you mean 'score'?",
    ),
    "type": (
        {"type": "sidee"},
        "wrong type",
        "type: invalid enum value 'sidee'; expected main or side",
    ),
    "prompt": ({"prompt": 3}, "wrong type", "prompt: expected str | null, got int"),
    "no prompt": ({"prompt": None}, "missing key", "missing key `prompt` (or `messages`)"),
    "no response": ({"response": None}, "missing key", "missing key `response` (or `message`)"),
    "score": ({"verdict": {"score": 2}}, "wrong type", "verdict.score: invalid enum value 2"),
    "ids alone": ({"prompt_ids": [1]}, "token arrays", "must come together; got only prompt_ids"),
    "no identity": (
        {"prompt_ids": [1], "response_ids": [2], "logprobs": [-1]},
        "token arrays",
        "need the identity of their model",
    ),
    "lengths": (
        {"prompt_ids": [1], "response_ids": [2, 3], "logprobs": [-1], "identity": "i"},
        "token arrays",
        "2 response_ids, but 1 logprobs and 2 mask entries",
    ),
    "probability": (
        {"prompt_ids": [1], "response_ids": [2], "logprobs": [0.5], "identity": "i"},
        "token arrays",
        "natural logarithms of probabilities (0 or less)",
    ),
    "role": (
        {"next_state": [{"role": "robot", "content": "x"}]},
        "out of range",
        "next_state: expected a role of",
    ),
    "call": (
        {"message": {"role": "assistant", "content": None, "tool_calls": [3]}, "response": None},
        "wrong type",
        "tool_calls: expected a list of calls",
    ),
    "two words": (
        {"messages": [{"role": "user", "content": "other"}]},
        "contradiction",
        "prompt differs",
    ),
    "side trains": (
        {"type": "side", "trainable": True},
        "contradiction",
        "a side turn never trains",
    ),
    "id": ({"id": ""}, "out of range", "id: expected 1 to 500 printable characters, got nothing"),
    "time": ({"at": -1}, "out of range", "at: expected seconds since 1970"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_problems_are_described(name: str) -> None:
    change, reason, said = CHANGES[name]
    broken: dict[str, Any] = copy.deepcopy(PRINTED)
    broken["turns"][0] |= change
    with pytest.raises(TrajectoryRefused) as refused:
        parse_trajectory(broken)
    assert refused.value.reason == reason
    assert said in refused.value.detail
    assert refused.value.turn == 1


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ([1], "expected an object with session_id and turns, got a list"),
        ({"turns": [main("a", "b")]}, "missing key session_id"),
        (
            {"session_id": "", "turns": [main("a", "b")]},
            "session_id: expected 1 to 500 printable characters",
        ),
        ({"session_id": "\ud800", "turns": [main("a", "b")]}, "session_id: expected"),
        ({"session_id": "s", "turns": []}, "turns: expected a list of one turn or more"),
        ({"sessionid": "s", "turns": []}, "did you mean 'session_id'?"),
    ],
)
def test_a_broken_session_is_named(broken: Any, said: str) -> None:
    with pytest.raises(TrajectoryRefused, match=said.replace("?", r"\?")):
        parse_trajectory(broken)


def _mutated(raw: bytes, dice: random.Random) -> bytes:
    """One to four changes such as files really suffer: bytes gone, doubled, swapped, foreign, or another's."""
    out = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        at, n = dice.randrange(len(out) + 1), dice.randint(1, 40)
        what = dice.randrange(7)
        if what == 0:
            del out[at : at + n]
        elif what == 1:
            out[at:at] = dice.randbytes(n)
        elif what == 2:
            out[at:at] = out[dice.randrange(len(out) + 1) :][:n]
        elif what == 3:
            del out[at:]
        elif what == 4:
            out[at:at] = dice.choice(
                [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\n", b"null", b"1e999", b"\\ud800"]
            )
        elif what == 5:
            out[at : at + 1] = dice.choice(
                [b"-", b"9", b"\x00", b"\xff", b"<|im_end|>", b"NaN", b"[" * 2000]
            )
        else:
            word = dice.choice(
                [
                    b"main",
                    b"prompt",
                    b"turns",
                    b"user",
                    b"role",
                    b"true",
                    b"content",
                    b"0",
                    b"session_id",
                ]
            )
            swap = dice.choice(
                [
                    b"side",
                    b"null",
                    b"{}",
                    b"assistant",
                    b"-1",
                    b"[[]]",
                    b"tool",
                    b"99999999999999999999",
                ]
            )
            out = bytearray(bytes(out).replace(word, swap, 1))
    return bytes(out) or b"{"


def test_a_thousand_broken_files_give_reasons_and_never_a_traceback(
    tmp_path: Path, home: Home
) -> None:
    """Mutations of what people write and of what an export writes, down to the store."""
    tools = [{"role": "tool", "tool_call_id": "c", "content": "seen"}]
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    rich = main(
        "look",
        "",
        message={"role": "assistant", "content": "", "tool_calls": [call]},
        next_state=tools,
    )
    home.bring(
        put(
            tmp_path / "in.jsonl",
            PRINTED,
            {"session_id": "r", "turns": [rich, main("", "It is red.")]},
        )
    )
    seeds = [json.dumps(PRINTED).encode(), *home.exports()]
    dice = random.Random(7)
    folder = tmp_path / "fuzz"
    folder.mkdir()
    for number in range(1000):
        parts = dice.sample(seeds, dice.randint(1, 2))
        suffix = dice.choice(["json", "jsonl"])
        raw = b"[" + b",".join(parts) + b"]" if suffix == "json" else b"\n".join(parts)
        (folder / f"{number:04}.{suffix}").write_bytes(_mutated(raw, dice))
    report = home.bring(folder)
    assert report.counts.read >= 1000
    assert 300 < report.refused_count < report.counts.read
    assert {"not JSON", "unknown key", "wrong type", "missing key"} <= set(report.counts.refused)
    assert report.file is not None
    refusals = [json.loads(line) for line in report.file.read_text().splitlines()]
    assert len(refusals) == report.refused_count
    assert all(t["file"] and t["reason"] and t["detail"] for t in refusals)
