"""DSPy's two adapters, unmodified, in a conversation that `dspy.History` holds."""

from __future__ import annotations

import json

import dspy
import pytest
from tests.external.clients.conftest import Talk
from tests.serve.conftest import KEY

QUESTIONS = ["What is the capital of France?", "And of Italy?", "Thanks, that is right."]
ANSWERS = [
    "The capital of France is Paris.",
    "The capital of Italy is Rome.",
    "You are welcome, ask me more.",
]


class Answer(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    answer: str = dspy.OutputField()


def converse(talk: Talk, adapter: dspy.Adapter) -> None:
    lm = dspy.LM(
        "openai/openclaw", api_base=talk.site.url + "/v1", api_key=KEY, cache=False, num_retries=0
    )
    predict, past = dspy.Predict(Answer), []
    with dspy.context(lm=lm, adapter=adapter):
        for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
            found = predict(question=question, history=dspy.History(messages=list(past)))
            assert found.answer == answer
            past.append({"question": question, "answer": found.answer})


def chat_replies() -> list[str]:
    return [f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]" for answer in ANSWERS]


def json_replies() -> list[str]:
    return [json.dumps({"answer": answer}) for answer in ANSWERS]


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter])
def test_each_question_reacts_to_the_answer_before_it(
    talk: Talk, adapter: type[dspy.Adapter]
) -> None:
    """DSPy parses each reply and formats it again, JSON with other white space."""
    talk.says(*(chat_replies() if adapter is dspy.ChatAdapter else json_replies()))
    converse(talk, adapter())
    links = talk.links()
    assert [link.parent for link in links] == [None, 0, 1]
    assert [link.how for link in links] == ["exact", "exact", None]
    assert not any(link.side or link.unlinked for link in links)
    for link, question in zip(links, QUESTIONS[1:], strict=False):
        assert link.reaction is not None
        assert question in link.reaction[-1]
    assert all(
        exchange.request.sampling.untrainable_reason() is None
        for exchange, _, _ in talk.collected()
    )
