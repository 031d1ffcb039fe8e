"""Odd base URLs and Azure's paths: served as what they mean, or refused with the base URL that is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.serve.conftest import KEY, USER, Site, Start

from openclaw_rl.serve.access.request_paths import RequestPath, read_path

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [USER]},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
    "messages": {"messages": [USER], "max_tokens": 8},
    "messages/count_tokens": {"messages": [USER]},
    "responses/input_tokens": {"input": "hi"},
}
ROOTS = (
    "",
    "/",
    "/v1",
    "//v1",
    "/v1/",
    "/v1//",
    "/v1/v1",
    "/v1/v1/v1",
    "/openai",
    "/openai/v1",
    "/openai/v1/",
    "/v1/openai",
    "/openai/deployments/openclaw",
    "/openai/deployments/openclaw/",
    "/v1/openai/deployments/openclaw",
    "/openai/openai/deployments/openclaw",
    "/openai/v1/deployments/openclaw",
    "/anthropic",
    "/anthropic/v1",
)
WRONG_ROOTS = ("/api", "/api/v1", "/v2", "/v1beta", "/v1/chat/completions", "/llm/openai/v1")


@pytest.mark.parametrize("root", ROOTS)
def test_every_route_is_served_below_odd_roots(site: Site, root: str) -> None:
    for route, body in BODIES.items():
        for end in ("", "/", "?api-version=2024-10-21"):
            path = f"{root}/{route}{end}"
            assert site.http.post(path, {"model": "openclaw"} | body).status_code == 200, path
    models = site.http.get(f"{root}/models").json()
    assert models == site.http.get("/v1/models").json()
    assert site.http.get(f"{root}/models/openclaw@0").json() == models["data"][1]
    id_ = site.last().request.id
    assert (
        site.http.post(f"{root}/feedback", {"id": id_, "score": 1}).json()["id"]
        == site.http.get(f"{root}/feedback?target={id_}").json()["data"][0]["id"]
    )


@pytest.mark.parametrize("root", WRONG_ROOTS)
def test_any_other_root_is_refused_with_the_right_one(site: Site, root: str) -> None:
    for route, body in BODIES.items():
        if root + "/" + route == "/v1/chat/completions/completions":
            continue
        answer = site.http.post(f"{root}/{route}", body)
        assert answer.status_code == 404
        assert f"The base URL should end in /v1: {site.config.serve.url}/v1." in answer.text
    assert "base URL" not in site.http.get("/favicon.ico").text


def test_errors_have_the_form_of_the_route(site: Site) -> None:
    for path in ("/messages", "//v1/messages", "/v1/v1/messages", "/anthropic/v1/messages"):
        answer = site.http.post(path, {"messages": []})
        assert answer.status_code == 400
        assert answer.json()["type"] == "error"
    assert site.http.get("/chat/completions").status_code == 405
    assert site.http.post("/chat/completions", {"messages": [USER]}, {}).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/ui", "/ui/", "//ui", "/ui/v1/models", "/ui//chat", "/v1/ui", "/v1", "/openai"),
        *("/internal/gate/replies", "//internal/gate/replies", "/v1/internal/gate/replies"),
        *("/v1/healthz", "/openai/deployments/openclaw", "/openai/deployments//chat", "*", ""),
        *("/deployments/openclaw/nothing", "/%76%31/models", "/v1/../ui"),
    ],
)
def test_other_paths_are_read_as_they_are(path: str) -> None:
    assert read_path(path) == RequestPath(path=path)


def test_unversioned_paths_may_have_a_second_slash(site: Site) -> None:
    for path in ("//healthz", "/healthz/", "//readyz", "//metrics"):
        assert site.http.get(path, {}).status_code in (200, 503), path


@pytest.mark.parametrize(
    ("raw", "path", "deployment"),
    [
        ("/openai/deployments/a%2Fb/chat/completions", "/v1/chat/completions", "a/b"),
        ("/openai/deployments/a/b/chat/completions", "/v1/chat/completions", "a/b"),
        ("/openai/deployments/openclaw@3/completions", "/v1/completions", "openclaw@3"),
        ("/openai/deployments/openclaw%403/embeddings", "/v1/embeddings", "openclaw@3"),
        ("/v1/models/a%2Fb", "/v1/models/a%2Fb", ""),
        ("//models//a%2Fb", "/v1/models/a%2Fb", ""),
    ],
)
def test_names_in_paths(raw: str, path: str, deployment: str) -> None:
    assert read_path(raw) == RequestPath(path=path, deployment=deployment)


def test_the_deployment_is_the_model(start: Start) -> None:
    site = start()
    for route, body in BODIES.items():
        path = f"/openai/deployments/%s/{route}?api-version=2024-10-21"
        unknown = site.http.post(path % "gpt-4o", body | {"model": "openclaw"})
        plain = site.http.post(f"/v1/{route}", body | {"model": "gpt-4o"})
        assert (unknown.status_code, unknown.text) == (404, plain.text), route
        answer = site.http.post(path % "openclaw%400", body | {"model": "gpt-4o"})
        assert answer.status_code == 200, answer.text
        if "tokens" not in route:
            assert answer.json()["model"] == "openclaw@0"
    prompts = site.http.post(
        "/openai/deployments/openclaw@0/completions", {"prompt": ["a", "b"], "model": "gpt-4o"}
    )
    assert len(prompts.json()["choices"]) == 2


@pytest.fixture
def azure(site: Site) -> Iterator[openai.AzureOpenAI]:
    http = openai.DefaultHttpxClient(verify=False)
    with openai.AzureOpenAI(
        azure_endpoint=site.url,
        api_key=KEY,
        api_version="2024-10-21",
        max_retries=0,
        timeout=240,
        http_client=http,
    ) as client:
        yield client


def test_azures_client_works_unmodified(site: Site, azure: openai.AzureOpenAI) -> None:
    site.script.say("Hello there.")
    chat = azure.chat.completions.create(model="openclaw", messages=[USER])
    assert chat.choices[0].message.content == "Hello there."
    chunks = azure.chat.completions.create(model="openclaw", messages=[USER], stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello there."
    assert azure.completions.create(model="openclaw", prompt="hi").choices[0].text == "Hello there."
    texts = azure.completions.create(model="openclaw", prompt="hi", stream=True)
    assert "".join(chunk.choices[0].text for chunk in texts) == "Hello there."
    assert azure.responses.create(model="openclaw", input="hi").output_text == "Hello there."
    events = azure.responses.create(model="openclaw", input="hi", stream=True)
    assert [e.response.output_text for e in events if e.type == "response.completed"] == [
        "Hello there."
    ]
    assert [model.id for model in azure.models.list()] == ["openclaw", "openclaw@0"]
    with pytest.raises(openai.NotFoundError, match="'gpt-4o' is not here"):
        azure.chat.completions.create(model="gpt-4o", messages=[USER])


def test_azures_client_with_a_deployment_and_with_its_newer_api(site: Site) -> None:
    http = openai.DefaultHttpxClient(verify=False)
    with openai.AzureOpenAI(
        azure_endpoint=site.url + "/v1/",
        azure_deployment="openclaw",
        api_key=KEY,
        api_version="2024-10-21",
        max_retries=0,
        timeout=240,
        http_client=http,
    ) as client:
        for model in ("openclaw", "gpt-4o"):
            chat = client.chat.completions.create(model=model, messages=[USER])
            assert chat.choices[0].message.content == "Hello there."
    base_url = site.url + "/openai/v1/"
    http = openai.DefaultHttpxClient(verify=False)
    query = {"api-version": "preview"}
    with openai.OpenAI(
        base_url=base_url, api_key=KEY, default_query=query, max_retries=0, http_client=http
    ) as newer:
        chat = newer.chat.completions.create(model="openclaw", messages=[USER])
        assert chat.choices[0].message.content == "Hello there."
