"""Types of the page: a view reads a snapshot of the store, an act changes it after it has said what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Protocol

from sqlalchemy import Connection

from openclaw_rl.errors import OpenClawError
from openclaw_rl.owner_acts.origin import ActOrigin
from openclaw_rl.settings.load import Config
from openclaw_rl.store.acts import ActActor
from openclaw_rl.store.db import Store


class NotFound(OpenClawError):
    """Raised if a link names a thing that does not exist (any more)."""


class InvalidForm(OpenClawError):
    """Raised if a field of a form has a value that cannot be used; the message says what was expected."""


class SupportsTokens(Protocol):
    """The part of the model's tokenizer that views need."""

    def split(self, ids: Sequence[int]) -> list[str] | None:
        """Return the text that each token adds to a reply; None if the tokenizer is not on this machine."""
        ...


@dataclass(frozen=True, kw_only=True)
class ViewRequest:
    """Input of a view. `params`: of the path and the query; `conn`: a snapshot that no writer waits for.

    `zone`: the time zone of the browser, in which a person reads days and writes times.
    """

    conn: Connection
    config: Config
    params: Mapping[str, str]
    now: float
    tokens: SupportsTokens
    # Data that is costly to compute, by name; lives as long as the process.
    cache: dict[str, Any]
    # All values of the parameters of the query, by name.
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    zone: tzinfo = UTC

    @property
    def today(self) -> float:
        """When the day began for the person, in seconds since the epoch."""
        moment = datetime.fromtimestamp(self.now, self.zone)
        return moment.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()

    @property
    def yesterday(self) -> float:
        """When the day before began; it may have had 23 or 25 hours."""
        moment = datetime.fromtimestamp(self.today, self.zone)
        return (moment - timedelta(days=1)).timestamp()

    def texts(self, name: str) -> Sequence[str]:
        """Return all values of a parameter that may be repeated."""
        values = self.lists.get(name)
        if values is None:
            values = [self.params[name]] if name in self.params else []
        return [value for value in values if value]

    def text(self, name: str, default: str = "") -> str:
        return self.params.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number of the address. Raises `NotFound` for any other text."""
        value = self.params.get(name, "")
        if not value:
            return default
        # `int` accepts underscores, blanks and the digits of all scripts.
        if not value.isascii() or not value.removeprefix("-").isdigit() or len(value) > 18:
            raise NotFound(f"{name} in the address is {value[:40]!r}: expected a whole number")
        return int(value)


@dataclass(frozen=True, kw_only=True)
class View:
    """One address of the page.

    A request with the header `HX-Target` that names a block of the template gets this block alone.
    """

    path: str
    template: str
    collect: Callable[[ViewRequest], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ActPlan:
    """Consequences of an act, shown before it is confirmed. `details`: one consequence each.

    `follow`: address of another act or view to consider instead, with the text of its link.
    """

    title: str
    details: Sequence[str] = ()
    button: str
    is_dangerous: bool = False
    # Name -> value of hidden fields, which `apply` gets.
    fields: Mapping[str, str] = field(default_factory=dict)
    # Names and labels of fields that the person fills in.
    inputs: Sequence[ActInput] = ()
    follow: str = ""
    follow_text: str = ""


@dataclass(frozen=True, kw_only=True)
class ActInput:
    """A field of the form. `kind`: text, textarea, checkbox, or choice, which has one of the `options`."""

    name: str
    label: str
    value: str = ""
    kind: str = "text"
    # (value, label) of the options of a choice.
    options: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class ActRequest:
    """A confirmed act. `act_id`: of the form; the act is recorded under it, which makes it happen once."""

    store: Store
    config: Config
    form: Mapping[str, Sequence[str]]
    act_id: str
    now: float

    @property
    def origin(self) -> ActOrigin:
        return ActOrigin(actor=ActActor.PAGE, id=self.act_id, at=self.now)

    def text(self, name: str) -> str:
        values = self.form.get(name, ())
        return values[-1] if values else ""


@dataclass(frozen=True, kw_only=True)
class ActResult:
    """Result of an act, in words. `follow`: address of a view that shows more, with the text of its link.

    `again`: address of the same result, for one that may change.
    """

    message: str
    title: str = "Done"
    follow: str = ""
    follow_text: str = ""
    again: str = ""


@dataclass(frozen=True, kw_only=True)
class PageAct:
    """One thing that can be changed: GET `path` shows the plan, POST carries it out."""

    path: str
    plan: Callable[[ViewRequest], ActPlan]
    apply: Callable[[ActRequest], ActResult]
