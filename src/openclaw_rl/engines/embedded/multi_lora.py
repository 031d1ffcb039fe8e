"""Multi-LoRA: several policy versions in one model, with a LoRA update (arXiv:2106.09685) per row of the batch.

Shape legend: N rows, Q query tokens, I in, O out, R rank of one version, K sum of the ranks of all loaded versions.
The matrices of all versions are concatenated: A [K, I] and B [K, O], with the scale in B. A batch of one version takes
two products with its slice. A mixed batch takes two products with the whole matrices and a mask [N, 1, K] in between,
which limits each row to its version. So the cost of a mixed batch does not depend on which versions are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openclaw_rl.engines.adapter_file import AdapterFile, RawTensor
from openclaw_rl.engines.base import VersionKey
from openclaw_rl.errors import EngineError

LoraPair = tuple[Tensor, Tensor]
"""A [R, I] and scaled B transposed [R, O]."""

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


@dataclass(slots=True, eq=False)
class LoraRouting:
    """LoRA updates of one batch: a pair per module."""

    pairs: Sequence[LoraPair | None]
    mask: Tensor | None  # [N, 1, K]; None: all rows use the whole pair


@cache
def _routed_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of a linear layer class that adds the LoRA update of the current routing.

    It is assigned to the `__class__` of existing layers, so the model keeps its names, weights and ties.
    """
    plain: Callable[..., Any] = kind.forward

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        out = plain(self, *args, **named)
        route = self.loaded_adapters.route
        pair = None if route is None else route.pairs[self.index]
        if route is None or pair is None:
            return out
        a, b = pair
        low = nn.functional.linear(args[0], a)
        if route.mask is not None:
            low = low * route.mask
        out.view(-1, out.shape[-1]).addmm_(low.view(-1, low.shape[-1]), b)
        return out

    return type(f"Routed{kind.__name__}", (kind,), {"forward": forward})


def _layer_sizes(module: Any) -> tuple[int, int]:
    """Return (input features, output features)."""
    out, into = module.weight.shape
    # GPT-2's Conv1D is transposed.
    return (out, into) if isinstance(module, Conv1D) else (into, out)


@dataclass(slots=True, eq=False)
class LoraStack:
    """Matrices of all loaded adapters and the span of each. Not changed after it is in use."""

    spans: dict[VersionKey, slice] = field(default_factory=dict)
    pairs: list[LoraPair | None] = field(default_factory=list)
    # Views of the slices.
    pairs_by_version: dict[VersionKey, list[LoraPair | None]] = field(default_factory=dict)
    width: int = 0


class LoadedAdapters:
    """The adapters loaded into a model. Loading runs in small steps, so that decode steps can run in between."""

    def __init__(self, model: nn.Module) -> None:
        # Routing of the next forward pass; None: base weights only.
        self.route: LoraRouting | None = None
        self.modules: dict[str, Any] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | Conv1D):
                routed: Any = module
                routed.__class__ = _routed_class(type(routed))  # type: ignore[arg-type]
                routed.loaded_adapters = self
                routed.index = len(self.modules)
                self.modules[name] = routed
        self._stack = LoraStack(pairs=[None] * len(self.modules))

    @property
    def loaded_keys(self) -> frozenset[VersionKey]:
        return frozenset(self._stack.spans)

    def route_batch(self, keys: Sequence[VersionKey | None]) -> LoraRouting | None:
        """Return the routing of a batch whose row i uses `keys[i]` (None: the base)."""
        first = keys[0]
        if all(key == first for key in keys):
            if first is None:
                return None
            return LoraRouting(self._stack.pairs_by_version[first], None)
        like = next(iter(self.modules.values())).weight
        mask = torch.zeros(len(keys), 1, self._stack.width, dtype=like.dtype)
        for row, key in enumerate(keys):
            if key is not None:
                mask[row, 0, self._stack.spans[key]] = 1
        return LoraRouting(self._stack.pairs, mask.to(like.device))

    def replace_adapters(
        self, add: Mapping[VersionKey, AdapterFile], keep: frozenset[VersionKey]
    ) -> Generator[None]:
        """Load `add`, keep the loaded adapters in `keep`, and drop the rest, in small steps.

        Takes effect after the last step. Raise `EngineError` if an adapter does not fit the model.
        """
        count = len(self.modules)
        parts = {}
        for key, span in self._stack.spans.items():
            if key in keep:
                rank = span.stop - span.start
                parts[key] = (rank, self._stack.pairs_by_version[key])
        for key, file in add.items():
            read = yield from self._read_pairs(file)
            parts[key] = (file.rank, [read.get(i) for i in range(count)])
        self._stack = yield from _build_stack(parts, count)

    def _read_pairs(self, file: AdapterFile) -> Generator[None, None, dict[int, LoraPair]]:
        pairs: dict[int, LoraPair] = {}
        for name, (raw_a, raw_b) in file.pairs.items():
            module = self.modules.get(name)
            where = f"version {file.ref.version}, {file.ref.path}"
            if module is None:
                raise EngineError(
                    f"{where}: the base model has no linear layer {name!r}. Was it trained on another base?"
                )
            into, out = _layer_sizes(module)
            if raw_a.shape[1] != into or raw_b.shape[0] != out:
                raise EngineError(
                    f"{where}: {name}: lora_A {list(raw_a.shape)} and lora_B {list(raw_b.shape)}, expected "
                    f"[rank, {into}] and [{out}, rank]. Was it trained on another base?"
                )
            a = _lora_tensor(file, raw_a)
            b = _lora_tensor(file, raw_b)
            if not (bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all())):
                raise EngineError(f"{where}: {name} contains values that are not finite")
            like = module.weight
            scaled = (b.float() * file.scale(name)).t().contiguous()
            pairs[module.index] = (
                a.to(like.device, like.dtype),
                scaled.to(like.device, like.dtype),
            )
            yield
        return pairs


def _lora_tensor(file: AdapterFile, raw: RawTensor) -> Tensor:
    dtype = _DTYPES.get(raw.dtype)
    if dtype is None:
        raise EngineError(
            f"version {file.ref.version}, {file.ref.path}: {raw.dtype} weights, expected {list(_DTYPES)}"
        )
    count = raw.shape[0] * raw.shape[1]
    return torch.frombuffer(file.buffer, dtype=dtype, count=count, offset=raw.begin).view(raw.shape)


def _build_stack(
    parts: Mapping[VersionKey, tuple[int, Sequence[LoraPair | None]]], count: int
) -> Generator[None, None, LoraStack]:
    """Concatenate the pairs of all versions; yield after each module."""
    stack = LoraStack(pairs_by_version={key: [] for key in parts})
    for key, (rank, _) in parts.items():
        stack.spans[key] = slice(stack.width, stack.width + rank)
        stack.width += rank
    for index in range(count):
        here = {key: pairs[index] for key, (_, pairs) in parts.items()}
        whole = _side_by_side(here, stack)
        stack.pairs.append(whole)
        for key, pair in here.items():
            part = None
            if whole and pair:
                span = stack.spans[key]
                part = (whole[0][span], whole[1][span])
            stack.pairs_by_version[key].append(part)
        yield
    return stack


def _side_by_side(here: Mapping[VersionKey, LoraPair | None], stack: LoraStack) -> LoraPair | None:
    """Return A [K, I] and B [K, O] of one module; zeros where a version has no update or a lower rank."""
    like = next((pair for pair in here.values() if pair is not None), None)
    if like is None:
        return None
    a, b = (t.new_zeros(stack.width, t.shape[1]) for t in like)
    for key, pair in here.items():
        if pair is not None:
            start = stack.spans[key].start
            end = start + pair[0].shape[0]
            a[start:end] = pair[0]
            b[start:end] = pair[1]
    return a, b
