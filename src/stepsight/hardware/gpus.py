"""The GPUs of the catalogue, by name or by any of the names that other tools give them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stepsight.errors import InputError
from stepsight.hardware.data_sheet import complete_gpu, gpu_problems, read_link
from stepsight.hardware.spec import GpuSpec, LinkSpec
from stepsight.records import Table, closest, read_toml, record

USUAL_ERA = "h100"
"""The host era of a GPU whose file names none: the newest that was measured."""
_NO_LINK: Table = {"kind": "none", "gbps": 0.0, "latency_us": 0.0}
CATALOGUE = Path(__file__).parent / "catalogue" / "gpus"


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """A GPU with the link, NIC and host era it usually comes with."""

    gpu: GpuSpec
    link: LinkSpec
    nic: LinkSpec
    host_era: str


def canonical(name: str) -> str:
    """Names are compared without case, blanks, dashes and underscores; GB reads as G."""
    folded = "".join(c for c in name.lower() if c.isalnum())
    return folded.replace("gb", "g")


_VENDORS = re.compile(r"^(nvidia|amd|geforce|tesla|radeon|instinct|rtx|gtx|rx)+(?=\w*\d)")
_SUFFIXES = re.compile(r"(gpu|generation|edition|workstation|oam|hbm\d?e?)+$")


def short(name: str) -> str:
    """A name as `canonical` has it without the vendor, the series and what every board of its kind is called
    (``NVIDIA GeForce RTX 5070 Ti`` is ``5070ti``)."""
    found = _VENDORS.sub("", canonical(name)) or canonical(name)
    return re.sub(r"(?<=\d)blackwell", "", _SUFFIXES.sub("", found))


def gpu_entry_from(table: Table, where: str) -> GpuEntry:
    """The entry that a GPU's TOML tables describe; what its data sheet leaves out is filled in."""
    fields = dict(table)
    link, nic = (
        record(LinkSpec, read_link(fields.pop(key, _NO_LINK), f"{where}: {key}"), f"{where}: {key}")
        for key in ("link", "nic")
    )
    era = str(fields.pop("host", USUAL_ERA))
    gpu = record(GpuSpec, complete_gpu(fields, where), where)
    wrong = gpu_problems(gpu)
    if wrong:
        raise InputError(where, "; ".join(wrong), "take the figures from the data sheet")
    return GpuEntry(gpu, link, nic, era)


@lru_cache(maxsize=1)
def gpu_catalogue() -> dict[str, GpuEntry]:
    """Every GPU of the catalogue by its name."""
    entries = (gpu_entry_from(read_toml(path), path.name) for path in sorted(CATALOGUE.glob("*.toml")))
    return {entry.gpu.name: entry for entry in entries}


@lru_cache(maxsize=1)
def _by_alias() -> dict[str, str]:
    names: dict[str, str] = {}
    for spelt in (short, canonical):
        for entry in gpu_catalogue().values():
            for alias in (entry.gpu.name, *entry.gpu.aliases):
                names[spelt(alias)] = entry.gpu.name
    return names


def find_gpu(name: str) -> GpuEntry | None:
    """The catalogue's entry for a name or alias, or None."""
    known = _by_alias().get(canonical(name)) or _by_alias().get(short(name))
    return gpu_catalogue()[known] if known else None


def ambiguous(name: str) -> tuple[str, ...]:
    """The boards that a short name (``A100``) may mean; none where it names one."""
    *head, last = _words(name)

    def meant(board: str) -> bool:
        words = _words(board)
        at = words[len(head)] if words[: len(head)] == head and len(words) > len(head) else ""
        return at == last or (last[-1:].isalpha() and at.startswith(last))

    found = tuple(board for board in gpu_catalogue() if meant(board))
    return found if len(found) > 1 and find_gpu(name) else ()


def _words(name: str) -> list[str]:
    return name.lower().replace("_", "-").split("-")


def nearest_gpu(name: str) -> str:
    """The GPU that was probably meant, by its names and aliases."""
    close = closest(canonical(name), _by_alias())
    meant = f"did you mean {_by_alias()[close]!r}? " if close else ""
    return f"{meant}`stepsight platforms` lists all; a file describes any other (docs/platforms.md)"


def load_gpu(name: str) -> GpuSpec:
    """The GPU of that name or alias (``A100-SXM4-40G``, ``NVIDIA_A100-SXM4-40GB``, ``V100`` …)."""
    entry = find_gpu(name)
    if entry is None:
        raise InputError(f"GPU {name!r}", "not in the catalogue", nearest_gpu(name))
    return entry.gpu
