"""Words become turns that judge and trainer take like any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.model_identity import identity_of
from tests.trajectories.world import IDENTITY, PRINTED, RENDERER, THANKS, Home, main, put

from openclaw_rl.common import message_hash
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.errors import IdentityMismatch, ModelError
from openclaw_rl.methods.registry import make_method
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, ModelConfig, TrainConfig, from_flat, train_settings
from openclaw_rl.status.reasons import group_reasons
from openclaw_rl.store import exchanges, turns
from openclaw_rl.store.lineage import policies, training_queue
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.trajectories.files import read_entries
from openclaw_rl.trajectories.importer import (
    BUILT_SHARE,
    SCORED_SHARE,
    TrajectoryImporter,
    load_scorer,
    score_unscored,
)
from openclaw_rl.trajectories.operations import _make_follower
from openclaw_rl.trajectories.report import ImportReport
from openclaw_rl.trajectories.resolve import ResolvedTurn, resolve_turns
from openclaw_rl.trajectories.schema import TrajectoryRefused
from openclaw_rl.trajectories.turn_builder import NOT_TRAINABLE_REASON
from openclaw_rl.types import Exchange, Origin, Policy, PolicyState, Reply, TurnState, Verdict


def planned(file: Path) -> list[ResolvedTurn]:
    return [p for e in read_entries(file) for p in resolve_turns(e.parse_trajectory())]


def stored(home: Home, id_: str) -> tuple[Exchange, Reply]:
    with home.store.read() as conn:
        found = exchanges.get(conn, id_)
    assert found is not None
    assert found.reply is not None
    return found, found.reply


def test_imported_text_is_scored_once_and_then_trained_on(tmp_path: Path, home: Home) -> None:
    """From the printed format to a sample, whose log-probabilities are those of the frozen trainer's own code."""
    from openclaw_rl.learner.forward.packing import TokenSequence
    from openclaw_rl.learner.trainer import LocalTrainer

    file = put(
        tmp_path / "in.jsonl", PRINTED | {"turns": [*PRINTED["turns"], main("And now?", "Now.")]}
    )
    report = home.bring(file, score=True)
    assert (report.counts.tokenised, report.counts.scored, report.counts.turns) == (2, 2, 3)
    first, side, second = planned(file)
    exchange, reply = stored(home, first.id)
    assert exchange.request.origin is Origin.TEXT
    method = make_method(train_settings({"method": "binary"}))
    trainer = LocalTrainer(
        str(ModelFiles.from_path(STARTER).folder),
        method,
        TrainConfig(method="binary"),
        ModelConfig(),
    )
    for id_ in (first.id, second.id):
        found, said = stored(home, id_)
        row = TokenSequence(
            prompt_ids=found.request.prompt_ids, response_ids=said.response_ids, temperature=1.0
        )
        np.testing.assert_allclose(said.logprobs, trainer.logprobs([row])[0].numpy(), atol=1e-4)
    with home.store.read() as conn:
        waiting = turns.closed_turns(conn, 10)
        aside = turns.get(conn, side.id)
        last = turns.get(conn, second.id)
    assert [(w.turn, w.reaction.messages, w.reaction.how) for w in waiting] == [
        (first.id, ({"role": "user", "content": THANKS},), "imported")
    ]
    assert aside is not None
    assert (aside.state, aside.reason) == (
        TurnState.DROPPED,
        "side traffic: its trajectory says so",
    )
    assert last is not None
    assert (last.state, last.parent, last.relation) == (TurnState.SERVED, first.id, "continuation")
    with home.store.write() as conn:
        turns.add_verdict(conn, Verdict(turn=first.id, revision=1, judge="rules", score=1, at=1.0))
        head = policies.head(conn)
        ready = training_queue.trainable_turns(
            conn, limit=9, max_uses=1, need_score=True, need_hint=False
        )
    builder = SampleBuilder(
        renderer=RENDERER, transient=EphemeralMatcher(()), signal=method, max_staleness=1
    )
    batch = builder.build_batch(ready, head, range(head.version + 1))
    assert batch.dropped == {}
    (sample,) = batch.samples
    assert (sample.turn, sample.reward, sample.temperature, sample.on_policy) == (
        first.id,
        1.0,
        1.0,
        False,
    )
    assert reply.response_ids.tolist() == sample.response_ids.tolist()


def test_a_version_at_tinker_scores_nothing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "tinker_version.json").write_text("{}")
    files = ModelFiles.from_path(STARTER)
    head = Policy(
        version=1,
        parent=0,
        state=PolicyState.LIVE,
        path=str(tmp_path),
        digest="",
        base="b",
        identity="x",
        created_at=0,
    )
    with pytest.raises(
        ModelError, match=r"version 1 is at the Tinker service, .*Import with --no-score"
    ):
        load_scorer(from_flat({"home": str(tmp_path)}), files, head)


def test_tokens_are_those_of_the_template(tmp_path: Path, home: Home) -> None:
    turns_ = [
        main("Hi", "Yo"),
        {"type": "side", "prompt": "title?", "response": "T"},
        main("More", "No"),
    ]
    file = put(tmp_path / "in.jsonl", {"session_id": "s", "turns": turns_})
    home.bring(file)
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "More"},
        {"role": "assistant", "content": "No"},
    ]
    *_, last = planned(file)
    exchange, reply = stored(home, last.id)
    whole = RENDERER.render(history, generation=False).prompt_ids.tolist()
    ours = [*exchange.request.prompt_ids.tolist(), *reply.response_ids.tolist()]
    assert ours == whole[: len(ours)]
    assert reply.response_ids[-1] in RENDERER.stop_token_ids


def test_without_next_state_the_next_prompt_answers(tmp_path: Path, home: Home) -> None:
    file = put(
        tmp_path / "in.jsonl",
        {"session_id": "s", "turns": [main("Hi", "Yo"), main("Shorter!", "Y")]},
    )
    home.bring(file)
    first, second = planned(file)
    with home.store.read() as conn:
        said = turns.current_reaction(conn, first.id)
    assert said is not None
    assert (said.messages, said.source) == (({"role": "user", "content": "Shorter!"},), second.id)


def test_tool_results_are_the_reaction_and_the_history(tmp_path: Path, home: Home) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "sky"}'},
    }
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    seen = [{"role": "tool", "tool_call_id": "c1", "content": "blue"}]
    turns_ = [
        main("Look up", "", message=asked, next_state=seen),
        main("", "It is blue.", next_state="ok"),
    ]
    file = put(tmp_path / "in.jsonl", {"session_id": "s", "turns": turns_})
    assert home.bring(file).refused_count == 0
    first, second = planned(file)
    assert second.messages == ({"role": "user", "content": "Look up"}, asked, *seen)
    with home.store.read() as conn:
        said = turns.current_reaction(conn, first.id)
    assert said is not None
    assert list(said.messages) == seen


def test_a_file_that_grows_adds_its_new_turns(tmp_path: Path, home: Home) -> None:
    begun = {"session_id": "s", "turns": [main("Hi", "Yo")]}
    grown = {"session_id": "s", "turns": [main("Hi", "Yo", next_state="good"), main("More", "No")]}
    home.bring(put(tmp_path / "a.jsonl", begun))
    counts = home.bring(put(tmp_path / "a.jsonl", grown)).counts
    assert (counts.imported, counts.grown, counts.turns) == (0, 1, 1)
    first, _ = planned(tmp_path / "a.jsonl")
    with home.store.read() as conn:
        found = turns.get(conn, first.id)
    assert found is not None
    assert found.state is TurnState.CLOSED


def test_a_grown_session_may_be_in_the_same_file(tmp_path: Path, home: Home) -> None:
    begun, grown = [main("Hi", "Yo")], [main("Hi", "Yo"), main("More", "No")]
    counts = home.bring(
        put(
            tmp_path / "a.jsonl",
            {"session_id": "s", "turns": begun},
            {"session_id": "s", "turns": grown},
        )
    ).counts
    assert (counts.imported, counts.grown, counts.turns) == (1, 1, 2)


def test_turns_that_are_too_long_are_one_reason_in_status(tmp_path: Path, home: Home) -> None:
    long = [main("word " * n, "b", next_state="c") for n in (5000, 100)]
    home.bring(put(tmp_path / "in.jsonl", {"session_id": "s", "turns": long}))
    with home.store.read() as conn:
        found = [turns.get(conn, p.id) for p in planned(tmp_path / "in.jsonl")]
        (group,) = group_reasons(turns.count_untrainable(conn))
    assert len({turn.untrainable for turn in found if turn is not None}) == 2
    assert (group.code, group.count) == (ReasonCode.TOO_LONG, 2)
    assert group.label.startswith("longer than the model takes: prompt and response have")


def test_trainable_false_never_trains(tmp_path: Path, home: Home) -> None:
    file = put(
        tmp_path / "in.jsonl",
        {"session_id": "s", "turns": [main("a", "b", next_state="c", trainable=False)]},
    )
    home.bring(file)
    with home.store.read() as conn:
        found = turns.get(conn, planned(file)[0].id)
    assert found is not None
    assert (found.untrainable, found.state) == (NOT_TRAINABLE_REASON.detail, TurnState.CLOSED)


def test_one_bad_turn_keeps_its_whole_trajectory_out_and_no_other(
    tmp_path: Path, home: Home
) -> None:
    bad = {"session_id": "bad", "turns": [main("a", "b"), main("c", "ends <|im_end|> early")]}
    report = home.bring(put(tmp_path / "in.jsonl", bad, PRINTED))
    assert report.counts.imported == 1
    assert report.counts.refused == {"chat template": 1}
    assert "line 1: turn 2: the response holds <|im_end|>" in report.examples["chat template"][0]
    assert len(home.exports()) == 1
    assert report.file is not None
    assert report.file.stat().st_mode & 0o777 == 0o600


def test_unscored_turns_wait_until_they_are_scored(tmp_path: Path, home: Home) -> None:
    file = put(tmp_path / "in.jsonl", PRINTED)
    home.bring(file, score=False)
    first = planned(file)[0].id
    with home.store.read() as conn:
        before = turns.get(conn, first)
    assert before is not None
    assert before.untrainable_code is ReasonCode.UNSCORED
    seen: list[int] = []
    assert score_unscored(home.config, home.store, seen.append) == 1
    assert seen == [1]
    assert score_unscored(home.config, home.store, seen.append) == 0
    with home.store.read() as conn:
        after = turns.get(conn, first)
    assert after is not None
    assert after.untrainable is None
    assert np.isfinite(stored(home, first)[1].logprobs).all()


def test_tokens_of_another_model_are_made_again(tmp_path: Path, home: Home) -> None:
    foreign = main(
        "Hi", "Yo", prompt_ids=[1, 2], response_ids=[3], logprobs=[-1.0], identity="f" * 64
    )
    file = put(tmp_path / "in.jsonl", {"session_id": "s", "turns": [foreign]})
    home.bring(file)
    exchange, _ = stored(home, planned(file)[0].id)
    assert (exchange.request.origin, exchange.request.identity) == (Origin.TEXT, IDENTITY)
    assert (
        exchange.request.prompt_ids.tolist()
        == RENDERER.render(exchange.request.messages).prompt_ids.tolist()
    )


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path, home: Home) -> None:
    wrong = main(
        "Hi", "Yo", prompt_ids=[10**6], response_ids=[3], logprobs=[-1.0], identity=IDENTITY
    )
    report = home.bring(put(tmp_path / "in.jsonl", {"session_id": "s", "turns": [wrong]}))
    assert "token 1000000 is not in the model's vocabulary" in report.examples["token arrays"][0]


def test_the_text_of_an_id_never_changes(tmp_path: Path, home: Home) -> None:
    home.bring(
        put(tmp_path / "a.jsonl", {"session_id": "s", "turns": [main("Hi", "Yo", id="mine")]})
    )
    report = home.bring(
        put(tmp_path / "b.jsonl", {"session_id": "s", "turns": [main("Hi", "No", id="mine")]})
    )
    assert "is in the store with other text" in report.examples["contradiction"][0]


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        (
            [main("a", "b", id="x"), main("c", "d", id="x")],
            "turn 2: id 'x' is twice in this trajectory",
        ),
        ([main("a", "b", id="x", parent="x")], "turn 1: parent 'x' leads back to the turn itself"),
        (
            [main("a", "b", id="x", parent="y"), main("c", "d", id="y", parent="x")],
            "leads back to the turn itself",
        ),
    ],
)
def test_a_lineage_that_leads_back_is_refused_by_a_check_too(
    tmp_path: Path, turns: list[object], words: str
) -> None:
    (entry,) = read_entries(put(tmp_path / "in.jsonl", {"session_id": "s", "turns": turns}))
    with pytest.raises(TrajectoryRefused) as caught:
        resolve_turns(entry.parse_trajectory())
    assert words in caught.value.detail


def test_text_is_tokenised_by_the_configured_tokenizer(tmp_path: Path) -> None:
    """Another tokenizer is another identity: the turns are this model's only then."""
    there = ModelFiles.from_path(STARTER).folder
    other = shutil.copytree(
        there, tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors")
    )
    template = other / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8") + "{# another #}", encoding="utf-8")
    home = Home.open(tmp_path / "home", model__tokenizer=str(other))
    file = put(tmp_path / "in.jsonl", {"session_id": "s", "turns": [main("Hi", "Yo", id="mine")]})
    home.bring(file)
    found, _ = stored(home, "mine")
    home.store.close()
    assert (
        found.request.identity == identity_of(ModelFiles.from_config(home.config.model)) != IDENTITY
    )


def test_the_store_of_another_model_is_refused(tmp_path: Path, home: Home) -> None:
    with home.store.write() as conn:
        policies.ensure_root(conn, base="other", identity="o" * 64, at=1.0)
    with pytest.raises(IdentityMismatch, match="belongs to other"):
        home.bring(put(tmp_path / "in.jsonl", PRINTED))


def test_a_long_session_is_stored_like_its_turns_one_by_one(
    tmp_path: Path, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever stands between its turns: side traffic, calls, one that goes back, one with other tools."""
    caplog.set_level("INFO", logger="openclaw_rl.data")
    turns_ = [main(f"And line {n}?", f"Line {n} is {'long ' * (n % 3)}.") for n in range(30)]
    turns_[11:11] = [{"type": "side", "prompt": "title?", "response": "T"}]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": 1.0}}}
    look = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {}}}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    turns_[15:15] = [
        main(
            "Look",
            "",
            message=asked,
            next_state=[{"role": "tool", "tool_call_id": "c1", "content": "b"}],
        )
    ]
    turns_[16] = main("", "It is b.")
    file = put(tmp_path / "in.jsonl", {"session_id": "s", "turns": turns_})
    resolved = planned(file)
    back = [*resolved[20].messages[:-1], {"role": "user", "content": "No, this"}]
    number = json.loads(
        json.dumps([*resolved[-1].messages, resolved[-1].reply, back[-1]]).replace("1.0}", "1}")
    )
    turns_ += [
        main("No, this", "Yes.", messages=back),
        main("No, this", "So.", messages=number),
        main("On", "We go."),
        main("On", "and on.", tools=[look]),
    ]
    assert (
        home.bring(put(tmp_path / "in.jsonl", {"session_id": "s", "turns": turns_})).refused_count
        == 0
    )
    for p in planned(file):
        request, reply = (found := stored(home, p.id))[0].request, found[1]
        whole = RENDERER.render(
            [*p.messages, p.reply], p.turn.tools, generation=False
        ).prompt_ids.tolist()
        ours = [*request.prompt_ids.tolist(), *reply.response_ids.tolist()]
        assert ours == whole[: len(ours)]
        assert request.marks == message_hash.mark_messages(
            p.messages, home.store.secret, EphemeralMatcher(home.config.serve.ephemeral_patterns)
        )
    assert "incremental rendering is not possible" not in caplog.text


def test_sessions_of_a_template_that_rewrites_history_are_rendered_completely(
    tmp_path: Path,
) -> None:
    there = ModelFiles.from_path(STARTER).folder
    other = shutil.copytree(
        there, tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors")
    )
    (other / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if loop.revindex < 9 else '...' }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        encoding="utf-8",
    )
    home = Home.open(tmp_path / "home", model__tokenizer=str(other))
    renderer = Renderer(ModelFiles.from_config(home.config.model))
    file = put(
        tmp_path / "in.jsonl",
        {"session_id": "s", "turns": [main(f"a{n}", f"b{n}") for n in range(20)]},
    )
    assert home.bring(file).refused_count == 0
    for p in planned(file):
        ids = stored(home, p.id)[0].request.prompt_ids
        assert ids.tolist() == renderer.render(p.messages).prompt_ids.tolist()
    home.store.close()


def test_the_progress_bar_ends_with_the_files(tmp_path: Path, home: Home) -> None:
    """Every byte is reported once, whatever a trajectory's share was on the way, and however it came to an end."""
    ticks: list[tuple[int, int]] = []
    many = [
        {"session_id": f"s{n}", "turns": [main(f"a{m}", f"b{m}") for m in range(7)]}
        for n in range(5)
    ]
    files = [put(tmp_path / "a.jsonl", *many, {"session_id": "broken"}), tmp_path / "b.json"]
    files[1].write_text(json.dumps([many[0], many[1]]) + "\n")
    with ImportReport(None) as report:
        found = (e for file in files for e in read_entries(file))
        TrajectoryImporter(home.config, home.store, score=False).run(
            found, report, follow=_make_follower(lambda size, n: ticks.append((size, n)))
        )
    assert (sum(size for size, _ in ticks), sum(n for _, n in ticks)) == (
        sum(f.stat().st_size for f in files),
        8,
    )
    assert min(size for size, _ in ticks) >= 0


def test_progress_is_reported_within_a_session(tmp_path: Path, home: Home) -> None:
    shares: list[float] = []
    file = put(
        tmp_path / "in.jsonl",
        {"session_id": "s", "turns": [main(f"a{n}", f"b{n}") for n in range(20)]},
    )
    with ImportReport(None) as report:
        TrajectoryImporter(home.config, home.store).run(
            read_entries(file), report, follow=lambda _, share: shares.append(share)
        )
    assert shares == sorted(shares)
    assert (shares[0], shares[-1], shares.count(1)) == (BUILT_SHARE / 20, 1, 1)
    assert len([s for s in shares if BUILT_SHARE < s <= SCORED_SHARE]) > 0
    assert len([s for s in shares if SCORED_SHARE < s < 1]) > 10
