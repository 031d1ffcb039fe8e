"""The judges, as the registry knows them."""

from __future__ import annotations

from collections.abc import Iterable

from openclaw_rl.protocols import Judge
from openclaw_rl.settings.schema import Config
from openclaw_rl.settings.specs import JudgeSpec, RequiredLibraries


def _create_auto(config: Config) -> Judge:
    from openclaw_rl.judge.head import auto

    return auto.make_judge(config)


def _describe_auto(config: Config) -> str:
    from openclaw_rl.judge.head.choice import describe_choice

    return describe_choice(config)


def _create_rules(config: Config) -> Judge:
    from openclaw_rl.judge.rules import RulesJudge

    return RulesJudge.load(config.judge.rules_path)


def _create_llm(config: Config) -> Judge:
    from openclaw_rl.judge.llm import LlmJudge

    return LlmJudge(config)


def _create_classifier(config: Config) -> Judge:
    from openclaw_rl.judge import reward_model

    return reward_model.make_judge(config)


def _create_plugin(config: Config) -> Judge:
    from openclaw_rl.judge import plugin

    return plugin.make_judge(config)


def _libraries_of_classifier(_config: Config) -> Iterable[RequiredLibraries]:
    return (
        RequiredLibraries(
            purpose="judge.kind classifier",
            modules=("torch", "transformers", "safetensors", "psutil"),
            package="openclaw-rl[local]",
        ),
    )


AUTO = JudgeSpec(
    name="auto",
    summary="the rules where they are proven, else what the states of the frozen base show",
    create=_create_auto,
    describe=_describe_auto,
)
RULES = JudgeSpec(
    name="rules", summary="patterns over the text of the reaction", create=_create_rules
)
LLM = JudgeSpec(name="llm", summary="a model that reads the conversation", create=_create_llm)
CLASSIFIER = JudgeSpec(
    name="classifier",
    summary="a sequence-classification model as reward model",
    create=_create_classifier,
    libraries=_libraries_of_classifier,
)
PLUGIN = JudgeSpec(
    name="plugin", summary="a reward model in a Python file of yours", create=_create_plugin
)
