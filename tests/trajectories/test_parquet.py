"""Parquet: what is written is what `datasets` reads, and what an import gives back."""

from __future__ import annotations

import dataclasses
import io
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from datasets import load_dataset
from tests.trajectories.world import FATES, PRINTED, Home, exported_file, live, main, plot, put

from openclaw_rl.cli.main import cli
from openclaw_rl.errors import OpenClawError
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.trajectories import files, parquet
from openclaw_rl.trajectories.schema import FileTurn


def test_every_key_of_the_format_has_a_column() -> None:
    keys = {f.name for f in dataclasses.fields(FileTurn)}
    columns = {field.name for field in parquet._turn_type(pa)}
    assert {c.removesuffix("_json") for c in columns} == keys


def test_datasets_reads_both_forms(tmp_path: Path, home: Home) -> None:
    live(home.store, [[plot(fate) for fate in FATES], [plot("judged")]])
    cache = str(tmp_path / "cache")
    whole = load_dataset(
        "parquet",
        data_files=str(exported_file(home, tmp_path / "t.parquet")),
        split="train",
        cache_dir=cache,
    )
    assert [len(row["turns"]) for row in whole] == [len(FATES), 1]
    turn = whole[1]["turns"][0]
    assert (turn["prompt"], turn["response"], turn["verdict"]["score"]) == (
        "What now?",
        "This and that.",
        1,
    )
    assert len(turn["logprobs"]) == len(turn["response_ids"]) > 1
    rows = load_dataset(
        "parquet",
        data_files=str(exported_file(home, tmp_path / "r.parquet", "turns")),
        split="train",
        cache_dir=cache,
    )
    assert len(rows) > 5
    assert all(len(row["logprobs"]) == len(row["response_ids"]) for row in rows)


def test_rows_of_another_program_are_imported(tmp_path: Path, home: Home) -> None:
    """Only the five keys, other integer types, nulls where there is nothing."""
    turns = [dict(turn) for turn in PRINTED["turns"]]  # type: ignore[attr-defined]
    pq.write_table(
        pa.Table.from_pylist([{"session_id": "s", "turns": turns}]), tmp_path / "in.parquet"
    )
    (tmp_path / "in.jsonl").write_text("")
    assert home.bring(tmp_path / "in.parquet").counts.turns == 2
    put(tmp_path / "same.jsonl", {"session_id": "s", "turns": turns})
    assert home.bring(tmp_path / "same.jsonl").counts.known == 1


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [{"session_id": "s", "words": "x"}],
            "expected the columns session_id and turns, got session_id, words",
        ),
        ([{"session_id": "s", "turn_id": "t"}], "export without --format turns"),
        (
            [{"session_id": "s", "turns": [{"promt": "x", "response": "y"}]}],
            "did you mean 'prompt'",
        ),
        (
            [{"session_id": "s", "turns": [main("x", "y", messages_json="{")]}],
            "turn 1: messages_json: expected JSON",
        ),
        (
            [
                {
                    "session_id": "s",
                    "turns": [main("x", "y", messages_json='[{"role": "user", "role": "tool"}]')],
                }
            ],
            "turn 1: messages_json: 'role' is given twice in one object",
        ),
        ([{"session_id": "s", "turns": [main("x", "y", at=b"\xff")]}], "at: expected float"),
    ],
)
def test_other_columns_are_refused_by_name(
    tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    done = CliRunner().invoke(cli, ["data", "check", str(tmp_path / "in.parquet")])
    assert done.exit_code == 1
    assert said in " ".join(done.stdout.split())


def test_broken_files_give_reasons(tmp_path: Path, home: Home) -> None:
    home.bring(
        put(
            tmp_path / "in.jsonl",
            PRINTED,
            *({"session_id": f"s{n}", "turns": [main("a", "b")]} for n in range(50)),
        )
    )
    whole = exported_file(home, tmp_path / "out.parquet").read_bytes()
    dice, broken = random.Random(5), 0
    for number in range(200):
        raw = bytearray(whole)
        for _ in range(dice.randint(1, 20)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        file = tmp_path / "fuzz.parquet"
        file.write_bytes(raw[: dice.randrange(len(raw))] if number % 4 == 0 else raw)
        found = list(files.read_entries(file))
        broken += any(entry.problem for entry in found)
        assert all(entry.problem.reason for entry in found if entry.problem)
    assert broken > 100


def test_parquet_is_written_in_row_groups(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    home.bring(
        put(
            tmp_path / "in.jsonl",
            *({"session_id": f"s{n}", "turns": [main("a", "b")]} for n in range(10)),
        )
    )
    file = pq.ParquetFile(exported_file(home, tmp_path / "out.parquet"))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [4, 4, 2]
    assert (tmp_path / "out.parquet").stat().st_mode & 0o777 == 0o600


def test_half_a_surrogate_pair_is_kept_where_json_can_hold_it() -> None:
    half = "half \ud83d of it"
    turn = {"type": "main", "response": "b", "messages": [{"role": "user", "content": half}]}
    turn |= {
        "message": {"role": "assistant", "content": "b"},
        "next_state": [{"role": "user", "content": half}],
    }
    stream = io.BytesIO()
    with parquet.open_writer(stream, "trajectories") as add:
        add(to_json({"session_id": "s", "turns": [turn]}))
    ((_, raw, problem, _),) = parquet.read_trajectories(stream, len(stream.getvalue()))
    assert problem is None
    (given_back,) = from_json(raw)["turns"]
    assert given_back == turn
    with (
        pytest.raises(OpenClawError, match=r"Parquet cannot hold half a surrogate pair .*\.jsonl"),
        parquet.open_writer(io.BytesIO(), "trajectories") as add,
    ):
        add(to_json({"session_id": half, "turns": [turn]}))


def test_a_missing_pyarrow_is_reported_once(
    tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.bring(put(tmp_path / "in.jsonl", PRINTED))
    exported_file(home, tmp_path / "out.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(OpenClawError, match=r"pip install 'openclaw-rl\[data\]'"):
        exported_file(home, tmp_path / "none.parquet")
    with pytest.raises(OpenClawError, match=r"pip install 'openclaw-rl\[data\]'"):
        home.bring(tmp_path / "out.parquet")
    assert sorted(p.name for p in tmp_path.glob("*.parquet")) == ["out.parquet"]
