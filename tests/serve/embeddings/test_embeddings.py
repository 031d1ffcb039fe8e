"""Embeddings by the base model, if the owner turns them on."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tests.serve.conftest import KEY, SCOPE, Answer, Site, Start

from openclaw_rl.serve.episodes.ticket import Ticket, make_ticket
from openclaw_rl.testing import ScriptedStateEngine

PATH = "/v1/embeddings"


@pytest.fixture
def embedding_site(start: Start) -> Site:
    return start(settings={"serve.embeddings": True}, engine_kind=ScriptedStateEngine)


def ask(site: Site, value: Any, **fields: Any) -> Answer:
    return site.http.post(PATH, {"input": value, "model": "openclaw"} | fields)


def mean_of(site: Site, text: str) -> np.ndarray[Any, Any]:
    ids = site.renderer.encode_completion_prompt(text)
    width = ScriptedStateEngine.WIDTH
    vectors = [np.random.default_rng(int(token)).normal(size=width) for token in ids]
    mean = np.mean(vectors, axis=0)
    result: np.ndarray[Any, Any] = mean / np.linalg.norm(mean)
    return result


def test_openais_client_gets_embeddings(embedding_site: Site) -> None:
    site = embedding_site
    answer = site.client().embeddings.create(model="openclaw", input=["a cat", "a dog"])
    assert [entry.index for entry in answer.data] == [0, 1]
    for entry, text in zip(answer.data, ("a cat", "a dog"), strict=True):
        np.testing.assert_allclose(entry.embedding, mean_of(site, text), atol=1e-5)
    tokens = sum(len(site.renderer.encode_completion_prompt(text)) for text in ("a cat", "a dog"))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert answer.model == "openclaw"
    assert site.count() == 0, "a text without a reply is no exchange"


def test_both_encodings_and_all_forms_of_input_agree(embedding_site: Site) -> None:
    site = embedding_site
    ids = site.renderer.encode_completion_prompt("a cat").tolist()
    plain = ask(site, "a cat").json()["data"]
    for value in (["a cat"], ids, [ids]):
        assert ask(site, value).json()["data"] == plain
    encoded = ask(site, "a cat", encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == plain[0]["embedding"]
    width = ScriptedStateEngine.WIDTH
    assert ask(site, "a cat", dimensions=width).json()["data"] == plain
    azure = f"/openai/deployments/openclaw{PATH.removeprefix('/v1')}?api-version=1"
    assert site.http.post(azure, {"input": "a cat"}).json()["data"] == plain


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, "input", "that is not empty"),
        ({"input": []}, "input", "expected 1 to 2048 texts"),
        ({"input": ["a"] * 2049}, "input", "expected 1 to 2048 texts"),
        ({"input": ["a", ""]}, "input[1]", "that is not empty"),
        ({"input": [["a"]]}, "input[0]", "a text or a list of token ids"),
        ({"input": [1, "a"]}, "input", "a text or a list of token ids"),
        ({"input": {"text": "a"}}, "input", "expected"),
        ({"input": [10**6]}, "input[0]", "outside the vocabulary"),
        ({"input": "word " * 3000}, "input[0]", "expected 1 to 2048 tokens"),
        ({"dimensions": 16}, "dimensions", "expected 32, the width of the model"),
        ({"encoding_format": "int8"}, "encoding_format", "expected float or base64"),
        ({"model": "openclaw@1"}, "model", "embeddings are of the base model"),
    ],
)
def test_what_is_refused(
    embedding_site: Site, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = embedding_site.http.post(PATH, {"input": "a", "model": "openclaw"} | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_names_of_the_model(embedding_site: Site) -> None:
    assert ask(embedding_site, "a", model="openclaw@0").status_code == 200
    answer = ask(embedding_site, "a", model="text-embedding-3-small")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_the_base_answers_while_versions_are_served(embedding_site: Site, tmp_path: Path) -> None:
    before = ask(embedding_site, "a cat").json()["data"]
    embedding_site.publish(tmp_path / "p")
    assert ask(embedding_site, "a cat").json()["data"] == before


def test_only_the_owners_key_is_answered(embedding_site: Site) -> None:
    site = embedding_site
    ticket = make_ticket(site.store.secret, Ticket(episode="e1", owner=SCOPE, expires_at=2**31))
    for key, status in ((KEY, 200), ("wrong", 401), (ticket, 403)):
        headers = {"Authorization": f"Bearer {key}"}
        assert site.http.post(PATH, {"input": "a"}, headers).status_code == status


def test_an_engine_without_states_says_so(start: Start) -> None:
    site = start(settings={"serve.embeddings": True})
    answer = ask(site, "a")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "embeddings_unsupported")
    assert "returns no hidden states" in error["message"]


def test_an_engine_that_is_gone(embedding_site: Site) -> None:
    embedding_site.engine.gone_at = 0
    answer = ask(embedding_site, "a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_gone")


def test_they_are_off_by_default(start: Start) -> None:
    site = start(engine_kind=ScriptedStateEngine)
    answer = ask(site, "a")
    assert answer.status_code == 404
    assert "no embeddings unless serve.embeddings is set" in answer.text
    with pytest.raises(openai.NotFoundError):
        site.client().embeddings.create(model="openclaw", input="a")
    assert json.loads(answer.text)["error"]["type"] == "invalid_request_error"
