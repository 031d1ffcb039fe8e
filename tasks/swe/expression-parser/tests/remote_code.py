"""The code under test, as the tests see it: its modules are stand-ins for those of another process (`code_server.py`).

What comes back are plain values, built here, and numbers of objects that stay there. An object equals only itself: no
`__eq__` of the policy says what is equal. Nothing of the policy runs in this process.
"""

import builtins
import importlib.machinery
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

from isolation import start_code
from peer import Peer, PeerEnded

_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_BIT_OPERATORS = ("and", "or", "xor", "lshift", "rshift")


class RemoteObject:
    """Stands for an object of the code under test."""

    def __init__(self, link: "CodeLink", number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__name__", "__doc__", "__all__", "__version__"):
            raise AttributeError(name)
        return self._link.ask("getattr", self, name)

    def __setattr__(self, name, value):
        self._link.ask("setattr", self, name, value)

    def __delattr__(self, name):
        self._link.ask("delattr", self, name)

    def __call__(self, *values, **named):
        return self._link.ask("call", self, *values, **named)

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)

    def __str__(self):
        return self._link.ask_for(str, "str", self)

    def __repr__(self):
        return self._link.ask_for(str, "repr", self)

    def __format__(self, form):
        return self._link.ask_for(str, "format", self, form)

    def __bool__(self):
        return self._link.ask_for(bool, "bool", self)

    def __int__(self):
        return self._link.ask_for(int, "int", self)

    def __float__(self):
        return self._link.ask_for(float, "float", self)

    def __index__(self):
        return self._link.ask_for(int, "index", self)

    def __len__(self):
        return self._link.ask_for(int, "len", self)

    def __contains__(self, item):
        return self._link.ask_for(bool, "contains", self, item)

    def __iter__(self):
        return self._link.ask("iter", self)

    def __next__(self):
        return self._link.ask("next", self)

    def __reversed__(self):
        return self._link.ask("reversed", self)

    def __getitem__(self, key):
        return self._link.ask("getitem", self, key)

    def __setitem__(self, key, value):
        self._link.ask("setitem", self, key, value)

    def __delitem__(self, key):
        self._link.ask("delitem", self, key)

    def __enter__(self):
        return self._link.ask("enter", self)

    def __exit__(self, kind, error, trace):
        return self._link.ask("exit", self, kind, error, None)

    def __instancecheck__(self, value):
        return self._link.ask_for(bool, "isinstance", value, self)

    def __neg__(self):
        return self._link.ask("neg", self)

    def __abs__(self):
        return self._link.ask("abs", self)


def _add_operators() -> None:
    for name in (*_OPERATORS, *_BIT_OPERATORS):
        action = f"{name}_" if name in ("and", "or") else name

        def forward(self, other, action=action):
            return self._link.ask(action, self, other)

        def backward(self, other, action=action):
            return self._link.ask(action, other, self)

        setattr(RemoteObject, f"__{name}__", forward)
        setattr(RemoteObject, f"__r{name}__", backward)


_add_operators()


class RemoteError(Exception):
    """An error of the code under test whose class no test can name."""


class RemoteModule(types.ModuleType):
    """Stands for a module of the code under test."""

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(name)
        link = self.__dict__["_link"]
        return link.ask("getattr", self.__dict__["_module"], name)


class CodeLink(Peer):
    """The end of the tests. `server`: source of the other end, which runs in a process of its own."""

    def __init__(self, server: str, repository: str) -> None:
        command = [sys.executable, "-I", "-B", "-c", server, repository]
        self._process = start_code(command, folder=repository, stdin=subprocess.PIPE)
        super().__init__(self._process.stdout.fileno(), self._process.stdin.fileno())
        self._remote = {}

    def close(self) -> None:
        """End the code under test."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def ask_for(self, kind: type, action: str, *values: Any) -> Any:
        """Ask for a value of a plain type. Raises `TypeError` for another one."""
        value = self.ask(action, *values)
        if type(value) is not kind:
            raise TypeError(f"{action}: expected {kind.__name__}, got {type(value).__name__}")
        return value

    def encode(self, value: Any) -> Any:
        if isinstance(value, RemoteObject):
            return ["yours", value._number]
        if isinstance(value, RemoteModule):
            return self.encode(value.__dict__["_module"])
        remote = (
            getattr(value, "_remote_object", None) if isinstance(value, (type, Exception)) else None
        )
        if isinstance(remote, RemoteObject):
            return ["yours", remote._number]
        return super().encode(value)

    def perform(self, action: str, values: list[Any], named: dict[str, Any]) -> Any:
        """Call what a test passed to the code; it can do nothing else with an object of a test."""
        function, *rest = values
        if action != "call" or isinstance(function, RemoteObject):
            raise PeerEnded("the code under test asked for what it may not")
        return function(*rest, **named)

    def describe_object(self, value: Any) -> list[Any]:
        return ["object"]

    def find_object(self, number: int, description: list[Any]) -> Any:
        if number not in self._remote:
            kind, *details = description
            remote = RemoteObject(self, number)
            self._remote[number] = self._mirror(remote, *details) if kind == "error" else remote
        return self._remote[number]

    def _mirror(self, remote: RemoteObject, name: str, bases: list[Any]) -> type[Exception]:
        """Return a class of exceptions that stands for one of the code under test."""
        parents = []
        for base in bases:
            parent = self.decode(base)
            if isinstance(parent, type) and issubclass(parent, Exception):
                parents.append(parent)
        fields = {
            "_remote_object": remote,
            "__str__": lambda self: self._text,
            "__getattr__": _attribute_of_error,
        }
        return type(str(name), tuple(parents) or (RemoteError,), fields)

    def describe_error(self, error: BaseException) -> list[Any]:
        kind = type(error).__name__
        is_builtin = getattr(builtins, kind, None) is type(error)
        number = self.refer(error)[1][0]
        return [kind if is_builtin else "Exception", number, str(error)]

    def build_error(self, description: list[Any]) -> BaseException:
        how, *content = description
        if how == "yours":
            error = self.own_object(content[0])
            return error if isinstance(error, BaseException) else PeerEnded("no error")
        kind, values, text, itself = content
        kind = self.decode(kind)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            return RemoteError(str(text))
        arguments = [self.decode(value) for value in values]
        try:
            error = kind(*arguments)
        except Exception:  # noqa: BLE001  a class that takes other arguments
            return RemoteError(str(text))
        if hasattr(kind, "_remote_object"):
            error._text = str(text)
            error._remote_instance = self.decode(itself)
        return error


def _attribute_of_error(error: Any, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(error._remote_instance, name)


class Modules:
    """Finds modules: those of the tests in memory, and those of the repository in the process of `link`.

    `sources`: of the tests, by path below `top`. `has_module`: whether the repository has a module of this name.
    """

    def __init__(
        self, sources: dict[str, bytes], top: str, has_module: Callable[[str], bool]
    ) -> None:
        self.link = None
        self._has_module = has_module
        self._sources = {}
        self._packages = set()
        for path, text in sources.items():
            name = path.removesuffix(".py").replace("/", ".")
            is_package = name == "__init__" or name.endswith(".__init__")
            self._sources[name.removesuffix(".__init__")] = (f"{top}/{path}", text, is_package)
            parts = name.split(".")[:-1]
            self._packages |= {".".join(parts[: n + 1]) for n in range(len(parts))}
        self._loaded = set()

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where a module is; None if it is neither of the tests nor of the repository."""
        if name in self._sources:
            place, _, is_package = self._sources[name]
            return self._spec(name, place, is_package)
        if self._has_module(name.partition(".")[0]):
            return self._spec(name, None, True)
        if name in self._packages:
            return self._spec(name, "tests", True)
        return None

    def _spec(
        self, name: str, place: str | None, is_package: bool
    ) -> importlib.machinery.ModuleSpec:
        self._loaded.add(name)
        return importlib.machinery.ModuleSpec(name, self, origin=place, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Return a stand-in for a module of the repository."""
        if spec.origin is not None:
            return None
        module = RemoteModule(spec.name)
        module.__dict__["_link"] = self.link
        module.__dict__["_module"] = self.link.ask("import", spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the source of a module of the tests."""
        source = self._sources.get(module.__name__)
        if source is not None:
            place, text, _ = source
            module.__file__ = place
            exec(compile(text, place, "exec"), module.__dict__)

    def forget(self) -> None:
        """Forget all modules that were loaded, for the next test."""
        for name in self._loaded:
            sys.modules.pop(name, None)
        self._loaded.clear()
