"""Fireworks as the engine: replies as sampled, stop tokens, scores, versions that were uploaded, and each refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.contract_fixtures import closing
from tests.engines.remote.fireworks_server import (
    BASE,
    EOS,
    LETTERS,
    FireworksDouble,
    logprob_of,
    next_id,
)
from tests.engines.test_contract import collect

from openclaw_rl.engines import registry
from openclaw_rl.engines.remote.loaded_versions import adapter_name
from openclaw_rl.errors import ConfigError, EngineError, GrammarError, SamplingUnsupported
from openclaw_rl.protocols import EngineLink
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.testing import write_adapter
from openclaw_rl.types import Generation, PolicyRef, Sampling

PROMPT = np.arange(3, 9, dtype=np.int32)
BASE_REF = PolicyRef(version=0, path=None, digest="")


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Config]:
    """Settings with Fireworks at a URL, and a model folder with the tokenizer of the server's letters."""
    (tmp_path / "letters").mkdir()
    tokenizer: dict[str, Any] = {"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}}
    vocab = {letter: i for i, letter in enumerate(LETTERS)}
    tokenizer["model"] = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": None}
    (tmp_path / "letters" / "tokenizer.json").write_text(json.dumps(tokenizer))

    def make(url: str, **more: object) -> Config:
        flat: dict[str, object] = {"home": str(tmp_path), "model.path": str(tmp_path / "letters")}
        flat |= {"engine.backend": "fireworks", "engine.max_context": 64, "fireworks.url": url}
        flat |= {
            "fireworks.api_key": "fw-key",
            "fireworks.account": "me",
            "fireworks.deployment": "mine",
        }
        return from_flat(
            flat | {"fireworks.base_model": "accounts/fireworks/models/letters"} | more
        )

    return make


def run_with(config: Config, body: Callable[[EngineLink], Any]) -> Any:
    """Run `body` with a connected engine."""

    async def connected() -> Any:
        async with closing(registry.connect_engine(config)) as engine:
            return await body(engine)

    return asyncio.run(connected())


def call(
    version: int = 0, *, top: int = 0, stop: tuple[int, ...] = (), **sampling: object
) -> Generation:
    wanted = Sampling(**({"max_tokens": 8} | sampling))  # type: ignore[arg-type]
    return Generation(
        id="g",
        version=version,
        prompt_ids=PROMPT,
        sampling=wanted,
        stop_token_ids=stop,
        top_logprobs=top,
    )


def expected_ids(count: int, offset: int = 0) -> list[int]:
    ids = PROMPT.tolist()
    for _ in range(count):
        ids.append(next_id(ids, offset))
    return ids[len(PROMPT) :]


def test_replies_are_stored_as_they_were_sampled(settings: Callable[..., Config]) -> None:
    """Ids, raw log-probabilities and alternatives; every sampling value is sent, and no unknown field."""
    with FireworksDouble() as service:
        config = settings(service.url)
        registry.check_engine(config)

        async def body(engine: EngineLink) -> None:
            info = await engine.info()
            assert (info.model, info.context_length, info.grammar, info.images) == (
                BASE,
                64,
                False,
                False,
            )
            reply = await collect(engine, call(temperature=0.5, top=2))
            assert (list(reply.token_ids), reply.finish) == (expected_ids(8), "length")
            assert list(reply.logprobs) == pytest.approx(
                [logprob_of(i) for i in reply.token_ids]
            ), "not the sampling ones"

        run_with(config, body)
    asked = service.requests[-1]
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["min_p"]) == (
        0.5,
        1.0,
        0,
        0.0,
    )
    assert service.keys == {"Bearer fw-key"}
    assert config.engine.effective_convention == "raw"


def test_a_stop_token_ends_the_reply_here(settings: Callable[..., Config]) -> None:
    """Also within an event, and the end-of-sequence token does not end it where it is no stop token."""
    drawn = expected_ids(8)
    stop, first = drawn[1], 1
    with FireworksDouble() as service:

        async def body(engine: EngineLink) -> None:
            reply = await collect(engine, call(stop=(stop,)))
            assert (list(reply.token_ids), reply.finish) == (drawn[: first + 1], "stop")
            assert len(reply.logprobs) == first + 1
            whole = await collect(engine, call())
            assert list(whole.token_ids) == drawn

        run_with(settings(service.url), body)
    assert EOS in drawn[:-1], "the service would end the reply there"


def test_a_reply_is_scored(settings: Callable[..., Config]) -> None:
    response = np.array([4, 9, 2], dtype=np.int32)
    with FireworksDouble() as service:

        async def body(engine: EngineLink) -> None:
            found = await engine.score(
                version=0, prompt_ids=PROMPT, response_ids=response, temperature=1.0
            )
            assert found.tolist() == pytest.approx([logprob_of(i) for i in response])
            with pytest.raises(EngineError, match=r"scores at temperature 1, not 0\.5"):
                await engine.score(
                    version=0, prompt_ids=PROMPT, response_ids=response, temperature=0.5
                )

        run_with(settings(service.url), body)


def test_a_version_is_served_once_it_was_uploaded(
    settings: Callable[..., Config], tmp_path: Path
) -> None:
    digest = write_adapter(tmp_path / "adapter")
    ref = PolicyRef(version=3, path=str(tmp_path / "adapter"), digest=digest)
    with FireworksDouble() as service:

        async def body(engine: EngineLink) -> None:
            with pytest.raises(
                EngineError, match=r"version 3: .*openclaw-rl fireworks deploy --policy 3"
            ):
                await engine.load([BASE_REF, ref])
            assert list((await collect(engine, call())).token_ids) == expected_ids(8), (
                "the base still answers"
            )
            service.models[
                f"accounts/me/models/{adapter_name(ref)}#accounts/me/deployments/mine"
            ] = 5
            await engine.load([BASE_REF, ref])
            assert list((await collect(engine, call(3))).token_ids) == expected_ids(8, 5)
            assert list((await collect(engine, call(0))).token_ids) == expected_ids(8)
            assert (await engine.info()).versions == (0, 3)

        run_with(settings(service.url), body)


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"without_ids": True}, "it returns no token ids"),
        ({"wrong_ids": True}, "expected the same ids"),
        ({"reads_more": True}, "re-tokenises the prompt"),
        ({"grammar": "root ::= x"}, "it forces a grammar on replies"),
        ({"key": "another"}, r"refused the key .401.. Set fireworks\.api_key .FIREWORKS_API_KEY"),
        ({"raw": b"{}"}, "has 0 choices, expected 1"),
        ({"raw": b"<html>"}, "is not a completion of Fireworks"),
        ({"raw": b'{"choices": [{"raw_output": 3}]}'}, "is not a completion of Fireworks"),
        ({"raw": b""}, "is not a completion of Fireworks"),
    ],
)
def test_an_endpoint_that_is_not_exact_is_refused(
    settings: Callable[..., Config], faults: dict[str, Any], words: str
) -> None:
    with FireworksDouble(**faults) as service, pytest.raises(EngineError, match=words):
        registry.check_engine(settings(service.url))


def test_an_undeployed_base_is_named_in_the_error(settings: Callable[..., Config]) -> None:
    with (
        FireworksDouble() as service,
        pytest.raises(EngineError, match=r"models/other#.*not deployed"),
    ):
        registry.check_engine(
            settings(service.url, **{"fireworks.base_model": "accounts/fireworks/models/other"})
        )


@pytest.mark.parametrize(
    ("sampling", "top", "error", "words"),
    [
        ({"grammar": "start: x"}, 0, GrammarError, "cannot force"),
        ({"min_tokens": 2}, 0, SamplingUnsupported, "min_tokens"),
        ({"top_k": 101}, 0, SamplingUnsupported, "at most 100"),
        ({}, 6, SamplingUnsupported, "at most 5"),
    ],
)
def test_sampling_that_the_service_does_not_support_is_refused(
    settings: Callable[..., Config],
    sampling: dict[str, Any],
    top: int,
    error: type[Exception],
    words: str,
) -> None:
    with FireworksDouble() as service:

        async def body(engine: EngineLink) -> None:
            with pytest.raises(error, match=words):
                await collect(engine, call(top=top, **sampling))

        run_with(settings(service.url), body)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"fireworks.api_key": None}, "FIREWORKS_API_KEY"),
        ({"fireworks.account": None}, r"fireworks\.account is needed"),
        ({"fireworks.base_model": None}, r"fireworks\.base_model is needed"),
        ({"engine.max_context": None}, r"engine\.max_context is needed"),
        ({"engine.url": "http://x:1"}, r"the address is fireworks\.url"),
        ({"train.finetune": "full"}, r"Set train\.finetune to lora"),
        ({"policy.per": "user"}, "need not load versions"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: Callable[..., Config], more: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        settings("http://127.0.0.1:9", **more)


def test_each_setting_of_fireworks_is_used(settings: Callable[..., Config]) -> None:
    """`fireworks.url`, `fireworks.api_key`, `fireworks.account`, `fireworks.base_model`, `fireworks.deployment`."""
    with FireworksDouble() as service:
        service.models["accounts/you/models/base#accounts/other/deployments/big"] = 0
        named = {
            "fireworks.api_key": "fw-other",
            "fireworks.account": "other",
            "fireworks.deployment": "big",
        }
        registry.check_engine(
            settings(service.url, **named, **{"fireworks.base_model": "accounts/you/models/base"})
        )
        assert service.keys == {"Bearer fw-other"}
        service.models["accounts/you/models/base"] = 0
        named["fireworks.deployment"] = None
        registry.check_engine(
            settings(service.url, **named, **{"fireworks.base_model": "accounts/you/models/base"})
        )
    assert service.requests[-1]["model"] == "accounts/you/models/base", "serverless"
