"""The sampling of a reply: what the request asks for, within what the model and the engine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from openclaw_rl.errors import PromptTooLong
from openclaw_rl.render.renderer import RenderedPrompt, Renderer
from openclaw_rl.serve.chat_request import MIN_TEMPERATURE, ChatRequest, field_error
from openclaw_rl.serve.structured_output import build_grammar, grammar_error
from openclaw_rl.settings.load import Config, SamplingOverride
from openclaw_rl.types import Sampling

# Tokens, if neither the settings nor the model define the context length.
DEFAULT_CONTEXT_TOKENS = 4096


class SamplingLimits:
    """The context length and what the engine supports; both may change once the engine has reported them."""

    def __init__(self, config: Config, renderer: Renderer) -> None:
        self._renderer = renderer
        self._convention = config.engine.effective_convention
        self.context_length = (
            config.engine.max_context or renderer.context_length or DEFAULT_CONTEXT_TOKENS
        )
        self.supports_grammar = True
        """Whether the engine supports grammars; True until it has reported it."""
        self.override: Mapping[str, Any] = sampling_fields(config.serve.sampling_override)
        """Values of the owner, which replace those of a request."""

    def effective_sampling(
        self, request: ChatRequest, rendered: RenderedPrompt, *, overrides: bool
    ) -> Sampling:
        """Return the sampling with `max_tokens` limited to the context, and with the grammar of a constraint.

        `overrides`: whether the owner's values replace those of the request. Raises `RequestError`.
        """
        prompt_tokens = len(rendered.prompt_ids)
        remaining = self.context_length - prompt_tokens
        if remaining < 1:
            raise PromptTooLong(prompt_tokens, self.context_length)
        sampling = request.sampling
        self._check_biased_tokens(sampling)
        changes: dict[str, Any] = {
            "max_tokens": min(sampling.max_tokens or remaining, remaining),
            "convention": self._convention,
        }
        if request.constraint is not None:
            changes["grammar"] = self._grammar(request, rendered)
        if overrides:
            changes |= self.override
        return replace(sampling, **changes)

    def _check_biased_tokens(self, sampling: Sampling) -> None:
        size = self._renderer.vocabulary_size
        for token in sampling.logit_bias:
            if token >= size:
                problem = f"token {token} is outside the vocabulary of {size}."
                raise field_error("logit_bias", problem)

    def _grammar(self, request: ChatRequest, rendered: RenderedPrompt) -> str:
        constraint = request.constraint
        assert constraint is not None, "there is no grammar otherwise"
        if request.sampling.min_tokens:
            problem = f"conflicts with {constraint.param}, which decides where a reply ends."
            raise field_error("min_tokens", problem)
        if not self.supports_grammar:
            raise grammar_error("this engine does not support grammars", constraint)
        try:
            return build_grammar(
                constraint, request.tools, self._renderer, thinking=rendered.thinking
            )
        except RecursionError:
            raise grammar_error("nested too deeply", constraint) from None


def sampling_fields(override: SamplingOverride) -> dict[str, Any]:
    """Return the `Sampling` fields that the owner sets. A temperature below `MIN_TEMPERATURE` becomes 0."""
    values = override.model_dump(exclude_none=True)
    if values.get("temperature", MIN_TEMPERATURE) < MIN_TEMPERATURE:
        values["temperature"] = 0.0
    if values.get("top_k") == -1:
        values["top_k"] = 0
    return values
