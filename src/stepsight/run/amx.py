"""Whether this machine runs the AMX instructions that it reports.

Some virtual machines list AMX among their processor's features and grant its registers, yet stop a program at
its first tile instruction. torch's bf16 products (oneDNN) believe the list. A process of its own tries the
instructions and shows it.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""oneDNN's own switch, and the instructions it may use at most where AMX does not work."""
NOTE = (
    "this machine reports AMX but does not run it: bf16 products use AVX-512 "
    f"({VARIABLE}={WITHOUT_AMX}; set it yourself to choose)"
)
TRY_SECONDS = 20.0
_TRY = """
import ctypes, mmap, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
libc = ctypes.CDLL(None)
libc.syscall(158, 0x1023, 18)  # arch_prctl(ARCH_REQ_XCOMP_PERM, tile data)
config = ctypes.create_string_buffer(64)
config[0] = 1
for tile in range(3):
    config[16 + 2 * tile], config[48 + tile] = 64, 16
code = bytes.fromhex(
    "c4e2784907"  # ldtilecfg [rdi]
    "c4e27b49c0" "c4e27b49c8" "c4e27b49d0"  # tilezero tmm0, tmm1, tmm2
    "c4e26a5cc1"  # tdpbf16ps tmm0, tmm1, tmm2
    "c4e27849c0" "c3"  # tilerelease, ret
)
page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(page)))(config)
"""


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What a process that computes with torch needs in its environment; the user's own choice stays."""
    return {} if VARIABLE in environment or amx_works() else {VARIABLE: WITHOUT_AMX}


@cache
def amx_works() -> bool:
    """Whether AMX is not reported, or reported and run."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return True
    try:
        if "amx_tile" not in Path("/proc/cpuinfo").read_text():
            return True
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY], capture_output=True, timeout=TRY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return tried.returncode >= 0  # a signal ended it
