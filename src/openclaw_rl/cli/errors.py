"""Errors as a person sees them: one line, and for a bug the file with its traceback."""

from __future__ import annotations

import errno
import io

import click

from openclaw_rl.common.printable import echo_error

_PATH_ERRNOS = (
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EROFS,
)
"""Errors of paths that the user gave. Any other `OSError` is a bug."""


def _options_of(context: click.Context | None) -> set[str | None]:
    return set() if context is None else {option.name for option in context.command.params}


def show_unknown_option(error: click.NoSuchOption) -> None:
    """Print the error with similar options, or with what to give instead if the option means a setting.

    click also proposes `--help` for short names such as `--lr`, which means a setting.
    """
    from openclaw_rl.settings.load import known_keys
    from openclaw_rl.settings.suggestions import settings_meant

    meant = settings_meant(error.option_name, known_keys())
    similar = [name for name in error.possibilities or () if not (meant and name == "--help")]
    show_usage_error(click.NoSuchOption(error.option_name, possibilities=similar, ctx=error.ctx))
    options = _options_of(error.ctx)
    if similar or not meant or "sets" not in options:
        return
    if "model_path" in options:
        echo_error(f"This command takes it as --set {meant[0]}=VALUE.")
    else:
        echo_error(
            f"It means {meant[0]}, a setting of the running system: this command finds that system by --home."
        )


def show_usage_error(error: click.ClickException) -> None:
    text = io.StringIO()
    error.show(text)
    echo_error(text.getvalue(), nl=False)


def describe_error(error: Exception) -> str:
    """Describe an unexpected error in one line. The traceback of a bug is saved in a file that the line names."""
    import tempfile
    import traceback

    from openclaw_rl.common.disk_space import to_disk_full

    if to_disk_full(error) is not None:
        where = (error.filename if isinstance(error, OSError) else None) or "a file"
        return f"{where}: the disk (or its quota) is full. Free some space, and try again"
    if isinstance(error, OSError) and error.errno in _PATH_ERRNOS and error.filename is not None:
        return f"{error.filename}: {error.strerror}. Expected a path that this user can use"
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="openclaw-rl-error-", suffix=".log", delete=False
        ) as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as failure:
        return f"unexpected error: {reason}. Its traceback could not be saved ({failure.strerror})"
    return f"unexpected error: {reason}. Please report it with the traceback in {file.name}"
