"""Build the practice that the settings ask for."""

from __future__ import annotations

from functools import cache

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.gates.reply_source import GatewayReplySource, ReplySource
from openclaw_rl.methods.types import CreditMethod
from openclaw_rl.practice.examined_lessons import TeachingCheck
from openclaw_rl.practice.prompts import PromptSelector
from openclaw_rl.practice.session import PracticeSession
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import trainer_spec
from openclaw_rl.store.db import Store


def no_practice_reason(config: Config, method: CreditMethod) -> str:
    """Return why lessons are not practised with these settings; empty if they are."""
    if not config.practice.enabled:
        return "no practice: practice.enabled is false"
    if not trainer_spec(config).scores_top_tokens:
        trainer = config.train.trainer
        return f"no practice: it learns from top log-probabilities, which train.trainer {trainer} does not have"
    if not method.uses_hints:
        return f"no practice: method {config.train.method} learns from scores alone"
    return ""


def make_practice(
    config: Config,
    store: Store,
    renderer: Renderer,
    transient: EphemeralMatcher,
    method: CreditMethod,
    source: ReplySource | None = None,
) -> PracticeSession | None:
    """Return the practice; None if it is off, or if the method cannot learn from hints.

    `source`: of the replies; default: the gateway that runs on the home.
    """
    if no_practice_reason(config, method):
        return None
    selector = PromptSelector(
        renderer=renderer,
        transient=transient,
        key=store.secret,
        read_topics=cache(lambda: load_topics(config.judge.wishes_path)),
        context_length=config.engine.max_context or renderer.context_length,
        check=TeachingCheck(key=store.secret) if config.serve.examine_lessons else None,
    )
    return PracticeSession(
        store,
        config.practice,
        selector,
        source or GatewayReplySource(config.home_dir, store, config.gate.workers),
        per=config.policy.per,
        convention=config.engine.effective_convention,
        at_once=config.gate.workers,
        seed=config.train.seed,
    )
