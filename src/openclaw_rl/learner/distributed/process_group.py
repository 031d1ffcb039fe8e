"""Process group of several ranks on torch.distributed: NCCL between GPUs, gloo for everything else.

Ranks exchange msgpack and raw tensor bytes, never pickle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from openclaw_rl.errors import ModelError, OpenClawError, named
from openclaw_rl.learner.distributed import fsdp
from openclaw_rl.learner.distributed.world import dealt
from openclaw_rl.learner.oom import CURE, Lacking
from openclaw_rl.settings.load import ModelConfig, TrainConfig

_T = TypeVar("_T")
log = logging.getLogger(__name__)
_START = 1800.0  # seconds in which every rank must join and load the model
_BUCKET = 2**24  # elements per all-reduce call


class _Failed(msgspec.Struct, frozen=True):
    """Error that was raised on a rank. An empty `kind` means that a pass ran out of memory."""

    kind: str
    message: str


class Group:
    """`World` of ranks that were launched together. Errors of torch.distributed propagate when a rank is gone."""

    def __init__(self, train: TrainConfig, *, local: int, cuda: bool) -> None:
        """Created by `join`. `local`: number of the rank on its machine; `cuda`: whether it has a GPU."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._local, self._cuda = local, cuda
        self._sharded = fsdp.wanted(train, cuda=cuda)
        # Separate groups for messages and tensors: a rank that failed in a pass must not answer the others' exchange.
        timeout = timedelta(seconds=train.launch.timeout)
        self._talk = dist.new_group(backend="gloo", timeout=timeout)
        # Only rank 0 writes the result of a step, while the others wait for its next broadcast; hence their longer
        # timeout. Rank 0 itself uses the short one, since a broadcast to a frozen rank would block it.
        patience = timedelta(seconds=0 if self.rank == 0 else _START)
        self._words = dist.new_group(backend="gloo", timeout=timeout + patience)
        self._data = dist.new_group(backend="nccl" if cuda else "gloo", timeout=timeout)

    def each(self, costs: Sequence[int], work: Callable[[int, float], _T], kind: type[_T]) -> list[_T]:
        hands = dealt(costs, self.size)
        own: list[_T] | _Failed
        if self._sharded:
            own = self._in_step(hands, costs, work)
        else:
            try:
                own = [work(number, 1.0) for number in hands[self.rank]]
            except torch.OutOfMemoryError as error:
                own = _Failed("", f"a pass does not fit into the memory of rank {self.rank}")
                log.warning("rank %d: a pass does not fit into memory (%s)", self.rank, error)
            except (OpenClawError, ValueError) as error:  # one row or plug-in code: other ranks do not see it
                own = _Failed(type(error).__name__, str(error))
        told = msgspec.msgpack.Decoder(list[kind] | _Failed, dec_hook=_plain)  # type: ignore[valid-type]
        found = [told.decode(raw) for raw in self._gathered(msgspec.msgpack.encode(own, enc_hook=_packed))]
        if failed := [done for done in found if isinstance(done, _Failed)]:  # every rank raises the same error
            first = max(failed, key=lambda failure: failure.kind != "")
            raise named(first.kind, first.message) if first.kind else Lacking(first.message)
        out = {n: one for hand, done in zip(hands, found, strict=True) for n, one in zip(hand, done, strict=True)}
        return [out[number] for number in range(len(costs))]

    def _in_step(
        self, hands: Sequence[Sequence[int]], costs: Sequence[int], work: Callable[[int, float], _T]
    ) -> list[_T]:
        """Run the same number of passes on every rank, because each pass needs the layer shards of all ranks."""
        own, cheapest = hands[self.rank], min(range(len(costs)), key=lambda n: costs[n], default=0)
        rounds = max(len(hand) for hand in hands)
        try:
            done = [work(number, 1.0) for number in own]
            for _ in range(rounds - len(own)):
                work(cheapest, 0.0)
        except torch.OutOfMemoryError as error:
            raise ModelError(f"rank {self.rank}: a pass does not fit into memory ({error}). {CURE}") from error
        return done

    @torch.no_grad()
    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        every = list(tensors)
        has = torch.tensor([t.grad is not None for t in every], dtype=torch.uint8)
        dist.all_reduce(has, op=dist.ReduceOp.MAX, group=self._talk)
        wanted = [t for t, somewhere in zip(every, has.tolist(), strict=True) if somewhere]
        for bucket in _buckets(wanted):
            flat = torch.cat([torch.zeros_like(t).flatten() if t.grad is None else t.grad.flatten() for t in bucket])
            dist.all_reduce(flat, group=self._data if flat.is_cuda == self._cuda else self._talk)
            for tensor, total in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
                tensor.grad = total.view_as(tensor).clone()

    def agree(self, yes: bool) -> bool:
        every = torch.tensor([yes], dtype=torch.uint8)
        dist.all_reduce(every, op=dist.ReduceOp.MIN)  # the default group, whose timeout covers model loading
        return bool(every.item())

    def placed(self, path: str, model: ModelConfig) -> ModelConfig:
        if not self._cuda:
            return model
        if not self._sharded:
            return model.model_copy(update={"device": f"cuda:{self._local}"})
        # A GPU that holds a shard may be too small for the whole model, so each layer is moved there separately.
        return model.model_copy(update={"device": "cpu", "dtype": fsdp.precision(path, model)})

    def spread(self, causal: Any, trained: Iterable[torch.nn.Parameter]) -> bool:
        if self._sharded:
            device = torch.device("cuda", self._local) if self._cuda else torch.device("cpu")
            fsdp.shard(causal, set(trained), device, self._data)
        return self._sharded

    def gather(self) -> None:
        """Wait for all ranks, for as long as loading a model may take."""
        dist.all_reduce(torch.zeros(1))

    def told(self, raw: bytes | None) -> bytes:
        """Broadcast bytes from rank 0; long timeout, because rank 0 alone writes checkpoints."""
        size = torch.tensor([0 if raw is None else len(raw)])
        dist.broadcast(size, 0, group=self._words)
        body = torch.empty(int(size), dtype=torch.uint8) if raw is None else _bytes(raw)
        dist.broadcast(body, 0, group=self._words)
        return body.numpy().tobytes()

    def _gathered(self, raw: bytes) -> list[bytes]:
        """Return the bytes of every rank, in rank order."""
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(raw)]), group=self._talk)
        width = max(int(size) for size in sizes)
        bodies = [torch.empty(width, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(bodies, _bytes(raw.ljust(width, b"\0")), group=self._talk)
        return [body[: int(size)].numpy().tobytes() for body, size in zip(bodies, sizes, strict=True)]


def join(train: TrainConfig, model: ModelConfig, *, store: str | None, rank: int, size: int) -> Group:
    """Join the process group. `store`: a file on a shared path, with `rank` and `size`; None: the torchrun environment.

    Errors of torch.distributed propagate if the other ranks do not join.
    """
    cuda = not model.device.startswith("cpu") and torch.cuda.is_available()
    local = dist.get_node_local_rank(fallback_rank=max(0, rank))
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        init_method="env://" if store is None else f"file://{store}",
        rank=rank if store else -1,
        world_size=size if store else -1,
        timeout=timedelta(seconds=_START),
    )
    return Group(train, local=local, cuda=cuda)


def _bytes(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(raw), dtype=np.uint8))


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield runs of tensors with the same dtype and device, of limited total size."""
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        alike = bucket and (bucket[0].dtype, bucket[0].device) == (tensor.dtype, tensor.device)
        if bucket and not (alike and sum(t.numel() for t in bucket) + tensor.numel() <= _BUCKET):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _packed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous()
        return [str(flat.dtype), list(flat.shape), flat.reshape(-1).view(torch.uint8).numpy().tobytes()]
    raise NotImplementedError(f"{type(value).__name__} cannot be sent between ranks")


def _plain(kind: type, value: Any) -> Any:
    assert kind is torch.Tensor, kind
    name, shape, raw = value
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return _bytes(raw).view(dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
