"""The labelled reactions, and what `evaluate judge` says of judges whose answers are known."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from tests.judge.endpoint import Answer, Endpoint, completion, serving, vote

from openclaw_rl.cli.main import cli, main
from openclaw_rl.errors import ConfigError, JudgeError
from openclaw_rl.evals import judge_scores
from openclaw_rl.evals.judge_report import report_json, report_text
from openclaw_rl.evals.judge_scores import evaluate_judge, judge_reactions
from openclaw_rl.judge.head.labelled_reactions import SHIPPED_SET, Half, load_reactions
from openclaw_rl.judge.prompts import JUDGE_PROMPT, build_messages
from openclaw_rl.settings.load import from_flat
from openclaw_rl.testing import ScriptedJudge

LANGUAGES = ("en", "de", "fr", "es", "zh", "ja")
HEADER = json.loads(SHIPPED_SET.read_text(encoding="utf-8").splitlines()[0])
CLASSES = set(HEADER["classes"])


def line(id: str, expected: int | None, said: str, **changes: Any) -> dict[str, Any]:
    row = {
        "id": id,
        "language": "en",
        "class": "c",
        "expected": expected,
        "request": "2+3?",
        "reply": "5",
    }
    return row | {"reaction": {"role": "user", "content": said}} | changes


ROWS = (
    line("right", 1, "alpha"),
    line("abstained", 1, "beta"),
    line("wrong", -1, "alpha again"),
    line("right-none", None, "gamma", language="de"),
    line("wrong-none", None, "alpha, too", language="de"),
)


def write_set(
    path: Path,
    rows: Sequence[Mapping[str, Any]] = ROWS,
    header: Any = {"version": 1},  # noqa: B006
) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]), encoding="utf-8")
    return path


def llm_settings(port: int, **more: Any) -> dict[str, Any]:
    flat = {
        "kind": "llm",
        "base_url": f"http://127.0.0.1:{port}/v1",
        "model": "m",
        "num_judges": 1,
        "retries": 0,
    }
    return {f"judge.{key}": value for key, value in (flat | more).items()}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["evaluate", "judge", *arguments])


# ---------------------------------------------------------------------------------------------------------- the set


def test_the_shipped_set_has_every_class_in_every_language() -> None:
    reactions = load_reactions(half=None).reactions
    counts = Counter(one.language for one in reactions)
    assert set(counts) == set(LANGUAGES)
    assert min(counts.values()) >= 50
    cells = Counter((one.language, one.kind) for one in reactions)
    assert set(cells) == {(language, kind) for language in LANGUAGES for kind in CLASSES}
    assert min(cells.values()) >= 4
    assert len({one.item.reaction.messages[0]["content"] for one in reactions}) > 0.95 * len(
        reactions
    )


def test_the_labels_of_the_shipped_set_follow_its_rule() -> None:
    labels: dict[str, set[int | None]] = {}
    for one in load_reactions(half=None).reactions:
        labels.setdefault(one.kind, set()).add(one.expected)
        role = one.item.reaction.messages[0]["role"]
        assert (role == "tool") is one.kind.startswith("tool-")
        assert bool(one.item.reply.get("tool_calls")) is (role == "tool")
    assert labels == {
        **{
            "positive": {1},
            "negative": {-1},
            "neutral": {None},
            "off-topic": {None},
            "new-topic": {None},
        },
        **{
            "sarcastic": {1, -1},
            "mixed": {1, -1, None},
            "tool-success": {1},
            "tool-error": {-1, None},
        },
    }


def test_a_language_model_gets_request_reply_and_reaction_of_each_row() -> None:
    for one in load_reactions(half=None).reactions:
        record = build_messages(JUDGE_PROMPT, one.item, lambda message: False)[1]["content"]
        assert str(one.item.messages[0]["content"]) in record
        assert str(one.item.reaction.messages[0]["content"]).strip() in record


def test_the_header_states_rule_licence_and_origin() -> None:
    assert HEADER["license"] == "Apache-2.0"
    assert {"labelling", "made", "about", "half", "classes"} < set(HEADER)


@pytest.mark.parametrize(
    ("rows", "header", "words"),
    [
        (ROWS, {"version": 2}, "version"),
        (ROWS, {"id": "x"}, "version"),
        ((), {"version": 1}, "at least one reaction"),
        ((ROWS[0], ROWS[0]), {"version": 1}, "distinct ids"),
        ((line("x", 0, "hm"),), {"version": 1}, r"line 2: .*expected"),
        ((line("x", 1, "hm") | {"reaction": "hm"},), {"version": 1}, r"line 2: .*reaction"),
        ((line("x", 1, "hm") | {"label": 1},), {"version": 1}, r"line 2: .*label"),
    ],
)
def test_a_file_of_another_form_is_refused(
    tmp_path: Path, rows: Any, header: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_reactions(write_set(tmp_path / "own.jsonl", rows, header))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: cannot be read"):
        load_reactions(tmp_path / "nowhere.jsonl")


# ------------------------------------------------------------------------------------- the judges


def rules_file(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text("version: 1\nrules:\n- {name: alpha, when: alpha, score: 1}\n")
    return path


def test_right_wrong_and_abstained_verdicts_are_distinguished(tmp_path: Path) -> None:
    config = from_flat({"judge.rules_path": str(rules_file(tmp_path))})
    result = evaluate_judge(config, load_reactions(write_set(tmp_path / "own.jsonl")))
    assert {row.labelled.id: row.outcome for row in result.rows} == {
        **{"right": "right", "abstained": "abstained", "wrong": "wrong"},
        **{"right-none": "right", "wrong-none": "wrong"},
    }
    content = report_json(result)
    assert content["all"] | {"interval": 0} == {
        **{"of": 5, "right": 2, "abstained": 1, "wrong": 2, "failed": 0, "interval": 0}
    }
    assert content["languages"]["de"]["right"] == 1
    assert content["scored"] == {"right": 1, "of": 3}
    assert content["rows"][0]["reason"] == "matched: alpha"
    text = report_text(result)
    assert "| c | 5 | 2 | 1 | 2 | 0.40 (0.12-0.77) | 0.40 (0.12-0.77) |" in text
    assert "Of 3 verdicts of +1 or -1, 0.33 (0.06-0.79) are right." in text
    assert result.judge.startswith("rules@")
    assert result.reactions.startswith("own.jsonl@")


def test_a_score_of_0_is_no_evidence() -> None:
    reactions = load_reactions().in_languages(["ja"]).reactions[:20]
    rows = asyncio.run(
        judge_reactions(ScriptedJudge(lambda item: 0), reactions, workers=2, show=lambda *_: None)
    )
    assert {row.outcome for row in rows} == {"abstained"}


def at_endpoint(
    answer: Answer, path: Path, *arguments: str, **more: Any
) -> tuple[Result, Endpoint]:
    """Run the command with the llm judge at a real endpoint."""

    async def go() -> tuple[Result, Endpoint]:
        async with serving(answer) as endpoint:
            sets = [
                f"--set={key}={value}" for key, value in llm_settings(endpoint.port, **more).items()
            ]
            done = await asyncio.to_thread(invoke, "--reactions", str(path), *sets, *arguments)
            return done, endpoint

    return asyncio.run(go())


async def _alpha_is_good(request: web.Request, number: int) -> web.StreamResponse:
    record = (await request.json())["messages"][1]["content"]
    return completion(vote(1 if "alpha" in record else 0))


def test_an_endpoint_is_measured_and_every_verdict_is_written(tmp_path: Path) -> None:
    path, out = write_set(tmp_path / "own.jsonl"), tmp_path / "new" / "rows.json"
    done, endpoint = at_endpoint(_alpha_is_good, path, "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "llm:m@3 on own.jsonl@" in done.stdout
    assert "| de | 2 | 1 | 0 | 1 |" in done.stdout
    rows = {row["id"]: row for row in json.loads(out.read_text(encoding="utf-8"))["rows"]}
    assert [rows[id]["outcome"] for id in ("right", "abstained", "wrong")] == [
        "right",
        "abstained",
        "wrong",
    ]
    assert rows["right"]["votes"] == [{"score": 1, "reason": "r", "error": None}]
    assert rows["wrong"]["reaction"] == {"role": "user", "content": "alpha again"}
    assert len(endpoint.seen) == len(ROWS)


def test_an_endpoint_gets_at_most_as_many_requests_at_once_as_there_are_workers(
    tmp_path: Path,
) -> None:
    running, most = 0, 0

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return completion(vote(1))

    path = write_set(tmp_path / "own.jsonl", [line(f"r{n}", 1, "x") for n in range(12)])
    done, _ = at_endpoint(answer, path, workers=3)
    assert done.exit_code == 0, done.output
    assert most == 3


def test_some_failures_are_counted_and_end_with_exit_code_1(tmp_path: Path) -> None:
    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        return web.Response(status=400, text="no") if number % 2 == 0 else completion(vote(1))

    path = write_set(tmp_path / "own.jsonl", [line(f"r{n}", 1, "x") for n in range(6)])
    done, _ = at_endpoint(answer, path, "--json", workers=1)
    assert done.exit_code == 1
    counts = json.loads(done.stdout)["all"]
    assert (counts["of"], counts["right"], counts["failed"]) == (3, 3, 3)
    assert "a reaction has no verdict: " in done.stderr
    assert "HTTP 400" in done.stderr


def fails_with(answer: Answer, reactions: int) -> tuple[str, int]:
    async def go() -> tuple[str, int]:
        async with serving(answer) as endpoint:
            config = from_flat(llm_settings(endpoint.port, workers=2))
            chosen = load_reactions()
            chosen = type(chosen)(name=chosen.name, reactions=chosen.reactions[:reactions])
            with pytest.raises(JudgeError) as raised:
                await asyncio.to_thread(evaluate_judge, config, chosen)
            return str(raised.value), len(endpoint.seen)

    return asyncio.run(go())


def test_an_endpoint_that_is_down_ends_the_evaluation_at_once() -> None:
    async def refuse(request: web.Request, number: int) -> web.StreamResponse:
        return web.Response(status=401, text="no")

    words, asked = fails_with(refuse, 50)
    assert asked == 1
    assert "HTTP 401" in words
    assert words.endswith("Set judge.api_key. Start the judge, or check judge.* in the settings")


def test_an_endpoint_that_goes_down_ends_the_evaluation() -> None:
    async def soon_down(request: web.Request, number: int) -> web.StreamResponse:
        return completion(vote(1)) if number < 4 else web.Response(status=404, text="no")

    words, asked = fails_with(soon_down, 100)
    assert f"failed on {judge_scores.MAX_FAILURES} reactions in a row" in words
    assert asked < 20


def test_a_reward_model_of_a_plug_in_is_measured(tmp_path: Path) -> None:
    plugin = tmp_path / "reward.py"
    plugin.write_text(
        "class Reward:\n"
        "    def score(self, prompt, response, next_state):\n"
        "        return 0.9 if 'alpha' in next_state else 0.5\n"
        "def get_reward_model(config):\n"
        "    return Reward()\n"
    )
    done = invoke(
        "--reactions",
        str(write_set(tmp_path / "own.jsonl")),
        "--set",
        f"judge.plugin_path={plugin}",
    )
    assert done.exit_code == 0, done.output
    assert "plugin:reward.py@" in done.stdout
    assert "| all | 5 | 2 | 1 | 2 |" in done.stdout


# ------------------------------------------------------------------------------------- the command


def test_the_rules_are_measured_by_default() -> None:
    done = invoke("--language", "ja", "--language", "de", "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["judge"].startswith("rules@")
    assert set(content["languages"]) == {"ja", "de"}
    assert set(content["classes"]) == CLASSES
    held_out = load_reactions(half=Half.HELD_OUT).in_languages(["ja", "de"])
    assert content["reactions"] == held_out.name
    assert [row["id"] for row in content["rows"]] == [one.id for one in held_out.reactions]
    assert content["all"]["of"] == len(content["rows"])


def test_an_unknown_language_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "judge", "--language", "xx"])
    assert "--language xx" in (said := capsys.readouterr().err)
    assert "en, de, fr, es, zh, ja" in said


def test_a_judge_without_an_endpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "judge", "--set", "judge.model=m"])
    assert "judge.base_url" in capsys.readouterr().err


def test_evaluate_without_judge_is_the_evaluation_of_a_checkpoint() -> None:
    done = CliRunner().invoke(cli, ["evaluate", "--help"])
    assert "--eval-tasks" in done.output
    assert "judge    Measure the judge" in done.output
    wrong = CliRunner().invoke(cli, ["evaluate", "--eval-tasks", "judge", "--lr", "1e-6"])
    assert isinstance(wrong.exception, ConfigError)
    assert "--tasks judge: expected some of conversation" in str(wrong.exception)
