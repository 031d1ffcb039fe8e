"""Configuration of tools (`TOOLS_CONFIG`): a JSON file with tools, MCP servers and limits."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Annotated, Any
from urllib.parse import urlsplit

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from openclaw_rl.environments.sources.tools.schema_check import compile_pattern
from openclaw_rl.errors import ConfigError

_EMPTY_SCHEMA: Mapping[str, Any] = {"type": "object", "properties": {}}
_CODE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "description": "Python code. Variables stay between calls."}
    },
    "required": ["code"],
    "additionalProperties": False,
}
_CODE_DESCRIPTION = (
    "Runs Python code. Returns what it prints, and the value of the last expression."
)
_KINDS = ("python", "python_file", "http", "interpreter", "result")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HttpTarget(_Entry):
    """A request. GET sends the arguments as the query, other methods as a JSON body; `{name}` in `url` takes one."""

    url: str
    method: str = Field("POST", pattern="^(GET|POST|PUT|PATCH|DELETE)$")
    headers: Mapping[str, str] = {}

    @model_validator(mode="after")
    def _check_names(self) -> HttpTarget:
        try:
            list(Formatter().parse(self.url))
        except ValueError as error:
            raise ValueError(f"{self.url}: expected arguments as {{name}} ({error})") from None
        return self


def _plain_tool(entry: Any) -> Any:
    """Return an entry without the `{"type": "function", "function": ...}` of OpenAI's format around it."""
    if not isinstance(entry, dict) or entry.get("type") != "function":
        return entry
    function = entry.get("function")
    if not isinstance(function, dict):
        return entry
    more = {name: value for name, value in entry.items() if name not in ("type", "function")}
    return {**function, **more}


class ToolSpec(_Entry):
    """A tool. Exactly one of `python`, `python_file`, `http`, `interpreter` and `result` says what a call does.

    `python`, `python_file`: code that defines the function `function` (default: the tool's name). `result`: every call
    is answered with this value; for tasks that check calls only. `seconds`: limit of a call.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str = ""
    parameters: Mapping[str, Any] = _EMPTY_SCHEMA
    strict: bool | None = None
    python: str | None = None
    python_file: str | None = None
    function: str | None = None
    http: HttpTarget | None = None
    interpreter: bool = False
    result: Any = None
    seconds: float | None = Field(None, gt=0, le=3600)

    @model_validator(mode="before")
    @classmethod
    def _fill_interpreter(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("interpreter") is True:
            return {"description": _CODE_DESCRIPTION, "parameters": _CODE_SCHEMA, **data}
        return data

    @model_validator(mode="after")
    def _check_kind(self) -> ToolSpec:
        named = [kind for kind in _KINDS if kind in self.model_fields_set]
        kinds = [kind for kind in named if getattr(self, kind) is not False]
        if len(kinds) != 1:
            raise ValueError(
                f"tool {self.name}: expected exactly one of {', '.join(_KINDS)}, got {kinds or 'none'}"
            )
        validator = validator_for(self.parameters, default=Draft202012Validator)
        try:
            validator.check_schema(dict(self.parameters))
        except SchemaError as error:
            raise ValueError(
                f"tool {self.name}: parameters: no valid JSON schema ({error.message})"
            ) from None
        return self

    @property
    def kind(self) -> str:
        """One of `python` (also of a file), `http`, `interpreter`, `result`."""
        if self.python is not None or self.python_file is not None:
            return "python"
        if self.http is not None:
            return "http"
        if self.interpreter:
            return "interpreter"
        return "result"

    def as_definition(self) -> dict[str, Any]:
        """Return the tool as a chat request has it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


Tool = Annotated[ToolSpec, BeforeValidator(_plain_tool)]


class McpServer(_Entry):
    """An MCP server: a program that is started for each episode (`command`), or an address (`url`).

    `environment`: variables of the program; it gets no others but PATH, HOME and LANG.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    url: str | None = None
    tools: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> McpServer:
        if bool(self.command) == (self.url is not None):
            raise ValueError(f"MCP server {self.name}: expected either a command or a url")
        return self


class TextCalls(_Entry):
    """Calls in the text of a reply, for `--agent text`.

    `pattern`: regular expression (RE2) of one call; its named groups are the arguments of `tool`. Without it, a call is
    a JSON object `{"tool": name, "arguments": {...}}`. `explain`: whether the prompt describes the tools and the form.
    """

    pattern: str | None = None
    tool: str | None = None
    explain: bool = True

    @model_validator(mode="after")
    def _check_pattern(self) -> TextCalls:
        if (self.pattern is None) != (self.tool is None):
            raise ValueError("text_calls: expected both pattern and tool, or neither")
        if self.pattern is not None:
            compile_pattern(self.pattern)
        return self


class ToolConfig(_Entry):
    """Tools of an environment.

    `hosts`: hosts that HTTP tools and MCP servers may be at, beside this machine. `request`: further fields of each
    chat request. `seconds`: limit of a call. `characters`: of a result that the model gets. `images`: whether it gets
    those of MCP tools; turns with images are not trained on. `tasks`: file of the tasks, relative to the configuration.
    """

    tools: tuple[Tool, ...] = ()
    mcp: tuple[McpServer, ...] = ()
    hosts: tuple[str, ...] = ()
    system: str | None = None
    text_calls: TextCalls = TextCalls()
    request: Mapping[str, Any] = {}
    seconds: float = Field(30.0, gt=0, le=3600)
    characters: int = Field(8000, ge=100, le=1_000_000)
    images: bool = True
    tasks: str | None = None

    @model_validator(mode="after")
    def _check_names(self) -> ToolConfig:
        _check_distinct("tool", [tool.name for tool in self.tools])
        _check_distinct("MCP server", [server.name for server in self.mcp])
        tool_urls = [tool.http.url for tool in self.tools if tool.http is not None]
        server_urls = [server.url for server in self.mcp if server.url is not None]
        for url in tool_urls + server_urls:
            check_address(url, self.hosts)
        return self


def _check_distinct(kind: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{kind} {twice[0]}: defined twice. Remove one")


def check_address(url: str, hosts: tuple[str, ...]) -> None:
    """Raise `ValueError` unless the address is on this machine, or its host is listed."""
    parts = urlsplit(url)
    host = parts.hostname
    # A parameter may not choose the host.
    if not host or "{" in parts.netloc or parts.scheme not in ("http", "https"):
        raise ValueError(f"{url}: expected an address like http://127.0.0.1:9000/path")
    if not is_loopback(host) and host not in hosts:
        raise ValueError(
            f'{url}: {host} is not this machine. If a model may reach it, add it to "hosts"'
        )


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the tools cannot be read ({error})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid JSON ({error})") from None


def load_tool_config(path: Path) -> ToolConfig:
    """Read a configuration. Raises `ConfigError` with the file and the entry."""
    document = _read_document(path)
    # A list of tools alone, as other programs have it.
    if isinstance(document, list):
        document = {"tools": document}
    try:
        config = ToolConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {describe_error(error)}") from None
    # Its files are beside the configuration itself, also where a link leads to it.
    folder = path.resolve().parent
    for tool in config.tools:
        # An error before the first episode.
        read_code(tool, folder)
    return config


def parse_tool(entry: Any, where: str) -> ToolSpec:
    """Return a tool that a task defines. Raises `ConfigError`, also for one that reaches the network."""
    try:
        tool = ToolSpec.model_validate(_plain_tool(entry))
        if tool.http is not None:
            check_address(tool.http.url, ())
    except (ValidationError, ValueError) as error:
        raise ConfigError(f"{where}: {describe_error(error)}") from None
    return tool


def describe_error(error: ValueError) -> str:
    """Return the first problem in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function-"))
    return ": ".join(filter(None, (place, first["msg"].removeprefix("Value error, "))))


def read_code(tool: ToolSpec, folder: Path) -> str:
    """Return the code of a tool in Python. `folder`: of the configuration. Raises `ConfigError`."""
    if tool.python_file is None:
        return tool.python or ""
    try:
        code = (folder / tool.python_file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tool {tool.name}: {folder / tool.python_file} cannot be read ({error})"
        ) from None
    return code


def place_server(server: McpServer, folder: Path) -> McpServer:
    """Return a server whose command has absolute paths where a word names a file in `folder`, the configuration's."""
    files = [str(folder / word) if (folder / word).is_file() else word for word in server.command]
    return server.model_copy(update={"command": tuple(files)})


def config_digest(config: ToolConfig, folder: Path) -> str:
    """Return a digest of all that decides how calls are answered, with the code of files."""
    parts = [
        config.model_dump_json(exclude={"tasks", "request", "images"}),
        *(read_code(tool, folder) for tool in config.tools),
    ]
    for file in _server_files(config, folder):
        parts.append(hashlib.sha256(file.read_bytes()).hexdigest())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _server_files(config: ToolConfig, folder: Path) -> Iterator[Path]:
    """Yield the files that the commands of MCP servers name."""
    for server in config.mcp:
        for word in server.command:
            file = folder / word
            if file.is_file():
                yield file
