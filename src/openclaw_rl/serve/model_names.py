"""The `model` of a request: the model as it is served, or one of its versions."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_rl.errors import RequestError

_MAX_VERSION_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedModel:
    """The model, or the version of it, that a request names."""

    name: str
    """As the response states it."""
    version: int | None = None
    """The version that the client pinned; None: the one that is served."""

    @property
    def is_pinned(self) -> bool:
        return self.version is not None


def parse_model(model: str, *, served: str, newest: int, any_model: bool) -> RequestedModel:
    """Return what a request for `model` asks for. Raises `RequestError` (404).

    `served`: name of the model; `newest`: its version, for the error; `any_model`: whether other names mean it, too.
    """
    if model in (served, ""):
        return RequestedModel(name=served)
    base, _, version = model.partition("@")
    is_number = version.isascii() and version.isdigit() and len(version) <= _MAX_VERSION_DIGITS
    if base == served and is_number:
        return RequestedModel(name=model, version=int(version))
    if any_model:
        return RequestedModel(name=model)
    raise RequestError(
        f"the model {model[:80]!r} is not here. Use {served!r} (the newest version, {newest}) "
        f"or {served}@<version> for an older version; GET /v1/models lists them.",
        param="model",
        code="model_not_found",
        status=404,
    )
