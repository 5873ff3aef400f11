"""Whether this machine describes the AMX tiles that it reports.

Some virtual machines list AMX among their processor's features but hide the CPUID leaf that describes tiles.
oneDNN, which computes torch's bf16 products, believes the list, configures no tiles, and dies of an illegal
instruction.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""oneDNN's own switch, and the instructions it may use at most where AMX does not work."""
NOTE = (
    "this machine reports AMX but hides its tiles: bf16 products use AVX-512 "
    f"({VARIABLE}={WITHOUT_AMX}; set it yourself to choose)"
)
TILE_LEAF = 0x1D
"""Intel's CPUID leaf of tile palettes; the first figure is the highest palette, 0 for none."""
_CPUID = bytes.fromhex("53 89f8 89f1 0fa2 5b c3")
"""push rbx; mov eax, edi; mov ecx, esi; cpuid; pop rbx; ret"""


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What a process that computes with torch needs in its environment; the user's own choice stays."""
    return {} if VARIABLE in environment or amx_usable() else {VARIABLE: WITHOUT_AMX}


@cache
def amx_usable() -> bool:
    """Whether AMX is not reported, or reported and described."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return True
    try:
        return "amx_tile" not in Path("/proc/cpuinfo").read_text() or _highest_palette() > 0
    except OSError:  # no such file, or memory may not be executed here
        return True


def _highest_palette() -> int:
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_CPUID)
        start = ctypes.c_char.from_buffer(page)
        cpuid = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)(ctypes.addressof(start))
        highest = 0 if cpuid(0, 0) < TILE_LEAF else cpuid(TILE_LEAF, 0)
        del start, cpuid
    return highest
