"""Load plug-in files and check their functions. Errors name the file, the line, the value got and the one expected.

A plug-in can import installed packages, but no files beside it, because the settings do not name them.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from openclaw_rl.errors import PluginError

log = logging.getLogger("openclaw_rl.plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A loaded plug-in file."""

    setting: str  # the settings key that names it
    path: Path
    sha256: str  # of the bytes that run
    module: ModuleType

    def defined_names(self) -> list[str]:
        """Return the names of public functions and classes defined in the file, without imported ones."""
        names = []
        for name, value in vars(self.module).items():
            if not callable(value) or name.startswith("_"):
                continue
            if getattr(value, "__module__", None) == self.module.__name__:
                names.append(name)
        return names

    def find_function(self, *names: str) -> Callable[..., Any] | None:
        """Return the first of these names that the file defines. Raises `PluginError` if it is not callable."""
        for name in names:
            function = getattr(self.module, name, None)
            if function is None:
                continue
            if not callable(function):
                raise self.make_error(
                    f"{name} is of type {type(function).__name__}, expected a function"
                )
            return function  # type: ignore[no-any-return]
        return None

    def single_function(self, *names: str) -> tuple[str, Callable[..., Any]]:
        """Return name and function of the one of `names` that is defined. Raises `PluginError` for none or several."""
        functions: dict[str, Callable[..., Any]] = {}
        for name in names:
            function = self.find_function(name)
            if function is not None:
                functions[name] = function
        chosen = self.choose_name(functions, names, self.defined_names())
        return chosen, functions[chosen]

    def choose_name(
        self, bound: Collection[str], names: Sequence[str], defined: Sequence[str]
    ) -> str:
        """Return the one of `names` that is in `bound`. Raises `PluginError` for none or several.

        `defined`: functions and classes of the file, for the message.
        """
        present = [name for name in names if name in bound]
        if len(present) == 1:
            return present[0]
        if present:
            raise self.make_error(
                f"defines {' and '.join(present)}; expected one of them. Remove the others from the file"
            )
        raise self.make_error(
            f"defines no {' or '.join(names)}. It defines: {', '.join(defined) or 'nothing'}"
        )

    def make_error(self, message: str, line_number: int | None = None) -> PluginError:
        """Return an error that names the setting, the file and, if known, the line."""
        where = self.path if line_number is None else f"{self.path}:{line_number}"
        return PluginError(f"{self.setting}: {where}: {message}")

    @contextmanager
    def convert_errors(
        self, name: str, passing: tuple[type[Exception], ...] = (), arguments: str = ""
    ) -> Iterator[None]:
        """Convert exceptions of the plug-in's code to `PluginError`s with file and line, except those in `passing`.

        `arguments`: description of the arguments, for the message.
        """
        try:
            yield
        except (Exception, SystemExit) as error:
            # The plug-in may raise anything.
            if isinstance(error, (PluginError, *passing)):
                raise
            message = f"{name} raised {_describe_error(error)}"
            if arguments:
                message += f" ({arguments})"
            raise self.make_error(message, _error_line(error, self.path)) from error


def load_plugin(
    setting: str, path: str | Path, supplied: Mapping[str, Any] | None = None
) -> Plugin:
    """Run the file at `path` and return the plug-in. `supplied`: globals added to it. Raises `PluginError`."""
    plugin, source = read_plugin(setting, path)
    code = compile_source(plugin, source)
    vars(plugin.module).update(supplied or {})
    # Dataclasses and pickle look the module up there.
    sys.modules[plugin.module.__name__] = plugin.module
    with plugin.convert_errors("the file, while it was loaded,"):
        exec(code, vars(plugin.module))
    log.info("%s: loaded %s, sha256 %s", setting, plugin.path, plugin.sha256)
    return plugin


def read_plugin(setting: str, path: str | Path) -> tuple[Plugin, bytes]:
    """Return the plug-in, whose module is still empty, and its source. Raises `PluginError` if it cannot be read."""
    file = Path(path).expanduser().resolve()
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise PluginError(
            f"{setting}: {file}: cannot be read ({error.strerror}). Give the path of a file."
        ) from None
    digest = hashlib.sha256(raw).hexdigest()
    module = ModuleType(f"openclaw_rl_plugin_{file.stem}_{digest[:8]}")
    module.__file__ = str(file)
    return Plugin(setting=setting, path=file, sha256=digest, module=module), raw


def compile_source(plugin: Plugin, raw: bytes) -> CodeType:
    """Compile the source of the plug-in. Raises `PluginError` if it is not valid Python."""
    try:
        return compile(raw, str(plugin.path), "exec")
    except (SyntaxError, ValueError) as error:
        # ValueError: null bytes.
        message = f"is not valid Python: {getattr(error, 'msg', error)}"
        raise plugin.make_error(message, getattr(error, "lineno", None)) from None


def check_call(
    plugin: Plugin, name: str, function: Callable[..., Any], parameters: Sequence[str]
) -> None:
    """Raise `PluginError` unless the function can be called with exactly these keyword arguments."""
    signature = signature_of(plugin, name, function)
    check_not_async(plugin, name, function)
    try:
        signature.bind(**dict.fromkeys(parameters))
    except TypeError:
        expected = f"{name}({', '.join(parameters)})"
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
        raise plugin.make_error(
            f"got {name}{_short_signature(signature)}, expected {expected}", line
        ) from None


def check_not_async(plugin: Plugin, name: str, function: Callable[..., Any]) -> None:
    """Raise `PluginError` for an async function, because the caller does not await the result."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", None)
        raise plugin.make_error(
            f"{name} is an async function, expected `def {name.rpartition('.')[2]}(...)`", line
        )


def signature_of(plugin: Plugin, name: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return the function's signature. Raises `PluginError` if Python cannot determine it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        if not callable(function):
            raise plugin.make_error(
                f"{name} is of type {type(function).__name__}, expected a function"
            ) from None
        raise plugin.make_error(
            f"the parameters of {name} are unknown: write it as a Python function"
        ) from None


def _short_signature(signature: inspect.Signature) -> str:
    """Format the signature with names and defaults only."""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(plain))


def _error_line(error: BaseException, path: Path) -> int | None:
    """Return the last line of the file in the error's traceback, or None."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return lines[-1] if lines else None


def _describe_error(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
