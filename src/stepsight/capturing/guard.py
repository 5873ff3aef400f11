"""A CUDA device guard for torch builds that have none: autograd and autocast then run on fake tensors.

torch's C++ asks the registered guard of a device type for the current device and stream. A build without
CUDA registers none and aborts at the first backward pass. The guard installed here is a C++ object whose
every virtual method is the same few bytes of machine code: "return 1 and 0". Read as the guard's answers
that means: device type CUDA, device cuda:0, its default stream, one device, yes. Because all methods are
identical, the order of methods, which changes between torch versions, does not matter.

Two answers of the CUDA hooks are replaced as well: "was CUDA built" (yes) and "does a device have a
context" (no); their positions are read from the headers that torch ships.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import platform
import re
from pathlib import Path
from typing import Any

import torch

_RETURN_ONE = {
    "x86_64": bytes.fromhex("b801000000 31d2 c3"),  # mov eax, 1; xor edx, edx; ret
    "aarch64": bytes.fromhex("200080d2 010080d2 c0035fd6"),  # mov x0, 1; mov x1, 0; ret
}
_RETURN_ZERO = {
    "x86_64": bytes.fromhex("31c0 31d2 c3"),
    "aarch64": bytes.fromhex("000080d2 010080d2 c0035fd6"),
}
_MACHINES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_REGISTRAR = "_ZN3c104impl24DeviceGuardImplRegistrarC1ENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_CUDA = 1
"""c10::DeviceType::CUDA."""
_METHODS = 64
"""More than any guard or hooks interface has had virtual methods (torch 2.4 to 2.15: at most 45)."""

_kept_alive: list[Any] = []


def _keep(*values: Any) -> None:
    """Never freed, not even at the interpreter's end: torch calls the guard until the process is gone."""
    for value in values:
        _kept_alive.append(value)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class GuardUnavailableError(Exception):
    """This machine or torch build does not let the guard be installed."""


def install_guard() -> None:
    """Register the guard and answer the hooks' two questions; raises `GuardUnavailableError`."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise GuardUnavailableError(f"no machine code for {platform.machine()}")
    try:
        yes, no = _executable(_RETURN_ONE[machine]), _executable(_RETURN_ZERO[machine])
        libraries = Path(torch.__file__).parent / "lib"
        _register_guard(libraries, yes)
        _answer_hooks(libraries, yes, no)
    except (OSError, AttributeError, ValueError) as error:
        raise GuardUnavailableError(str(error)) from error


def _executable(code: bytes) -> int:
    """The address of ``code`` in memory that may be executed."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    _keep(page)
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


def _library(folder: Path, name: str) -> ctypes.CDLL:
    for file in (folder / f"lib{name}.so", folder / f"lib{name}.dylib"):
        if file.exists():
            return ctypes.CDLL(str(file))
    raise OSError(f"lib{name} is not in {folder}")


def _register_guard(libraries: Path, method: int) -> None:
    registrar = getattr(_library(libraries, "c10"), _REGISTRAR)
    registrar.argtypes = [ctypes.c_void_p, ctypes.c_int8, ctypes.c_void_p]
    registrar.restype = None
    methods = (ctypes.c_void_p * _METHODS)(*[method] * _METHODS)
    guard = (ctypes.c_void_p * 2)(ctypes.addressof(methods), 0)
    this = ctypes.create_string_buffer(8)
    _keep(methods, guard, this)
    registrar(ctypes.addressof(this), _CUDA, ctypes.addressof(guard))


def _answer_hooks(libraries: Path, yes: int, no: int) -> None:
    """Swap the hooks object's method table for a copy with two methods replaced."""
    get = getattr(_library(libraries, "torch_cpu"), _GET_HOOKS)
    get.restype = ctypes.c_void_p
    table_pointer = ctypes.cast(get(), ctypes.POINTER(ctypes.c_void_p))
    original = table_pointer[0]
    if original is None:
        raise OSError("torch has no CUDA hooks")
    header = 2  # entries before the first method: offset and type information
    copied = (ctypes.c_void_p * (header + 2 * _METHODS))()
    ctypes.memmove(copied, original - 8 * header, ctypes.sizeof(copied))
    for name, answer in (("isBuilt", yes), ("hasPrimaryContext", no)):
        position = _method_position(name)
        if position is not None:
            copied[header + position] = answer
    _keep(copied)
    table_pointer[0] = ctypes.addressof(copied) + 8 * header
    atexit.register(table_pointer.__setitem__, 0, original)


def _method_position(name: str) -> int | None:
    """Where a virtual method of the CUDA hooks stands, counted in the shipped headers."""
    folder = Path(torch.__file__).parent / "include" / "ATen" / "detail"
    position = 0
    for header in ("AcceleratorHooksInterface.h", "CUDAHooksInterface.h"):
        text = re.sub(r"//[^\n]*", "", (folder / header).read_text())
        for match in re.finditer(r"\bvirtual\s+([^\{;=]*?)\(", text.split("Interface", 1)[1]):
            declared = match.group(1)
            if "~" in declared:
                position += 2  # a destructor takes two entries
            elif declared.split()[-1] == name:
                return position
            else:
                position += 1
    return None
