"""lm-eval's `local-completions` model, unmodified, on a task of two questions."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import tiktoken
from datasets import Dataset
from lm_eval import simple_evaluate
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from tests.external.clients.conftest import Link, Talk
from tests.serve.conftest import KEY

CAPITALS = {"France": " Paris", "Italy": " Rome"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def model(talk: Talk, **options: Any) -> LocalCompletionsAPI:
    return LocalCompletionsAPI(
        model="openclaw",
        base_url=talk.site.url + "/v1/completions",
        tokenizer_backend=None,
        tokenized_requests=False,
        max_retries=1,
        **options,
    )


def evaluate(lm: LocalCompletionsAPI, **options: Any) -> dict[str, Any]:
    """Run a task that has its questions in it, so that nothing is downloaded."""
    rows = [{"country": country, "city": city} for country, city in CAPITALS.items()]
    task = {
        "task": "capitals",
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
        "test_split": "test",
        "doc_to_text": "The capital of {{country}} is",
        "target_delimiter": "",
        **options,
    }
    own = TaskManager(include_defaults=False)  # the shipped tasks are thousands of files
    found = simple_evaluate(model=lm, tasks=[task], task_manager=own, bootstrap_iters=0)
    assert found is not None
    return dict(found["results"]["capitals"])


@pytest.mark.parametrize("batch", [1, 2])
def test_generated_answers(talk: Talk, batch: int) -> None:
    """Each prompt is captured with its reply. Nothing links, and nothing trains, because a text has no conversation."""
    talk.says(*CAPITALS.values())
    scores = evaluate(
        model(talk, batch_size=batch),
        output_type="generate_until",
        doc_to_target="{{city}}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 8},
        metric_list=[{"metric": "exact_match"}],
    )
    assert scores["exact_match,none"] == 1
    rows = talk.collected()
    assert [exchange.request.messages[0]["content"] for exchange, _, _ in rows] == [
        f"The capital of {country} is" for country in CAPITALS
    ]
    for (exchange, turn, _), ids in zip(rows, talk.said, strict=True):
        assert exchange.reply is not None
        assert exchange.reply.response_ids.tolist() == ids
        assert "has no conversation" in (turn.untrainable or "")
    assert talk.links() == [Link(), Link()]


def test_choices_are_refused_with_the_reason(talk: Talk, caplog: pytest.LogCaptureFixture) -> None:
    """A task of choices compares log-probabilities of the prompt's own tokens, which the gateway does not have."""
    talk.says("never said")
    lm = model(talk)
    lm.tokenizer_backend = "tiktoken"
    lm.tokenizer = tiktoken.Encoding(  # one token for each byte
        "bytes",
        pat_str=r"(?s:.)",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 256},
    )
    with pytest.raises(requests.HTTPError, match="400"):
        evaluate(
            lm,
            output_type="multiple_choice",
            doc_to_choice=list(CAPITALS.values()),
            doc_to_target="{{city}}",
            metric_list=[{"metric": "acc"}],
        )
    assert "log-probabilities" in caplog.text
    assert talk.collected() == []
