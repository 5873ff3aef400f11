"""A run's own source left out of the models that were fitted on traces.

The host tables are made again without its traces, the lookup model is fitted again without its kernels, and
the slowdowns of concurrent work come from the other traces. Constants of reading traces (medians over
sources), shares and start times of streaming kernels stay as they ship.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

from lab.datasets.folder import data_folder
from lab.fit.embedding.gpu import fit_coefficients
from lab.fit.embedding.points import measured_kernels
from lab.fit.overheads.shipped import Sessions, shipped_sets, trace_sessions
from stepsight.errors import InputError
from stepsight.kernels.embedding.gpu import GpuCoefficients
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.kernels.models import KernelModels
from stepsight.overheads.tables import Overheads
from stepsight.platform.load import Platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.traced.predict import traced_step
from stepsight.trace.platforms import own_platform
from stepsight.trace.run import TraceRun

COLLECTIONS = ("liplus", "meta_dlrm", "nanogpt", "resnet50_V100", "tracelens")
"""Folders whose names begin with one of these are one source: the same people recorded them."""

_KERNELS = {"dlrm_8xV100": "trace param", "meta_dlrm": "trace hta"}
"""Sources whose lookup kernels are in trace_kernels.parquet, and what they are called there."""
SIDE_BY_SIDE: Mapping[str, Mapping[str, tuple[float, int]]] = {
    "compute_under_comm": {
        "torchrec_dlrm_4xV100": (1.06, 29), "meta_dlrm": (1.01, 21), "resnet50_ddp_A100_rank0of2": (1.10, 15),
        "nanogpt": (1.01, 2),
    },
    "comm_under_compute": {"torchrec_dlrm_4xV100": (1.13, 1)},
    "compute_beside_compute": {"torchrec_dlrm_4xV100": (1.67, 142), "meta_dlrm": (2.17, 1)},
}  # fmt: skip
"""Slowdowns by the source they were read off, with the kinds of kernel seen (`collectives.constants`)."""


@dataclass(frozen=True)
class RefittedPlatform(Platform):
    """A platform some of whose models were fitted again."""

    tables: Mapping[str, Overheads] | None = None
    coefficients: GpuCoefficients | None = None

    @cached_property
    def overheads(self) -> Overheads:
        if self.tables is None:
            return super().overheads
        host = self.spec.host
        table = self.tables.get(host.name) or next(iter(self.tables.values()))
        return table.scaled(1.0 / host.speed) if host.speed != 1.0 else table

    @cached_property
    def kernels(self) -> KernelModels:
        models = KernelModels.for_gpu(self.spec.gpu)
        if self.coefficients is not None:
            models._embedding = EmbeddingModel(self.spec.gpu, self.coefficients)
        return models


@dataclass
class Refits:
    """What is fitted again without a source; each source's fits are made once.

    ``data`` is the folder of measured tables that the shipped models were fitted from, whatever folder is
    scored: nothing is fitted on what is scored. Without it host tables and lookups stay as shipped.
    """

    data: Path | None
    _platforms: dict[str, tuple[Mapping[str, Overheads] | None, GpuCoefficients | None]] = field(
        default_factory=dict
    )

    @classmethod
    def from_tables(cls) -> Refits:
        """Fits from the usual folder of measured tables, where there is one."""
        try:
            return cls(data_folder())
        except InputError:
            return cls(None)

    @cached_property
    def _sessions(self) -> Sessions | None:
        if self.data is None or not (self.data / "overheads").is_dir():
            return None
        return trace_sessions(self.data / "traces")

    def platform(self, own: Platform, folder: str) -> Platform:
        """A machine with the models that never saw the source of a folder."""
        source = source_of(folder)
        if source not in self._platforms:
            self._platforms[source] = self._tables(source), self._coefficients(source)
        tables, coefficients = self._platforms[source]
        known = own.spec.contention
        changed = {name: v for name, v in _side_by_side(source).items() if getattr(known, name) > 1.0}
        contention = replace(
            known,
            compute_under_comm=changed.get("compute_under_comm", known.compute_under_comm),
            comm_under_compute=changed.get("comm_under_compute", known.comm_under_compute),
            compute_beside_compute=changed.get("compute_beside_compute", known.compute_beside_compute),
        )
        values = {f.name: getattr(own, f.name) for f in fields(Platform) if f.init}
        values["spec"] = replace(own.spec, contention=contention)
        return RefittedPlatform(**values, tables=tables, coefficients=coefficients)

    def _tables(self, source: str) -> Mapping[str, Overheads] | None:
        if self.data is None or self._sessions is None:
            return None
        kept = {
            era: [s for s in sessions if source_of(s.host) != source]
            for era, sessions in self._sessions.items()
        }
        return shipped_sets(self.data, kept)

    def _coefficients(self, source: str) -> GpuCoefficients | None:
        named = _KERNELS.get(source)
        if named is None or self.data is None:
            return None
        points = measured_kernels(self.data)
        kept = [p for p in points if not p.source.startswith(named)]
        return fit_coefficients(kept) if len(kept) < len(points) else None


def _side_by_side(source: str) -> dict[str, float]:
    """Slowdowns by the other sources; none at all where there is no other."""
    values = {}
    for name, seen in SIDE_BY_SIDE.items():
        if source not in seen:
            continue
        others = [found for of, found in seen.items() if of != source]
        kinds = sum(count for _, count in others)
        values[name] = sum(value * count for value, count in others) / kinds if others else 1.0
    return values


def source_of(folder: str) -> str:
    """The source that a folder of traces belongs to."""
    return next((name for name in COLLECTIONS if folder.startswith(name)), folder)


def left_out_prediction(run: TraceRun, folder: str, refits: Refits) -> Prediction:
    """The run's step by models that never saw its source."""
    own, _ = own_platform(run)
    return traced_step(run, models_only=True, machine=refits.platform(own, folder)).predicted()
