"""Invariants of versions that a Tinker server holds. Each check returns its violations as sentences."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.skyrl_server import SkyrlServer
from sqlalchemy import Connection, select

from openclaw_rl.errors import EngineError
from openclaw_rl.learner.model.state_files import STATE_FILE
from openclaw_rl.store import exchanges, schema
from openclaw_rl.store.lineage import policies
from openclaw_rl.tinker.version_file import TinkerVersion, read_version
from openclaw_rl.types import Exchange, PolicyRef, PolicyState

# Nats between a sampled log-probability and a fresh forward pass.
LARGEST_GAP = 1e-3
_REPLIES_OF_VERSION = 2
_VERSIONS_CHECKED = 8


def check_tinker(conn: Connection, home: Path, server: SkyrlServer) -> Iterator[str]:
    """Every version is one step after its parent, and its replies came from the weights that the server has for it."""
    yield from check_steps(conn, home)
    yield from _check_logprobs(conn, _read_versions(conn, home), server)


def check_steps(conn: Connection, home: Path) -> Iterator[str]:
    """No step is taken twice or lost: a version has one step more than its parent, and checkpoints of its own."""
    versions = _read_versions(conn, home)
    steps = {0: 0} | {
        policy.version: int(json.loads((home / policy.path / STATE_FILE).read_text())["steps"])
        for policy in policies.list_all(conn)
        if policy.path and policy.version in versions
    }
    owners: dict[str, int] = {}
    for policy in policies.list_all(conn):
        if (held := versions.get(policy.version)) is None:
            continue
        expected = steps.get(policy.parent or 0, steps[policy.version] - 1) + 1
        if steps[policy.version] != expected:
            yield f"version {policy.version} has {steps[policy.version]} steps instead of {expected}"
        for path in (held.sampler, held.state):
            if (owner := owners.setdefault(path, policy.version)) != policy.version:
                yield f"version {policy.version} has a checkpoint of version {owner}"


def _read_versions(conn: Connection, home: Path) -> dict[int, TinkerVersion]:
    found = {}
    for policy in policies.list_all(conn):
        if (
            policy.path
            and policy.state is not PolicyState.REJECTED
            and (home / policy.path).exists()
        ):
            ref = PolicyRef(
                version=policy.version, path=str(home / policy.path), digest=policy.digest
            )
            try:
                found[policy.version] = read_version(ref)
            except EngineError:
                # `check_files` names it.
                continue
    return found


def _check_logprobs(
    conn: Connection, versions: Mapping[int, TinkerVersion], server: SkyrlServer
) -> Iterator[str]:
    """Sampled log-probabilities are those of a fresh forward pass of the version's adapter."""
    by_version = _sampled_replies(conn, versions)
    for version in sorted(by_version)[-_VERSIONS_CHECKED:]:
        model = _load_tuned(server, versions[version])
        for exchange in by_version[version][-_REPLIES_OF_VERSION:]:
            if (gap := _largest_gap(model, exchange)) > LARGEST_GAP:
                yield f"a log-probability of {exchange.request.id} is {gap:.4f} from that of version {version}"


def _sampled_replies(
    conn: Connection, versions: Mapping[int, TinkerVersion]
) -> dict[int, list[Exchange]]:
    found: dict[int, list[Exchange]] = defaultdict(list)
    rows = conn.execute(
        select(schema.turns.c.id).where(schema.turns.c.kind == "main").order_by(schema.turns.c.seq)
    )
    for row in rows.all():
        exchange = exchanges.get(conn, row.id)
        if exchange is None or exchange.reply is None or not exchange.reply.spans:
            continue
        if (version := exchange.reply.spans[0].version) in versions:
            found[version].append(exchange)
    return found


def _load_tuned(server: SkyrlServer, version: TinkerVersion) -> Any:
    """Return the base with the adapter of a sampler checkpoint, as the server has it on its disk."""
    # Here: the import takes seconds.
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    run, *_, name = version.sampler.removeprefix("tinker://").split("/")
    base: Any = AutoModelForCausalLM.from_pretrained(server.model)
    tuned = get_peft_model(
        base, LoraConfig(r=version.rank, lora_alpha=32, target_modules="all-linear")
    )
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(server.checkpoints / run / "sampler_weights" / f"{name}.tar.gz") as tar:
            tar.extractall(folder, filter="data")
        set_peft_model_state_dict(tuned, load_file(Path(folder) / "adapter_model.safetensors"))
    return tuned.eval()


def _largest_gap(model: Any, exchange: Exchange) -> float:
    import torch

    assert exchange.reply is not None
    prompt = exchange.request.prompt_ids.tolist()
    response = exchange.reply.response_ids.tolist()
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        rows = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    expected = rows.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
    return float(np.abs(expected - exchange.reply.logprobs).max())
