"""Errors that a user can act on: what happened, what was expected, what to do."""

from __future__ import annotations


class OpenClawError(Exception):
    """Base of everything that this package raises on purpose. The message is for the user."""


def named(kind: str, message: str) -> Exception:
    """What was raised in another process: our own errors and `ValueError` as themselves."""
    if kind == "ValueError":
        return ValueError(message)
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, OpenClawError):
        return found(message)
    return OpenClawError(f"{kind}: {message}")


class ConfigError(OpenClawError):
    """A setting is unknown, contradictory or out of range."""


class ModelError(OpenClawError):
    """A model folder is missing, incomplete, or of a kind that the engine cannot serve."""


class TooLarge(ModelError):
    """A step does not fit into memory, not even one row in a pass: its longest turn is too long for this device."""


class BrokenPolicy(OpenClawError):
    """The policy's weights give no finite numbers: no turn is to blame, and no other batch would do."""


class RanksGone(OpenClawError):
    """A rank died or hangs: the step that all of them took is lost, and was not published."""


class StoreError(OpenClawError):
    """The store cannot be opened, is corrupt, too new, or the disk is full."""


class StaleLease(OpenClawError):
    """The lease was lost: another holder may be at work, so nothing was published."""


class IdentityMismatch(OpenClawError):
    """Tokens and weights do not belong together (tokenizer, template, special ids or base weights changed)."""


class EngineError(OpenClawError):
    """The engine refused a call; nothing is wrong with the engine itself."""


class EngineGone(EngineError):
    """The engine's process died or cannot be reached; the replies that it was generating are broken off."""


class GrammarError(EngineError):
    """The engine cannot force a reply into a grammar, or not into this one."""


class JudgeError(OpenClawError):
    """The judge gave no usable answer. Never a bad score: the turn waits and is tried again."""


class PluginError(OpenClawError):
    """Code that the owner named cannot be loaded, or does not do what was agreed. Names file, line, got, expected."""


class RequestError(OpenClawError):
    """A client's request is wrong. Carries what an OpenAI-shaped error body needs."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


_NO_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_lack_of_memory(error: RuntimeError) -> bool:
    """Whether torch says so: of a GPU, of a CPU, for which it has no kind of error, or through a GPU's library."""
    return any(words in str(error) for words in _NO_MEMORY)
