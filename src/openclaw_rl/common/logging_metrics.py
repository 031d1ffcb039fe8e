"""Logging setup of all processes, and the gateway's Prometheus metrics.

At info level and above, logs contain ids, counts and times, but never text of a conversation.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily

from openclaw_rl.common.log_codes import first_code
from openclaw_rl.common.printable import to_printable, to_printable_json
from openclaw_rl.errors import ConfigError

LOG_BYTES = 10 * 2**20
LOG_FILES = 3
_LATENCY_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
_GROUP_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({})))


class JsonLinesFormatter(logging.Formatter):
    """Formats a record as one JSON object per line; entries of `extra` become fields of the object.

    An error among the arguments, or the one that is being handled, gives the line its `code` (`log_codes`).
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        arguments = record.args if isinstance(record.args, tuple) else ()
        handled = record.exc_info[1:2] if record.exc_info else ()
        code = first_code((*arguments, *handled))
        if code is not None:
            line["code"] = code.value
        for name, value in vars(record).items():
            if name not in _STANDARD_FIELDS and name not in ("message", "asctime"):
                line[name] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return to_printable_json(line)


class PlainFormatter(logging.Formatter):
    """Formats a record as text that is harmless for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return to_printable(super().format(record))


class LogFileHandler(RotatingFileHandler):
    """Writes a log file. If it cannot be written, one line on stderr says so, until it can be written again."""

    _failed = _fails = False

    def emit(self, record: logging.LogRecord) -> None:
        self._fails = False
        super().emit(record)
        self._failed = self._fails

    def close(self) -> None:
        # What a full disk did not take.
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is that of `logging`
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._fails = True
        if not self._failed:
            message = f"the log {self.baseFilename} cannot be written ({error.strerror}). Free some space on its disk"
            # Stderr may be a file on the same disk.
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{message}\n")


def setup_logging(
    name: str,
    logs_dir: Path | None,
    level: str = "info",
    *,
    readable: str | None = None,
    named: bool = True,
) -> logging.Logger:
    """Log plain text to stderr and, with `logs_dir`, JSON lines to `logs_dir/<name>.log` (rotating).

    `readable`: name of an additional plain-text file in `logs_dir`. `named`: the lines on stderr have the process's
    name; the supervisor puts it before the lines of its workers. Configures the logger "openclaw_rl" and replaces the
    handlers of an earlier call. Raises `ConfigError` if the folder cannot be written.
    """
    root = logging.getLogger("openclaw_rl")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level.upper())
    root.propagate = False
    # Without its optional CPU kernels, bitsandbytes (imported by peft) warns of a failure, but nothing needs them.
    logging.getLogger("bitsandbytes.backends.cpu").setLevel(logging.ERROR)
    stderr = logging.StreamHandler(sys.stderr)
    who = f"{name} " if named else ""
    stderr.setFormatter(PlainFormatter(f"%(asctime)s {who}%(levelname)s %(message)s", "%H:%M:%S"))
    root.addHandler(stderr)
    if logs_dir is not None:
        root.addHandler(_file_handler(logs_dir / f"{name}.log", JsonLinesFormatter()))
    if logs_dir is not None and readable is not None:
        lines = PlainFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
        root.addHandler(_file_handler(logs_dir / readable, lines))
    return root


def _file_handler(path: Path, formatter: logging.Formatter) -> logging.Handler:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = LogFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=False
        )
    except OSError as error:
        raise ConfigError(
            f"{path}: the log cannot be written ({error}). Make the folder writable, or choose another home."
        ) from error
    path.chmod(0o600)
    handler.setFormatter(formatter)
    return handler


class TrainingGauges:
    """Gauges `openclaw_train_<name>` with the step metrics of the newest published version.

    Names are those in W&B, with `_` for characters that Prometheus rejects: `loss/total` is
    `openclaw_train_loss_total`.
    """

    def __init__(self) -> None:
        self._gauges: Mapping[str, tuple[str, float]] = {}

    def set_metrics(self, version: int, metrics: Mapping[str, float]) -> None:
        """Replace all gauges by the metrics of `version`, the new head."""
        values = {"version": float(version)} | dict(metrics)
        self._gauges = {
            re.sub(r"[^a-zA-Z0-9_]", "_", name): (name, value) for name, value in values.items()
        }

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; `CollectorRegistry` calls this."""
        for name, (source, value) in self._gauges.items():
            text = (
                f"{source} of the step that made the newest version"
                if name != "version"
                else "That version"
            )
            yield GaugeMetricFamily(f"openclaw_train_{name}", text, value=value)


class GatewayMetrics:
    """The gateway's metrics, in a separate registry, since one process may run several gateways."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=_LATENCY_BUCKETS)
        self.replies = counter(
            "openclaw_replies", "Answers by HTTP route and outcome", ["route", "outcome"]
        )
        self.prompt_tokens = counter("openclaw_prompt_tokens", "Prompt tokens of admitted requests")
        self.reused_tokens = counter(
            "openclaw_prompt_tokens_reused", "Prompt tokens reused from a stored exchange"
        )
        self.cached_tokens = counter(
            "openclaw_prompt_tokens_cached", "Prompt tokens whose states the engine had"
        )
        self.response_tokens = counter("openclaw_response_tokens", "Tokens sampled")
        self.running = gauge("openclaw_running", "Replies being generated")
        self.first_token = histogram(
            "openclaw_first_token_seconds", "From admission to the first token"
        )
        self.duration = histogram("openclaw_reply_seconds", "From admission to the durable end")
        self.commit = histogram("openclaw_commit_seconds", "One group commit")
        self.commit_size = histogram(
            "openclaw_commit_items", "Items in one group commit", buckets=_GROUP_BUCKETS
        )
        self.version = gauge("openclaw_policy_version", "The version that answers new requests")
        self.head = gauge("openclaw_policy_head", "The newest published version")
        self.versions = gauge("openclaw_policy_versions", "Policy versions by state", ["state"])
        self.training = TrainingGauges()
        self.registry.register(self.training)
        self.engine_up = gauge("openclaw_engine_up", "1 while the engine answers")

    def expose(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return bytes(generate_latest(self.registry))
