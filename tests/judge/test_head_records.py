"""The text that the head reads: its parts, its limits, and that nobody's text is more than text."""

from __future__ import annotations

import numpy as np
import pytest
from tests.judge.head_world import FILES, reacted

from openclaw_rl.judge.head import records
from openclaw_rl.judge.head.labelled_reactions import load_reactions
from openclaw_rl.judge.head.training import EARLY_ROWS, training_rows
from openclaw_rl.types import JudgeInput, Reaction

TOKENIZER = records.RecordTokenizer(FILES)
PLAIN = records.CachedTokenizer(FILES)


def text_of(ids: np.ndarray) -> str:
    return PLAIN.backend.decode(ids.tolist(), skip_special_tokens=False)


def record_of(item: JudgeInput) -> records.HeadRecord:
    record = records.make_record(item)
    assert record is not None
    return record


def test_the_text_has_request_reply_and_reaction_and_the_spans_name_the_reaction() -> None:
    request = TOKENIZER.encode_record(record_of(reacted("t", "far too long")))
    whole = text_of(request.ids)
    assert whole.endswith("Reaction of the user: far too long\nVerdict:")
    assert "Request: Tell me something.\nReply: Here you are.\n" in whole
    last, reaction, after = request.spans
    assert after == (reaction[1], len(request.ids))
    assert last == (len(request.ids) - 1, len(request.ids))
    assert text_of(request.ids[slice(*reaction)]).strip() == "far too long"


def test_all_records_begin_alike() -> None:
    one = TOKENIZER.encode_record(record_of(reacted("t", "a")))
    other = TOKENIZER.encode_record(record_of(reacted("u", "b", role="tool")))
    assert one.shared == other.shared > 100
    assert np.array_equal(one.ids[: one.shared], other.ids[: one.shared])


@pytest.mark.parametrize("text", ["<|im_start|>system", "ok<|im_end|>", "<think>"])
def test_control_tokens_of_people_are_plain_text(text: str) -> None:
    request = TOKENIZER.encode_record(record_of(reacted("t", text)))
    control = set(PLAIN.control_ids.values())
    assert control.isdisjoint(request.ids[request.shared :].tolist())
    assert text in text_of(request.ids)


def test_long_texts_keep_head_and_tail() -> None:
    request = TOKENIZER.encode_record(record_of(reacted("t", "begin " + "x" * 5000 + " end")))
    whole = text_of(request.ids[request.shared :])
    assert len(whole) < 2000
    assert "begin" in whole
    assert whole.endswith(" end\nVerdict:")


def test_a_tool_result_says_so_and_whether_the_call_failed() -> None:
    assert record_of(reacted("t", "42", role="tool")).author == "tool"
    failed = record_of(reacted("t", "boom", role="tool", is_error=True))
    assert failed.author == "tool (the call failed)"
    assert failed.is_tool
    assert failed.has_error_mark


def test_the_calls_of_the_reply_are_read() -> None:
    item = reacted("t", "42", role="tool")
    call = {"function": {"name": "sum", "arguments": '{"of": [40, 2]}'}}
    reply = {"role": "assistant", "content": None, "tool_calls": [call]}
    record = record_of(
        JudgeInput(turn="t", messages=item.messages, reply=reply, reaction=item.reaction)
    )
    assert record.reply == '[tool call] sum({"of": [40, 2]})'


def test_a_tool_that_prints_nothing_is_read() -> None:
    assert record_of(reacted("t", "", role="tool")).reaction == records.NO_OUTPUT


def test_a_reaction_without_text_has_no_record() -> None:
    empty = Reaction(turn="t", revision=1, messages=(), source=None, how="feedback", at=1.0)
    item = reacted("t", "x")
    assert (
        records.make_record(
            JudgeInput(turn="t", messages=item.messages, reply=item.reply, reaction=empty)
        )
        is None
    )


def test_the_first_rows_are_a_sample_of_all() -> None:
    """In every language, of every class about as often as in the whole set."""
    rows = training_rows(load_reactions().reactions)
    first = rows[: EARLY_ROWS[0]]
    assert {row.labelled.language for row in first} == {row.labelled.language for row in rows}
    for expected in (1, -1, None):
        shares = [
            sum(row.labelled.expected == expected for row in some) / len(some)
            for some in (first, rows)
        ]
        assert shares[0] == pytest.approx(shares[1], abs=0.08)


def test_copies_that_address_the_judge_follow_and_keep_group_and_label() -> None:
    reactions = load_reactions().reactions
    rows = training_rows(reactions)
    copies = [row for row in rows if row.is_copy]
    plain = {row.group: row for row in rows if not row.is_copy}
    assert [plain[group].labelled for group in range(len(reactions))] == list(reactions)
    results = [row for row in plain.values() if row.record.is_tool]
    assert sum(row.record.is_tool for row in copies) == len(results)
    for row in copies:
        original = plain[row.group]
        assert rows[rows.index(row) - 1] is original
        assert row.labelled is original.labelled
        assert row.record.reaction.startswith(original.record.reaction)
        assert row.record.reaction.endswith(tuple(records.ADDRESSED))
