"""Build the gate that the settings ask for."""

from __future__ import annotations

from openclaw_rl.examination.probe_set import load_probes
from openclaw_rl.gates.candidate_gate import CandidateGate
from openclaw_rl.gates.pair_judge import PairJudge
from openclaw_rl.gates.reply_comparer import ReplyComparer
from openclaw_rl.gates.reply_source import GatewayReplySource, ReplySource
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config
from openclaw_rl.store.db import Store


def make_gate(
    config: Config, store: Store, renderer: Renderer, source: ReplySource | None = None
) -> CandidateGate:
    """Return the gate. Raises `ConfigError` if the file of `gate.probes` is no probe set.

    `source`: of the replies; default: the gateway that runs on the home.
    """
    if config.gate.kind != "probes" or config.gate.budget == 0:
        return CandidateGate(store, config.gate, per=config.policy.per)
    if source is None:
        source = GatewayReplySource(config.home_dir, store, config.gate.workers)
    preference = PairJudge(config).preference if config.judge.kind == "llm" else None
    comparer = ReplyComparer(source, renderer, load_probes(config.gate.probes), preference)
    return CandidateGate(store, config.gate, comparer, config.policy.per, config.serve.lessons)
