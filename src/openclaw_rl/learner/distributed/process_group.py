"""Process group of several ranks on torch.distributed: NCCL between GPUs, gloo for everything else.

Ranks exchange msgpack and raw tensor bytes, never pickle.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from openclaw_rl.errors import OpenClawError, OutOfMemory, rebuild_error
from openclaw_rl.learner.distributed import fsdp
from openclaw_rl.learner.distributed.world import World, assign
from openclaw_rl.learner.model.oom import OOM_HINT, RankOutOfMemory
from openclaw_rl.settings.load import ModelConfig, TrainConfig

_T = TypeVar("_T")
log = logging.getLogger(__name__)
# Seconds in which every rank must join and load the model.
_START_TIMEOUT = 1800.0
# Elements per all-reduce call.
_BUCKET_ELEMENTS = 2**24


class _RankFailure(msgspec.Struct, frozen=True):
    """Error that was raised on a rank. An empty `kind` means that a pass ran out of memory."""

    kind: str
    message: str


class ProcessGroup(World):
    """World of ranks that were launched together. Errors of torch.distributed propagate when a rank is gone."""

    def __init__(self, train: TrainConfig, *, local: int, cuda: bool) -> None:
        """Created by `join`. `local`: number of the rank on its machine; `cuda`: whether it has a GPU."""
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._local = local
        self._cuda = cuda
        self._sharded = fsdp.wants_sharding(train, cuda=cuda)
        # Separate groups for messages and tensors: a rank that failed in a pass must not answer the others' exchange.
        timeout = timedelta(seconds=train.launch.timeout)
        self._message_group = dist.new_group(backend="gloo", timeout=timeout)
        # Only rank 0 writes the result of a step, while the others wait for its next broadcast; hence their longer
        # timeout. Rank 0 itself uses the short one, since a broadcast to a frozen rank would block it.
        extra_time = timedelta(seconds=0 if self.rank == 0 else _START_TIMEOUT)
        self._broadcast_group = dist.new_group(backend="gloo", timeout=timeout + extra_time)
        self._tensor_group = dist.new_group(backend="nccl" if cuda else "gloo", timeout=timeout)

    def map_over_ranks(
        self, costs: Sequence[int], work: Callable[[int, float], _T], kind: type[_T]
    ) -> list[_T]:
        shares = assign(costs, self.size)
        if self._sharded:
            local: list[_T] | _RankFailure = self._map_in_lockstep(shares, costs, work)
        else:
            local = self._map_alone(shares[self.rank], work)
        encoded = self._all_gather(msgspec.msgpack.encode(local, enc_hook=_encode_tensor))
        decoder = msgspec.msgpack.Decoder(list[kind] | _RankFailure, dec_hook=_decode_tensor)  # type: ignore[valid-type]
        by_rank = [decoder.decode(raw) for raw in encoded]
        _raise_failure(by_rank)
        results: dict[int, _T] = {}
        for share, values in zip(shares, by_rank, strict=True):
            results.update(zip(share, values, strict=True))
        return [results[number] for number in range(len(costs))]

    def _map_alone(
        self, numbers: Sequence[int], work: Callable[[int, float], _T]
    ) -> list[_T] | _RankFailure:
        """Return the results of the passes of this rank, or the failure that all ranks have to learn of."""
        try:
            return [work(number, 1.0) for number in numbers]
        except torch.OutOfMemoryError as error:
            log.warning("rank %d: a pass does not fit into memory (%s)", self.rank, error)
            return _RankFailure("", f"a pass does not fit into the memory of rank {self.rank}")
        except (OpenClawError, ValueError) as error:
            # Caused by one row or a plug-in, on this rank only.
            return _RankFailure(type(error).__name__, str(error))

    def _map_in_lockstep(
        self,
        shares: Sequence[Sequence[int]],
        costs: Sequence[int],
        work: Callable[[int, float], _T],
    ) -> list[_T]:
        """Run the same number of passes on every rank, because each pass needs the layer shards of all ranks."""
        local = shares[self.rank]
        cheapest = min(range(len(costs)), key=lambda n: costs[n], default=0)
        rounds = max(len(share) for share in shares)
        try:
            done = [work(number, 1.0) for number in local]
            for _ in range(rounds - len(local)):
                work(cheapest, 0.0)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"rank {self.rank}: a pass does not fit into memory ({error}). {OOM_HINT}"
            ) from error
        return done

    @torch.no_grad()
    def all_reduce_grads(self, tensors: Iterable[torch.Tensor]) -> None:
        wanted = self._tensors_with_gradient(list(tensors))
        for bucket in _reduce_buckets(wanted):
            self._sum_gradients(bucket)

    def _sum_gradients(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace the gradients of tensors of one dtype and device by their sums over all ranks, in one message."""
        flat = torch.cat([_gradient_or_zeros(tensor).flatten() for tensor in tensors])
        group = self._tensor_group if flat.is_cuda == self._cuda else self._message_group
        dist.all_reduce(flat, group=group)
        totals = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, total in zip(tensors, totals, strict=True):
            tensor.grad = total.view_as(tensor).clone()

    def _tensors_with_gradient(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of the tensors that have a gradient on any rank."""
        has_gradient = [tensor.grad is not None for tensor in tensors]
        on_any_rank = torch.tensor(has_gradient, dtype=torch.uint8)
        dist.all_reduce(on_any_rank, op=dist.ReduceOp.MAX, group=self._message_group)
        return list(itertools.compress(tensors, on_any_rank.tolist()))

    def all_true(self, yes: bool) -> bool:
        every = torch.tensor([yes], dtype=torch.uint8)
        # The default group, whose timeout covers model loading.
        dist.all_reduce(every, op=dist.ReduceOp.MIN)
        return bool(every.item())

    def device_for(self, path: str, model: ModelConfig) -> ModelConfig:
        if not self._cuda:
            return model
        if not self._sharded:
            return model.model_copy(update={"device": f"cuda:{self._local}"})
        # A GPU that holds a shard may be too small for the whole model, so each layer is moved there separately.
        return model.model_copy(update={"device": "cpu", "dtype": fsdp.load_dtype(path, model)})

    def shard(self, causal: Any, trained: Iterable[torch.nn.Parameter]) -> bool:
        if self._sharded:
            device = torch.device("cuda", self._local) if self._cuda else torch.device("cpu")
            fsdp.shard_layers(causal, set(trained), device, self._tensor_group)
        return self._sharded

    def barrier(self) -> None:
        """Wait for all ranks, for as long as loading a model may take."""
        dist.all_reduce(torch.zeros(1))

    def broadcast(self, raw: bytes | None) -> bytes:
        """Broadcast bytes from rank 0; long timeout, because rank 0 alone writes checkpoints."""
        size = torch.tensor([0 if raw is None else len(raw)])
        dist.broadcast(size, 0, group=self._broadcast_group)
        body = torch.empty(int(size), dtype=torch.uint8) if raw is None else _bytes_tensor(raw)
        dist.broadcast(body, 0, group=self._broadcast_group)
        return body.numpy().tobytes()

    def _all_gather(self, raw: bytes) -> list[bytes]:
        """Return the bytes of every rank, in rank order."""
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(raw)]), group=self._message_group)
        lengths = torch.cat(sizes).tolist()
        width = max(lengths)
        padded = _bytes_tensor(raw.ljust(width, b"\0"))
        bodies = [torch.empty(width, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(bodies, padded, group=self._message_group)
        gathered = []
        for body, length in zip(bodies, lengths, strict=True):
            gathered.append(body[:length].numpy().tobytes())
        return gathered


def join(
    train: TrainConfig, model: ModelConfig, *, store: str | None, rank: int, size: int
) -> ProcessGroup:
    """Join the process group. `store`: a file on a shared path, with `rank` and `size`; None: the torchrun environment.

    Errors of torch.distributed propagate if the other ranks do not join.
    """
    use_cuda = not model.device.startswith("cpu") and torch.cuda.is_available()
    local = dist.get_node_local_rank(fallback_rank=max(0, rank))
    if use_cuda:
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if use_cuda else "gloo"
    timeout = timedelta(seconds=_START_TIMEOUT)
    if store is None:
        dist.init_process_group(backend, init_method="env://", timeout=timeout)
    else:
        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout
        )
    return ProcessGroup(train, local=local, cuda=use_cuda)


def _bytes_tensor(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(raw), dtype=np.uint8))


def _reduce_buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield runs of tensors with the same dtype and device, of limited total size."""
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        if bucket and not _fits(bucket, tensor):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _fits(bucket: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
    first = bucket[0]
    if (first.dtype, first.device) != (tensor.dtype, tensor.device):
        return False
    elements = sum(other.numel() for other in bucket) + tensor.numel()
    return elements <= _BUCKET_ELEMENTS


def _gradient_or_zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _raise_failure(by_rank: Sequence[object]) -> None:
    """Raise the error of a rank that failed, on every rank the same: memory only if no rank has another failure."""
    failures = [result for result in by_rank if isinstance(result, _RankFailure)]
    if not failures:
        return
    first = max(failures, key=lambda failure: failure.kind != "")
    if not first.kind:
        raise RankOutOfMemory(first.message)
    raise rebuild_error(first.kind, first.message)


def _encode_tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous()
        return [
            str(flat.dtype),
            list(flat.shape),
            flat.reshape(-1).view(torch.uint8).numpy().tobytes(),
        ]
    raise NotImplementedError(f"{type(value).__name__} cannot be sent between ranks")


def _decode_tensor(kind: type, value: Any) -> Any:
    assert kind is torch.Tensor, kind
    name, shape, raw = value
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return _bytes_tensor(raw).view(dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
