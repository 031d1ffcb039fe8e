"""`openclaw-rl doctor --engine`: on a sound server every check holds; on another one the broken check is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.engines.sglang_server import SglangWire

from openclaw_rl.cli.main import cli
from openclaw_rl.doctor import random_adapter
from openclaw_rl.doctor.pipeline import examine_pipeline
from openclaw_rl.engines import adapter_file
from openclaw_rl.engines.remote import server_process
from openclaw_rl.errors import ConfigError, EngineError
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.settings.load import from_flat

CHECKS = (
    "streaming", "exact ids", "scored as sampled, T 1", "scored as sampled, T 0.7", "stop", "cancellation",
    "unknown version", "three versions side by side", "swap under load",
)  # fmt: skip


@pytest.fixture
def serve() -> Iterator[Callable[..., SglangWire]]:
    started: list[SglangWire] = []

    def one(**settings: object) -> SglangWire:
        started.append(
            SglangWire(Path(server_process.model_location("starter")), **settings).__enter__()
        )
        return started[-1]

    yield one
    for each in started:
        each.__exit__(None, None, None)


def doctor(*words: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "400"}).invoke(
        cli, ["doctor", *words], catch_exceptions=True
    )
    assert result.exception is None or isinstance(result.exception, SystemExit | EngineError), (
        result.output
    )
    return result.exit_code, result.output


def marks(output: str) -> dict[str, str]:
    """Return the mark of each check: `passed` or `FAILED`."""
    lines = [line.split() for line in output.splitlines()]
    rows = [
        (words[0], " ".join(words[1:]))
        for words in lines
        if words and words[0] in ("passed", "FAILED")
    ]
    return {
        check: mark for check in CHECKS for mark, words in rows if words.startswith(check + " ")
    }


def test_every_check_holds_on_a_sound_server(serve: Callable[..., SglangWire]) -> None:
    wire = serve(mode="incremental")
    code, output = doctor("--engine", "sglang", "--engine-url", wire.url)
    assert marks(output) == dict.fromkeys(CHECKS, "passed"), output
    assert code == 0
    assert "8 of 8 replies complete (8 were running)" in output
    assert wire.running == 0


def test_a_server_that_cannot_swap_is_named(serve: Callable[..., SglangWire]) -> None:
    code, output = doctor("--engine", "sglang", "--engine-url", serve(lora=False).url)
    broken = {check for check, mark in marks(output).items() if mark == "FAILED"}
    assert (code, broken) == (1, {"three versions side by side", "swap under load"})
    assert "--enable-lora" in output


def test_log_probabilities_of_other_weights_are_noticed(
    serve: Callable[..., SglangWire], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = serve()
    true = wire._score

    async def shifted(*asked: object) -> list[float]:
        return [logprob - 0.1 for logprob in await true(*asked)]  # type: ignore[arg-type]

    monkeypatch.setattr(wire, "_score", shifted)
    code, output = doctor("--engine", "sglang", "--engine-url", wire.url)
    assert (code, marks(output)["scored as sampled, T 1"]) == (1, "FAILED")
    assert "mean 0.1, largest 0.1" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "sglang is not installed for"),
        (("--engine-url", "http://127.0.0.1:9", "--wait", "0.3"), "was not ready within 0.3 s"),
    ],
)
def test_a_missing_engine_is_reported(words: tuple[str, ...], message: str) -> None:
    code, output = doctor("--engine", "sglang", *words)
    assert code == 1
    assert message in output


def test_trial_adapters_fit_the_model_and_differ(tmp_path: Path) -> None:
    files = ModelFiles.from_path("starter")
    one, two = (
        random_adapter.write_random_adapter(files.folder, tmp_path / str(n), version=n, rank=4)
        for n in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert one.digest != two.digest
    layers = int(files.config["num_hidden_layers"])
    assert len(adapter_file.read_adapter(one).pairs) == 2 * layers


def test_a_model_without_the_projections_has_no_trial_adapter(tmp_path: Path) -> None:
    header = json.dumps(
        {"h.0.attn.c_attn.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}
    ).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert (
        random_adapter.write_random_adapter(tmp_path, tmp_path / "out", version=1, rank=2) is None
    )


def test_the_doctor_trains_nothing_at_tinker() -> None:
    with pytest.raises(
        ConfigError, match=r"does not train at Tinker.*--engine, or everything here"
    ):
        examine_pipeline(from_flat({"train.trainer": "tinker", "gate.kind": "numbers"}))
