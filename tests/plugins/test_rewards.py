"""Reward models as judges: a classifier of its own, the examples, and files that do not fit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.judge.conftest import world
from tests.judge.test_worker import until, working
from tests.judge.world import World
from transformers import (
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from openclaw_rl.errors import ConfigError, ModelError, PluginError
from openclaw_rl.judge import plugin, worker
from openclaw_rl.judge.reward_model import (
    RewardBatcher,
    RewardInput,
    RewardJudge,
    make_reward_input,
)
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import from_flat, load
from openclaw_rl.types import JudgeInput, Reaction

__all__ = ["world"]


def small(labels: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=4096,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        num_labels=labels,
        pad_token_id=0,
    )


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    made: dict[int, str] = {}

    def make(labels: int = 2) -> str:
        if labels not in made:
            torch.manual_seed(labels)
            folder = tmp_path_factory.mktemp(f"classes{labels}")
            model = Qwen3ForSequenceClassification(small(labels))
            with torch.no_grad():
                model.score.weight.mul_(8)
            model.save_pretrained(folder)
            AutoTokenizer.from_pretrained(ModelFiles.from_path("starter").folder).save_pretrained(
                folder
            )
            made[labels] = str(folder)
        return made[labels]

    return make


def stated(folder: str, text: str) -> float:
    """The example's own words, in float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
    return float(torch.softmax(logits, -1)[1] if len(logits) == 2 else torch.sigmoid(logits[0]))


def item(asked: str = "ask", said: str = "ok", **more: Any) -> JudgeInput:
    messages = ({"role": "user", "content": said},) if said else ()
    reaction = Reaction(turn="t", revision=1, messages=messages, source="u", how="exact", at=1.0)
    values = {
        "messages": ({"role": "user", "content": asked},),
        "reply": {"role": "assistant", "content": "answer"},
    }
    return JudgeInput(turn="t", reaction=reaction, **(values | more))


@pytest.mark.parametrize("labels", [1, 2])
def test_the_classifier_judges_in_the_loop(
    world: World, classifier: Callable[[int], str], labels: int
) -> None:
    folder, ids = classifier(labels), [f"t{n}" for n in range(6)]
    words = [f"{'no ' * n}never mind {n}" for n in range(6)]
    rewards = {
        id: stated(folder, f"Prompt: ask {id}\nResponse: answer {id}\nOutcome: {said}")
        for id, said in zip(ids, words, strict=True)
    }
    low, *_, high = sorted(rewards.values())
    third = (high - low) / 3
    assert third > 1e-3, "rewards that differ"
    world.config = from_flat(
        {
            "home": world.config.home,
            "judge.kind": "classifier",
            "judge.reward_path": folder,
            "judge.reward_low": low + third,
            "judge.reward_high": high - third,
        }
    )

    async def go() -> None:
        for id, said in zip(ids, words, strict=True):
            world.close(id, said)
        async with working(world):
            await until(lambda: world.judged() == len(ids))

    asyncio.run(go())
    for id in ids:
        verdict = world.verdict(id)
        expected = -1 if rewards[id] < low + third else 1 if rewards[id] > high - third else 0
        assert verdict.score == expected
        assert verdict.reason.startswith(f"reward {rewards[id]:.3f}"[:-1])
    assert {world.verdict(id).score for id in ids} >= {1, -1}


@pytest.mark.parametrize("name", ["custom_rm.py", "custom_reward.py"])
def test_the_examples_judge_in_the_loop(
    world: World, classifier: Callable[[int], str], examples: Path, name: str
) -> None:
    folder = classifier(2)
    label = "Outcome" if name == "custom_rm.py" else "Feedback"
    reward = stated(folder, f"Prompt: ask t0\nResponse: answer t0\n{label}: no, shorter")
    values = {
        "home": world.config.home,
        "judge.kind": "plugin",
        "judge.plugin_path": str(examples / name),
    }
    near = {"judge.reward_low": reward / 2, "judge.reward_high": reward / 2}
    world.config = from_flat(values | near | {"judge.reward_path": folder})

    async def go() -> None:
        world.close("t0", "no, shorter")
        async with working(world):
            await until(lambda: world.judged() == 1)

    asyncio.run(go())
    assert reward > 0.1, "bfloat16 does not matter"
    assert world.verdict("t0").score == 1
    assert world.verdict("t0").judge.startswith(f"plugin:{name}@")
    assert float(world.verdict("t0").reason.split()[1]) == pytest.approx(
        reward, abs=0.03
    )  # bfloat16


def test_models_that_are_no_classifier(classifier: Callable[[int], str], tmp_path: Path) -> None:
    Qwen3ForCausalLM(small(2)).save_pretrained(tmp_path / "causal")
    AutoTokenizer.from_pretrained(classifier(2)).save_pretrained(tmp_path / "causal")
    for path, words in (
        (
            str(tmp_path / "causal"),
            r"is not a trained classifier: it has no weights for score\.weight",
        ),
        (classifier(5), "has 5 classes, expected 1 or 2"),
        (str(tmp_path / "nowhere"), "cannot be loaded as a sequence classifier"),
    ):
        with pytest.raises(ModelError, match=words):
            worker.make_judge(from_flat({"judge.kind": "classifier", "judge.reward_path": path}))


def test_the_prompt_of_the_reward_model() -> None:
    history = (
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "<think>hm</think>second"},
        {"role": "user", "content": "passing"},
        {"role": "user", "content": "third"},
    )
    asked = make_reward_input(
        item(messages=history), lambda message: message["content"] == "passing"
    )
    assert asked == RewardInput(
        prompt="user: first\nassistant: second\nuser: third", response="answer", outcome="ok"
    )
    assert make_reward_input(item("x" * 9000 + "end"), lambda message: False).prompt.endswith(
        "xend"
    )
    assert len(make_reward_input(item("x" * 9000), lambda message: False).prompt) == 8000


def test_a_reaction_without_text_is_no_evidence() -> None:
    def never(questions: Sequence[RewardInput]) -> list[float]:
        raise AssertionError("nobody asks")

    verdict = asyncio.run(RewardJudge(from_flat({}), "n", never).judge(item(said="")))
    assert verdict.score is None
    assert "no text" in verdict.reason


@pytest.mark.parametrize(("reward", "score"), [(0.39, -1), (0.4, 0), (0.5, 0), (0.6, 0), (0.61, 1)])
def test_two_thresholds(reward: float, score: int) -> None:
    assert (
        asyncio.run(
            RewardJudge(from_flat({}), "n", lambda q: [reward] * len(q)).judge(item())
        ).score
        == score
    )


def test_questions_wait_for_one_batch_and_make_the_next() -> None:
    sizes: list[int] = []
    threads: set[int] = set()

    def answer(questions: Sequence[RewardInput]) -> list[float]:
        sizes.append(len(questions))
        threads.add(threading.get_ident())
        time.sleep(0.02)
        if any(q.prompt == "7" for q in questions):
            raise ValueError("seven")
        return [float(q.prompt) for q in questions]

    async def go() -> list[Any]:
        batches = RewardBatcher(answer, most=4)
        asked = [RewardInput(prompt=str(n), response="", outcome="") for n in range(10)]
        return await asyncio.gather(
            *(batches.request_reward(q) for q in asked), return_exceptions=True
        )

    got = asyncio.run(go())
    assert isinstance(got.pop(7), ValueError), "one that cannot be answered holds up no other"
    assert got == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert sizes == [4, 4, 1, 1, 1, 1, 2]
    assert threading.get_ident() not in threads


RM = "class M:\n    def score(self, prompt, response, next_state): return {}\ndef get_reward_model(config): return M()"
MANY = (
    "import torch\nclass M:\n    def __init__(self, checkpoint_path): ...\n    def compute_reward(self, a): ...\n"
    "    def batch_compute_rewards(self, items): return {}"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RM.format("1.5"), r"M\.score returned 1\.5, expected a number in \[0, 1\]"),
        (RM.format("float('nan')"), r"M\.score returned nan, expected a number"),
        (RM.format("'good'"), r"M\.score returned a value of type str, expected a number"),
        (RM.format("'0.5'"), r"M\.score returned a value of type str, expected a number"),
        (RM.format("10**400"), r"M\.score returned a value of type int, expected a number"),
        (RM.format("1 / 0"), r"mine\.py:2: M\.score raised ZeroDivisionError"),
        (
            MANY.format("torch.zeros(3)"),
            r"returned a tensor of shape \(3,\), float32, expected a reward for each of 1 items: \(1,\)",
        ),
        (
            MANY.format("torch.zeros(1, 1)"),
            r"returned a tensor of shape \(1, 1\), float32, expected a reward for each",
        ),
        (
            MANY.format("0.5"),
            "batch_compute_rewards returned a value of type float, expected a reward for each",
        ),
    ],
)
def test_rewards_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    config = from_flat(
        {
            "judge.kind": "plugin",
            "judge.plugin_path": str(tmp_path / "mine.py"),
            "judge.reward_path": "x",
        }
    )
    judge = plugin.make_judge(config)
    with pytest.raises(PluginError, match=words):
        asyncio.run(judge.judge(item()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"expected get_reward_model\(config\), or one class with compute_reward; it defines nothing"),
        ("def get_reward_model(): ...", r"mine\.py:1: got get_reward_model\(\), expected get_reward_model\(config\)"),
        ("def get_reward_model(config): return 1", "returned a value of type int, expected an object with score"),
        ("def get_reward_model(config): return config['prm_model_path']", "has no 'prm_model_path', only nothing. "
         "Set judge.reward_path"),
        ("class M:\n    def score(self, text): ...\ndef get_reward_model(config): return M()",
         r"mine\.py:2: got M\.score\(text\), expected M\.score\(prompt, response, next_state\)"),
        ("class M:\n    def __init__(self, checkpoint_path): ...\n    def compute_reward(self): ...",
         "M needs a checkpoint_path: set judge.reward_path"),
        ("class M:\n    score = 3\ndef get_reward_model(config): return M()",
         r"M\.score is of type int, expected a function"),
        ("class M:\n    batch_compute_rewards = 3\ndef get_reward_model(config): return M()",
         r"M\.batch_compute_rewards is of type int, expected a function"),
        ("class M:\n    @property\n    def score(self): return 1 / 0\ndef get_reward_model(config): return M()",
         r"mine\.py:3: reading M raised ZeroDivisionError"),
        ("class M:\n    def compute_reward(self): ...", r"got M\(\), expected M\(checkpoint_path\)"),
        (RM.format("1.0").replace("    def", "    async def"),
         r"mine\.py:2: M\.score is an async function, expected `def score\("),
        ("class M:\n    async def batch_compute_rewards(self, items): ...\ndef get_reward_model(config): return M()",
         r"mine\.py:2: M\.batch_compute_rewards is an async function"),
        ("class M:\n    def score(self, prompt, response, next_state): ...\ndef get_reward_model(config): return M",
         r"get_reward_model returned the class M, expected an instance: M\(\.\.\.\)"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(PluginError, match=rf"^judge\.plugin_path: .*{words}"):
        plugin.make_judge(
            from_flat({"judge.kind": "plugin", "judge.plugin_path": str(tmp_path / "mine.py")})
        )


def test_a_class_that_builds_on_another_is_the_one_and_a_tuple_is_a_list(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Base:\n    def compute_reward(self, prompt, response, next_feedback): return 0.0\n"
        "class M(Base):\n    def __init__(self, checkpoint_path): ...\n"
        "    def batch_compute_rewards(self, items): return tuple(0.9 for _ in items)"
    )
    flat = {
        "judge.kind": "plugin",
        "judge.plugin_path": str(tmp_path / "mine.py"),
        "judge.reward_path": "x",
    }
    assert asyncio.run(plugin.make_judge(from_flat(flat)).judge(item())).score == 1


@pytest.mark.parametrize(
    "environ",
    [
        {"REWARD_ARGS": "--custom-rm-path a.py --rm-checkpoint m"},
        {"REWARD_ARGS": "--rm-checkpoint m --custom-rm-path a.py"},
        {"PRM_MODEL_PATH": "m", "REWARD_ARGS": "--custom-rm-path a.py"},
    ],
)
def test_the_plug_in_is_the_judge_and_the_checkpoint_is_its_own(environ: dict[str, str]) -> None:
    judge = load(environ=environ).judge
    assert (judge.kind, judge.plugin_path, judge.reward_path) == ("plugin", "a.py", "m")
    assert load(environ={"PRM_MODEL_PATH": "m"}).judge.kind == "classifier"


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"judge.kind": "plugin"}, "judge.plugin_path"),
        ({"judge.kind": "classifier"}, "judge.reward_path"),
        (
            {"judge.reward_low": 0.7},
            r"judge\.reward_low \(0\.7\) is above judge\.reward_high \(0\.6\)",
        ),
    ],
)
def test_settings_that_do_not_go_together(flat: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_flat(flat)
