"""Methods: pure credit. Samples and log-probabilities in, terms of the loss out; no I/O, no settings, no torch."""

from __future__ import annotations

from openclaw_rl.methods.binary import Binary
from openclaw_rl.methods.combine import Combine
from openclaw_rl.methods.opd import Opd

AnyMethod = Binary | Opd | Combine


def make(name: str, *, decay: float, shrink: float, clip: float, w_binary: float, w_opd: float) -> AnyMethod:
    """The method of that name. Raises `ValueError` that lists what there is."""
    binary, opd = Binary(decay=decay, shrink=shrink), Opd(clip=clip)
    methods: dict[str, AnyMethod] = {
        "binary": binary,
        "opd": opd,
        "combine": Combine(binary=binary, opd=opd, w_binary=w_binary, w_opd=w_opd),
    }
    if name not in methods:
        raise ValueError(f"no method {name!r}; there are {', '.join(methods)}")
    return methods[name]


__all__ = ["AnyMethod", "Binary", "Combine", "Opd", "make"]
