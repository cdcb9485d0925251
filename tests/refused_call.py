"""Runs a command that may not call process_vm_readv, as under Docker 20.10's seccomp filter.

python refused_call.py COMMAND …
"""

import ctypes
import os
import platform
import struct
import sys

_PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}[platform.machine()]
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # <linux/bpf_common.h>
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001  # <linux/seccomp.h>

if __name__ == "__main__":
    steps = [(_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, _PROCESS_VM_READV)]
    steps += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for option in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, program, 0, 0)):
        if prctl(*option):
            sys.exit(os.strerror(ctypes.get_errno()))
    os.execvp(sys.argv[1], sys.argv[1:])
