"""From a name or a path to a platform with its models.

Names read ``[NODESx]GPUSx<gpu>[-<NIC>G]``: ``4xV100-SXM2``, ``8xA100-SXM4-40G``,
``2x8xH100-SXM-400G`` (two nodes of eight, one 400 Gb/s NIC per GPU). A path names a
user's own platform: a TOML file, or the folder that ``stepsight calibrate`` wrote.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsight.collectives.site import SiteBandwidth, read_site
from stepsight.errors import InputError
from stepsight.hardware.data_sheet import GBIT_PER_GBYTE, check_platform, read_link
from stepsight.hardware.gpus import (
    GpuEntry,
    ambiguous,
    find_gpu,
    gpu_catalogue,
    gpu_entry_from,
    load_gpu,
    nearest_gpu,
)
from stepsight.hardware.spec import ContentionSpec, HostSpec, LinkSpec, PlatformSpec
from stepsight.inputs import is_there, number, read_text, whole
from stepsight.overheads.tables import Overheads
from stepsight.platform.conditions import NOTHING_LEARNED, Conditions, Learned, contention_of, read_learned
from stepsight.platform.evidence import Evidence, note, read_evidence
from stepsight.records import Table, assigned, override, read_toml, record, section
from stepsight.terminal import counted

if TYPE_CHECKING:
    from stepsight.collectives.models import CollectiveModels
    from stepsight.kernels.models import KernelModels


__all__ = ["Platform", "load_gpu", "load_platform"]

CALIBRATION_FILE = "calibration.json"

_NAME = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<gpus>\d+)x(?P<rest>.+)", re.IGNORECASE)
NETWORKS = ("infiniband", "roce", "efa", "slingshot", "ethernet")
_NIC = re.compile(rf"(?P<gpu>.+)-(?P<nic>\d+)G(?:-(?P<kind>{'|'.join(NETWORKS)}))?", re.IGNORECASE)
USUAL_NODE = 8
"""GPUs of most servers (HGX, DGX)."""
HGX = 8
"""GPUs that the NVSwitches of one board join (HGX since Hopper)."""
RACKS = {"GB200-186G": 72, "GB300-288G": 72}
"""GPUs whose NVLink leaves the tray: GB200 and GB300 NVL72, eighteen trays."""
TRAY = 4
"""GPUs of one tray of such a rack."""
LEAST_PRICE = 1e-6
MOST_ON_ONE_HOST = 16
"""PCIe and xGMI servers, DGX-2 and HGX A100 have at most sixteen GPUs."""


@dataclass(frozen=True, repr=False)
class Platform:
    """A platform's figures and, made when first asked for, its fitted models.

    Their code loads then, too: a trace on its own machine asks none of them.
    """

    spec: PlatformSpec
    folder: Path | None = None
    site: SiteBandwidth | None = None
    learned: Learned = NOTHING_LEARNED
    evidence: Evidence | None = None
    """What the learned factors come from."""

    def __repr__(self) -> str:
        return f"<Platform {self.name}: {self.spec.ranks:,} × {self.spec.gpu.name}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def recipe(self) -> str | None:
        """The training stack that its runs look like, of jobs that name none (empty: the usual one); None
        where nothing was learned."""
        return self.evidence.recipe if self.evidence else None

    @cached_property
    def kernels(self) -> KernelModels:
        from stepsight.kernels.models import KernelModels

        return (
            KernelModels.load(self.folder, self.spec.gpu)
            if self.folder
            else KernelModels.for_gpu(self.spec.gpu)
        )

    @cached_property
    def collectives(self) -> CollectiveModels:
        from stepsight.collectives.models import CollectiveModels

        if self.folder:
            return CollectiveModels.load(self.folder, self.spec)
        return CollectiveModels(self.spec)

    @cached_property
    def conditions(self) -> Conditions:
        """What a running job finds here: models under sustained clock, site and learned factors."""
        return Conditions(self.spec, self.kernels, self.collectives, self.learned, self.site)

    @cached_property
    def overheads(self) -> Overheads:
        host = self.spec.host
        path = self.folder / "overheads.json" if self.folder else None
        table = Overheads.load(path) if path and path.exists() else Overheads.default(host.name)
        return table.scaled(1.0 / host.speed) if host.speed != 1.0 else table

    @cached_property
    def rehearsal_spread(self) -> float:
        """Standard deviation of ln(predicted / measured) over the steps that were trained at the end of a
        folder's calibration; zero for other platforms."""
        path = self.folder / CALIBRATION_FILE if self.folder else None
        if path is None or not path.exists():
            return 0.0
        try:
            content = json.loads(read_text(path, "calibrate again"))
            errors = [float(e) for e in content.get("rehearsal_error", {}).values()]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                str(path), f"is not a calibration's account ({error})", "calibrate again"
            ) from None
        return (sum(e * e for e in errors) / len(errors)) ** 0.5 if errors else 0.0

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the platform before trusting an answer."""
        spec, most = self.spec, _joined(self.spec)
        learned = (note(self.learned, self.evidence),) if self.evidence else ()
        changed = (*board_taken(spec.name, spec.gpu.name), *_changed(spec), *learned)
        if spec.gpus_per_node <= most:
            return (*changed, *_trays(spec))
        nodes = spec.nodes * -(-spec.gpus_per_node // USUAL_NODE)
        return (
            *changed,
            f"{spec.gpus_per_node} GPUs in one node: machines with this link have at most {most}; "
            f"for nodes of {USUAL_NODE} write {nodes}x{USUAL_NODE}x{_board(spec)}",
        )

    def with_ranks(self, ranks: int, lower: str = "parallel.ranks") -> Platform:
        """The same platform, refused where it has fewer GPUs than the job needs; ``lower`` says what makes
        the job smaller."""
        if ranks > self.spec.ranks:
            has = f"has {counted(self.spec.ranks, 'GPU')}, the workload needs {ranks}"
            raise InputError(f"platform {self.name}", has, f"name a larger platform, or lower {lower}")
        return self


def _joined(spec: PlatformSpec) -> int:
    """GPUs that one link joins at most."""
    older = spec.gpu.architecture in ("volta", "ampere")
    if spec.link.kind != "nvswitch" or older:
        return MOST_ON_ONE_HOST
    return RACKS.get(spec.gpu.name, HGX)


def board_taken(name: str, gpu: str = "") -> tuple[str, ...]:
    """A note where a platform's name has several boards to choose from: which one it takes, or ``gpu``."""
    short, _ = _board_and_network(name)
    boards = ambiguous(short)
    entry = find_gpu(short)
    taken = gpu or (entry.gpu.name if entry else "")
    if taken not in boards:
        return ()
    return (f"{short} is taken as {taken}; others: {', '.join(one for one in boards if one != taken)}",)


def _board_and_network(name: str) -> tuple[str, str]:
    """The GPU of a platform's name, and what the name says of the NIC: ``H100-SXM``, ``-400G``."""
    match = _NAME.fullmatch(name)
    asked = match["rest"] if match else name
    with_nic = _NIC.fullmatch(asked)
    short = asked if find_gpu(asked) or not with_nic else with_nic["gpu"]
    return short, asked[len(short) :]


def _board(spec: PlatformSpec) -> str:
    """The GPU as a platform's name has it, with the NIC that the name gives."""
    return spec.gpu.name + _board_and_network(spec.name)[1]


def _changed(spec: PlatformSpec) -> tuple[str, ...]:
    """A note where a GPU of the catalogue has other figures than there: nobody has measured that one."""
    from stepsight.kernels.changed_gpu import changed_figures

    fields = changed_figures(spec.gpu)
    if not fields:
        return ()
    return (
        f"{spec.gpu.name} with another {', '.join(fields)}: kernels keep the share of the speed of light that"
        " they reach on the real one, and intervals widen",
    )


def _trays(spec: PlatformSpec) -> tuple[str, ...]:
    """A note where a rack was described by its trays: a node is what one link joins."""
    if spec.gpu.name not in RACKS or spec.nodes == 1 or spec.gpus_per_node > TRAY:
        return ()
    rack = RACKS[spec.gpu.name]
    together = max(n for n in range(1, rack + 1) if spec.ranks % n == 0)
    nodes = "" if together == spec.ranks else f"{spec.ranks // together}x"
    return (
        f"a node is all that one link joins: {spec.gpus_per_node} GPUs here, and NICs join nodes; in a rack"
        f" NVLink joins up to {rack} {spec.gpu.name}: for racks write {nodes}{together}x{_board(spec)}",
    )


def with_gpus(platform: Platform, gpus: int) -> Platform | None:
    """A platform of the catalogue with this many GPUs, in nodes as it has them or of eight; None where it is
    a user's own or its figures were changed."""
    spec = platform.spec
    if platform.folder or platform.evidence or not _NAME.fullmatch(spec.name):
        return None
    per_node = spec.gpus_per_node if spec.nodes > 1 else max(spec.gpus_per_node, min(gpus, USUAL_NODE))
    nodes, rest = divmod(gpus, per_node)
    try:
        if rest or _named(spec.name) != spec:
            return None
    except InputError:  # a name in a user's file
        return None
    return load_platform(f"{f'{nodes}x' if nodes > 1 else ''}{per_node}x{_board(spec)}")


def load_platform(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Platform:
    """The platform of that name, or the one described at that path.

    ``overrides`` are assignments such as ``link.gbps=100`` or ``host.speed=2``.
    """
    text = str(name_or_path)
    path = Path(text)
    there = is_there(path)
    if (there and path.is_dir()) or (path.suffix == ".toml" and (there or not _NAME.fullmatch(text))):
        return _from_path(path, overrides)
    spec = _named(text)
    spec = _overridden(spec, overrides) if overrides else spec
    return Platform(check_platform(spec, f"platform {text}"))


def _named(name: str) -> PlatformSpec:
    if "," in name:
        raise InputError(
            f"platform {name!r}", "must be one", "for several: stepsight sweep … --over platform=A,B"
        )
    match = _NAME.fullmatch(name.strip())
    if not match:
        if find_gpu(name):
            return _named(f"1x{name}")
        raise InputError(
            f"platform {name!r}", "neither a name of the form 8xA100-SXM4-40G nor a path that exists",
            "`stepsight platforms` lists what there is",
        )  # fmt: skip
    nodes, gpus, rest = int(match["nodes"] or 1), int(match["gpus"]), match["rest"]
    entry, nic = _gpu_and_nic(rest, name)
    if nodes < 1 or gpus < 1:
        raise InputError(f"platform {name!r}", "needs at least one GPU", "write 1x…")
    return _spec(name, entry, gpus, nodes, nic)


def _gpu_and_nic(text: str, platform: str) -> tuple[GpuEntry, LinkSpec | None]:
    """The GPU, and the NIC where the name ends in one (``-400G``, ``-400G-EFA``); a path is a GPU's file."""
    if text.endswith(".toml"):
        return gpu_entry_from(read_toml(text), text), None
    entry = find_gpu(text)
    if entry:
        return entry, None
    with_nic = _NIC.fullmatch(text)
    entry = find_gpu(with_nic["gpu"]) if with_nic else None
    if entry is None or with_nic is None:
        raise InputError(f"platform {platform!r}", f"unknown GPU {text!r}", nearest_gpu(text))
    gbps, kind = float(with_nic["nic"]) / GBIT_PER_GBYTE, (with_nic["kind"] or entry.nic.kind).lower()
    return entry, replace(entry.nic, gbps=gbps, kind=kind, source="given in the name")


def _spec(name: str, entry: GpuEntry, gpus: int, nodes: int, nic: LinkSpec | None) -> PlatformSpec:
    nic = (nic or entry.nic) if nodes > 1 else None
    spec = PlatformSpec(name, entry.gpu, gpus, nodes, entry.link, nic, HostSpec(entry.host_era))
    return replace(spec, contention=contention_of(spec))


def _from_path(path: Path, overrides: Sequence[str]) -> Platform:
    file = path / "platform.toml" if path.is_dir() else path
    content = read_toml(file)
    if "based_on" in content:
        return _based_on(content, file, overrides)
    if "gpu" not in content and "memory_gb" in content:  # a GPU's own file: one of it
        content = {"name": str(content.get("name", path.stem)), "gpu": content}
    merged = override(_without_replaced_rates(content, overrides), overrides, str(file))
    table = _with_peaks_of_clock(content, merged)
    site = read_site(table.pop("site"), f"{file}: site") if "site" in table else None
    learned = (
        read_learned(table.pop("learned"), f"{file}: learned") if "learned" in table else NOTHING_LEARNED
    )
    spec = check_platform(_spec_from(table, str(file)), str(file))
    if site is not None and spec.nodes == 1:
        raise InputError(f"{file}: site", "has no effect on one node", "leave it out, or set nodes")
    _check_learned(learned, spec, f"{file}: learned")
    return Platform(spec, path if path.is_dir() else None, site, learned)


def _based_on(content: Table, file: Path, overrides: Sequence[str]) -> Platform:
    """Another platform, by its name or its path from this file, with what its own runs taught.

    Factors on what the platform lacks are kept: with other ``overrides`` it may have it.
    """
    section(content, ("name", "based_on", "learned", "learned_from"), str(file))
    base = str(content["based_on"])
    near = file.parent / base
    if near.resolve() == file.resolve():
        raise InputError(f"{file}: based_on", "names the file itself", "name the platform that runs were on")
    found = load_platform(near if near.exists() else base, overrides)
    return replace(
        found,
        spec=replace(found.spec, name=str(content.get("name", file.stem))),
        learned=read_learned(content.get("learned", {}), f"{file}: learned"),
        evidence=read_evidence(content["learned_from"], f"{file}: learned_from")
        if "learned_from" in content
        else None,
    )


def _check_learned(learned: Learned, spec: PlatformSpec, where: str) -> None:
    """Refuses factors on what the platform does not have."""
    absent = {
        "link": spec.gpus_per_node == 1,
        "network": spec.nodes == 1,
        "network_per_doubling": spec.nodes < 4,
    }
    for name in learned.changed:
        if absent.get(name):
            raise InputError(f"{where}.{name}", "has no effect on this platform", "leave it out")


_OTHER_WORDS = {
    **dict.fromkeys(("network", "ib", "infiniband", "ethernet", "rdma"), "nic"),
    **dict.fromkeys(("nvlink", "interconnect", "pcie"), "link"), "cpu": "host",
    "power_w": "gpu.power_w", "memory_gb": "gpu.memory_gb", "memory_gbps": "gpu.memory_gbps",
}  # fmt: skip
"""Parts of a platform by names that people use."""


def _spec_from(table: Table, where: str) -> PlatformSpec:
    """A user's platform: a GPU by name or in full, then whatever differs from the usual."""
    known = (
        "name", "gpu", "gpus_per_node", "nodes", "link", "nic", "host", "contention", "source",
        "price_per_gpu_hour",
    )  # fmt: skip
    for key in set(table) & set(_OTHER_WORDS):
        raise InputError(f"{where}.{key}", "unknown key", f"did you mean {_OTHER_WORDS[key]}?")
    section(table, known, where)
    gpu = table.get("gpu")
    if isinstance(gpu, dict):
        entry = gpu_entry_from(gpu, f"{where}: gpu")
    elif isinstance(gpu, str) and find_gpu(gpu):
        entry = find_gpu(gpu) or next(iter(gpu_catalogue().values()))
    else:
        raise InputError(
            f"{where}: gpu",
            "must name a GPU of the catalogue or describe one",
            nearest_gpu(str(gpu)),
        )
    gpus, nodes = (whole(table.get(key, 1), f"{where}: {key}") for key in ("gpus_per_node", "nodes"))
    price = table.get("price_per_gpu_hour")
    usual = _spec(str(table.get("name", Path(where).stem)), entry, gpus, nodes, None)
    return replace(
        usual,
        link=_merged(LinkSpec, usual.link, table.get("link"), f"{where}: link"),
        nic=_merged(LinkSpec, usual.nic or entry.nic, table["nic"], f"{where}: nic")
        if "nic" in table
        else usual.nic,
        host=_merged(HostSpec, usual.host, table.get("host"), f"{where}: host"),
        contention=_merged(ContentionSpec, usual.contention, table.get("contention"), f"{where}: contention"),
        price_per_gpu_hour=None
        if price is None
        else number(price, f"{where}: price_per_gpu_hour", least=LEAST_PRICE),
    )


def _merged(kind: type[Any], usual: Any, given: object, where: str) -> Any:
    if given is None:
        return usual
    given = section(given, (*usual.__slots__, "gbit_per_s"), where)
    fields = {name: getattr(usual, name) for name in usual.__slots__}
    if kind is not LinkSpec:
        return record(kind, {**fields, **given}, where)
    return record(LinkSpec, {**fields, **read_link(given, where)}, where)


def _overridden(spec: PlatformSpec, overrides: Sequence[str]) -> PlatformSpec:
    """``link.gbps=100``, ``gpu.memory_gbps=2000``, ``nodes=2`` … on a named platform."""
    table: Table = {
        "name": spec.name,
        "gpu": _fields(spec.gpu),
        "gpus_per_node": spec.gpus_per_node,
        "nodes": spec.nodes,
        "link": _fields(spec.link),
        "host": _fields(spec.host),
        "contention": _fields(spec.contention),
    }
    if spec.nic:
        table["nic"] = _fields(spec.nic)
    where = f"platform {spec.name}"
    merged = override(_without_replaced_rates(table, overrides), overrides, where)
    changed = _with_peaks_of_clock(table, merged)
    if isinstance(changed["gpu"], str):  # --set platform.gpu=H100-SXM: another GPU, its own links
        changed.pop("link"), changed.pop("host")
    return _spec_from(changed, where)


def _without_replaced_rates(table: Table, overrides: Sequence[str]) -> Table:
    """The table less rates in GB/s that are set in Gb/s, and the other way round: what is set counts."""
    paths = {path for path, _ in assigned(overrides)}
    kept = dict(table)
    for link in ("link", "nic"):
        given = kept.get(link)
        for unit, other in (("gbps", "gbit_per_s"), ("gbit_per_s", "gbps")):
            if f"{link}.{unit}" in paths and f"{link}.{other}" not in paths and isinstance(given, dict):
                kept[link] = {key: value for key, value in given.items() if key != other}
    return kept


def _with_peaks_of_clock(before: Table, after: Table) -> Table:
    """The changed platform; its peaks move with multiprocessors and clock unless they were set themselves."""
    old, new = before.get("gpu"), after.get("gpu")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return after
    peaks = old.get("peak_tflops")
    if not isinstance(peaks, dict) or new.get("peak_tflops") != peaks:
        return after
    rates = [_product(table.get("sms"), table.get("clock_mhz")) for table in (old, new)]
    if rates[0] <= 0 or rates[1] <= 0:
        return after  # refused with all other figures
    factor = rates[1] / rates[0]
    moved = {dtype: tflops * factor if _is_positive(tflops) else tflops for dtype, tflops in peaks.items()}
    return {**after, "gpu": {**new, "peak_tflops": moved}}


def _product(sms: Any, clock_mhz: Any) -> float:
    return float(sms * clock_mhz) if _is_positive(sms) and _is_positive(clock_mhz) else 0.0


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _fields(value: Any) -> Table:
    fields = {name: getattr(value, name) for name in value.__slots__}
    return {
        k: (dict(v) if isinstance(v, dict) else list(v) if isinstance(v, tuple) else v)
        for k, v in fields.items()
    }
