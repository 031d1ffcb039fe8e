"""Seccomp filter of a box: a classic BPF program that refuses system calls which no task needs.

A program in a box has no capabilities, so most of these calls fail anyway. The filter keeps them out of the kernel's
code, where faults are found most often, and closes what namespaces do not: key rings, virtual machine sockets, and the
input of a terminal. The list follows the default profile of container engines.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER_OR_EQUAL = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERROR = 0x00050000
# Offsets in struct seccomp_data, in bytes.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16
_X32_CALLS = 0x40000000
# CLONE_NEW{USER,PID,NET,IPC,UTS,CGROUP,NS}
_NEW_NAMESPACE = 0x7E020000
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK.
_ALLOWED_FAMILIES = (1, 2, 10, 16)
# TIOCSTI, TIOCLINUX.
_TERMINAL_INPUT = (0x5412, 0x541C)

AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED_CALLS: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}
"""Name -> number on (x86_64, aarch64); None: the architecture has no such call."""
_CLONE = (56, 220)
_SOCKET = (41, 198)
_SOCKET_PAIR = (53, 199)
_IOCTL = (16, 29)
# Its flags lie in memory, which a filter cannot read; libc then uses clone.
_CLONE3 = 435


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the BPF program (`struct sock_filter[]`) for a machine (`platform.machine()`), None if it has no table."""
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCHITECTURE:
        return None
    column = list(AUDIT_ARCHITECTURE).index(machine)
    refuse = _instruction(_RETURN, _ERROR | errno.EPERM)
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, AUDIT_ARCHITECTURE[machine], 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_instruction(_JUMP_GREATER_OR_EQUAL, _X32_CALLS, 0, 1), refuse]
    for numbers in REFUSED_CALLS.values():
        number = numbers[column]
        if number is not None:
            program += [_instruction(_JUMP_EQUAL, number, 0, 1), refuse]
    program += [
        _instruction(_JUMP_EQUAL, _CLONE3, 0, 1),
        _instruction(_RETURN, _ERROR | errno.ENOSYS),
    ]
    program += _when(_CLONE[column], 0, [_instruction(_JUMP_ANY_BIT, _NEW_NAMESPACE, 0, 1), refuse])
    for call in (_SOCKET[column], _SOCKET_PAIR[column]):
        allowed = [
            _instruction(_JUMP_EQUAL, family, len(_ALLOWED_FAMILIES) - n, 0)
            for n, family in enumerate(_ALLOWED_FAMILIES)
        ]
        program += _when(call, 0, [*allowed, refuse])
    inputs = [
        part for code in _TERMINAL_INPUT for part in (_instruction(_JUMP_EQUAL, code, 0, 1), refuse)
    ]
    program += _when(_IOCTL[column], 1, inputs)
    return b"".join([*program, _instruction(_RETURN, _ALLOW)])


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Run `checks` on the lower half of an argument if the call has this number, then load the number again."""
    return [
        _instruction(_JUMP_EQUAL, number, 0, len(checks) + 2),
        _instruction(_LOAD, _ARGUMENTS + 8 * argument),
        *checks,
        _instruction(_LOAD, _NUMBER),
    ]
