"""Runs code under test where it can neither see the checks nor reach the process that compares.

For programs of `tests/`, which import it: `sys.path.insert(0, "/tests")` under `python3 -I`. Linux.

- `protect_process` keeps other processes of the same user out of this one's memory, files and variables.
- `take_tests` reads the files of `tests/` into memory and removes them, before anything of the policy runs.
- `run_code` and `start_code` run a command of the policy behind a filter of system calls: it cannot signal, trace or
  limit a process that was there before it.
"""

import ctypes
import functools
import os
import shutil
import struct
import subprocess
from pathlib import Path

# From linux/prctl.h.
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
# Instructions of classic BPF, and what a filter returns.
LOAD = 0x20
JUMP = 0x05
JUMP_EQUAL = 0x15
RETURN = 0x06
ALLOW = 0x7FFF0000
REFUSE = 0x00050001
KILL = 0x80000000
# Offsets in struct seccomp_data.
NUMBER = 0
ARCHITECTURE = 4
ARGUMENTS = 16
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Calls by name: numbers on x86_64 and aarch64. Those with a process as their first argument:
OF_PROCESS = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
}
# Those that nothing under test needs:
REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
}
FCNTL = (72, 25)
# F_SETOWN, F_SETSIG, F_SETOWN_EX: a file that sends signals.
SIGNALLING = (8, 10, 15)
IOCTL = (16, 29)
# FIOSETOWN, SIOCSPGRP: the same for a socket.
OWNING = (0x8901, 0x8902)


# A filter has at most 4,096 instructions. A box has fewer processes before anything is verified.
MAX_TARGETS = 80


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def protect_process() -> None:
    """Keep other processes of the same user out of this one."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def take_tests(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder by their paths in it, and remove them. Raises `OSError`."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return files


def run_code(
    command: list[str], seconds: float, *, folder: str = "/", limit: int = 1 << 20
) -> tuple[int | None, bytes, bytes]:
    """Run a command of the policy. Return its exit status, output and errors; None: it did not end in time.

    Of output and errors, at most `limit` bytes each.
    """
    with start_code(command, folder=folder, stderr=subprocess.PIPE) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, b"", b""
    return process.returncode, output[:limit], errors[:limit]


def start_code(
    command: list[str],
    *,
    folder: str = "/",
    stdin: int = subprocess.DEVNULL,
    stderr: int | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a command of the policy. Its output is a pipe."""
    program = build_filter()
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if stderr is None else stderr,
        start_new_session=True,
        preexec_fn=lambda: install_filter(program),
    )


@functools.cache
def build_filter() -> bytes:
    """Return a filter for new processes that keeps them off all that there are when it is first asked for.

    Empty on a machine whose system calls are not known.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        return b""
    column = list(MACHINES).index(machine)
    # -1: all that can be signalled. A negative number: a group of processes.
    targets = {-1}
    for pid in list_processes()[:MAX_TARGETS]:
        targets |= {pid, -pid}
    refused = [_instruction(JUMP_EQUAL, call[column], 0, 1) for call in REFUSED.values()]
    program = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(JUMP_EQUAL, MACHINES[machine], 1, 0),
        _instruction(RETURN, KILL),
        _instruction(LOAD, NUMBER),
    ]
    for check in refused:
        program += [check, _instruction(RETURN, REFUSE)]
    checked = [(call[column], 0, sorted(targets)) for call in OF_PROCESS.values()]
    checked += [(FCNTL[column], 1, list(SIGNALLING)), (IOCTL[column], 1, list(OWNING))]
    for number, argument, values in checked:
        body = [_instruction(LOAD, ARGUMENTS + 8 * argument)]
        for value in values:
            body += [_instruction(JUMP_EQUAL, value, 0, 1), _instruction(RETURN, REFUSE)]
        body.append(_instruction(RETURN, ALLOW))
        skip = _instruction(JUMP, len(body))
        program += [_instruction(JUMP_EQUAL, number, 1, 0), skip, *body]
    return b"".join([*program, _instruction(RETURN, ALLOW)])


def list_processes() -> list[int]:
    """Return all processes, first this one and those above it."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:
            # It has ended.
            continue
    ordered = []
    above = os.getpid()
    while above in parents:
        ordered.append(above)
        above = parents.pop(above)
    return ordered + sorted(parents)


def install_filter(program: bytes) -> None:
    """Set the filter for this process and all that it starts. Raises `OSError`."""
    if not program:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_program = _Program(len(program) // 8, ctypes.cast(instructions, ctypes.c_void_p))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the filter of system calls was not taken")


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)
