"""Settings of the judge, which scores turns, and of the teacher, which writes hints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from openclaw_rl.common.integrations import JUDGES
from openclaw_rl.settings.strict_yaml import Section


class EndpointConfig(Section):
    """A model behind an OpenAI-compatible endpoint."""

    base_url: str | None = Field(
        None, description="OpenAI-compatible endpoint, e.g. http://127.0.0.1:9000/v1"
    )
    model: str | None = None
    api_key: str | None = None
    timeout: float = Field(60.0, gt=0)
    retries: int = Field(4, ge=0)
    temperature: float = Field(0.6, ge=0)
    max_tokens: int = Field(1024, ge=16)


class SignalsConfig(Section):
    """Evidence from what people do with a reply: its score is the sign, its weight in training the size; 0: off."""

    regenerated: float = Field(
        -0.5, ge=-1, le=1, description="the person asked for another reply to the same message"
    )
    edited: float = Field(
        -0.2, ge=-1, le=1, description="the person changed the message and sent it again"
    )
    repeated: float = Field(
        -0.3, ge=-1, le=1, description="the person's next message asks the same again"
    )
    abandoned: float = Field(
        0.0, ge=-1, le=1, description="nothing followed the reply for `abandoned_after` seconds"
    )
    abandoned_after: float = Field(
        3600.0,
        gt=0,
        description="seconds; with a weight of `abandoned`, at most collect.session_timeout",
    )
    copied: float = Field(
        0.2,
        ge=-1,
        le=1,
        description="text of the reply stands in another conversation or in a later tool call",
    )
    tool_error: float = Field(
        -0.2, ge=-1, le=1, description="the client marked a tool result as an error (is_error)"
    )
    exit_code: float = Field(
        0.0, ge=-1, le=1, description="a command of the reply ended with another exit code than 0"
    )


class JudgeConfig(EndpointConfig):
    """The judge. The endpoint settings are those of the llm judge."""

    kind: Annotated[str, AfterValidator(JUDGES.check_name)] = Field(
        "auto",
        description="without it, model, base_url or path choose llm, plugin_path chooses plugin, and reward_path "
        "chooses classifier",
    )
    min_precision: float = Field(
        0.9,
        gt=0,
        le=1,
        description="auto gives a score where at least this share of such scores is right, measured by "
        "cross-validation on the labelled reactions; else it has no opinion",
    )
    rules_path: str | None = Field(
        None, description="YAML file, or a folder of them; default: the shipped rules"
    )
    path: str | None = Field(
        None,
        description="folder or hub id of a model that serves as the llm judge, on a second engine of the same backend; "
        "no endpoint is used. With judge.kind auto, its states are read instead of the served base's",
    )
    gpus: tuple[str, ...] = Field(
        (), description="device ids that the judge's engine sees; default: all"
    )
    reward_path: str | None = Field(
        None, description="sequence classification model, or the checkpoint that a plug-in loads"
    )
    plugin_path: str | None = Field(
        None, description="Python file with the owner's reward model (judge.kind plugin)"
    )
    reward_low: float = Field(
        0.4, ge=0, le=1, description="a reward in [0, 1] below it gives a verdict of -1"
    )
    reward_high: float = Field(
        0.6,
        ge=0,
        le=1,
        description="a reward above it gives +1; rewards between the two give 0, which trains nothing",
    )
    num_judges: int = Field(3, ge=1, description="votes per turn, in parallel")
    consensus_threshold: float = Field(
        0.5,
        ge=0,
        le=1,
        description="a score needs at least this share of the votes: 0.6 of five votes are three",
    )
    cache: int = Field(
        10_000,
        ge=0,
        description="questions whose votes are kept in the store, so that they are not asked again; 0: none",
    )
    workers: int = Field(4, ge=1, description="turns judged at once")
    min_kappa: float = Field(
        0.0,
        ge=-1,
        lt=1,
        description="the judge's verdicts are trained on only while the 95% interval of its kappa, the agreement with "
        "people's explicit scores, lies above this; decides from 20 scored turns on, with 5 of +1 and 5 of -1; -1: "
        "always trained on",
    )
    max_comparisons: int = Field(
        200,
        ge=0,
        description="turns with an explicit score that the judge scores too in 24 hours, for the kappa alone; such a "
        "verdict is not trained on",
    )
    signals: SignalsConfig = SignalsConfig()
    poll: float = Field(0.05, gt=0)

    @property
    def reward_source(self) -> str | None:
        """`reward_path` with `~` expanded."""
        path = self.reward_path
        return str(Path(path).expanduser()) if path is not None and path.startswith("~") else path

    @property
    def wishes_path(self) -> str | None:
        """Rules by which wishes are read: those of the judge if it is one of rules; None: the shipped ones."""
        return self.rules_path if self.kind in ("auto", "rules") else None


class TeacherConfig(EndpointConfig):
    """The model that writes hints, if it is not the judge. Active once `model` is set.

    Without a `base_url`, the judge's endpoint and key are used.
    """

    when: Literal["negative", "always", "never"] = Field(
        "negative",
        description="judged turns that it writes hints for: those with score -1, all, or none",
    )

    @property
    def wanted(self) -> bool:
        return self.model is not None and self.when != "never"
