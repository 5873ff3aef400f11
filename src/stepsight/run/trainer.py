"""One rank of a workload: model, data, optimizer, a step that can be called again and again; and profiles of
such steps."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, record_function

from stepsight.errors import InputError
from stepsight.run.dlrm import Dlrm, DlrmBatch, LocalTables, TableBatch, dlrm_loss
from stepsight.run.transformers import Transformer
from stepsight.run.worker import Rank
from stepsight.tables.lookup import EMBEDDING_BAG
from stepsight.workload.dlrm.build import DlrmWorkload
from stepsight.workload.dlrm.config import EAGER, TORCHREC_STACK, DlrmConfig
from stepsight.workload.dlrm.embeddings import rank_lookup, replicated
from stepsight.workload.files import Workload
from stepsight.workload.llm.config import LanguageConfig
from stepsight.workload.training import Training

if TYPE_CHECKING:
    from stepsight.run.torchrec import TorchrecSteps

_OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
LEARNING_RATE = 1e-3


class Trainer:
    """Holds one rank's state of one workload; `step` trains on the next batch."""

    def __init__(
        self, workload: Workload, rank: int, device: str, *, batches: int = 8, seed: int = 0
    ) -> None:
        self.workload, self.device = workload, device
        torch.manual_seed(seed)
        generator = np.random.default_rng(seed + 1000 * rank)
        self._torchrec: TorchrecSteps | None = None
        if isinstance(workload, DlrmWorkload) and workload.config.stack == TORCHREC_STACK and device == "cpu":
            from stepsight.run.torchrec import TorchrecSteps

            self._torchrec = TorchrecSteps(workload.config, batches, generator)
            return
        if isinstance(workload, DlrmWorkload):
            self.module, self.batches = _dlrm(workload.config, rank, device, batches, generator)
            bucket_mb = workload.config.bucket_mb
            self.training: Training = workload.config.training
        else:
            training = workload.eager
            if training is None:
                raise InputError(
                    workload.name,
                    "only plain data parallelism is really trained",
                    "leave out framework and axes",
                )
            self.module, self.batches = _transformer(workload.config, device, batches, generator)
            bucket_mb, self.training = workload.config.layout.bucket_mb, training
        self.model: torch.nn.Module = self.module
        if workload.ranks > 1:
            cap = None if bucket_mb == 25 else bucket_mb
            self.model = DistributedDataParallel(self.module, bucket_cap_mb=cap, broadcast_buffers=False)
        self.optimizer = _optimizer(self.training, self.module)
        self.steps = 0
        torch.backends.cuda.matmul.allow_tf32 = self.training.precision == "tf32"

    def step(self) -> None:
        """zero_grad, forward, loss, backward, update."""
        if self._torchrec is not None:
            self._torchrec.step()
            return
        batch = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=self.training.zero_grad == "none")
        else:
            self.module.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._loss(batch)
        if self.training.read_loss:
            loss.item()
        if loss.dim():
            loss.backward(torch.ones_like(loss))
        else:
            loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        if self.training.synchronize and self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def _loss(self, batch: Any) -> torch.Tensor:
        if isinstance(self.workload, DlrmWorkload):
            return dlrm_loss(self.workload.config, self.model(batch), batch.target)
        output: torch.Tensor = self.model(*batch)
        return output

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.training.autocast is None:
            return nullcontext()
        region: AbstractContextManager[Any] = torch.autocast(
            self.device.split(":")[0], _DTYPES[self.training.autocast]
        )
        return region


def _optimizer(training: Training, module: torch.nn.Module) -> torch.optim.Optimizer | None:
    if training.optimizer == "none":
        return None
    fused = True if training.fused_optimizer else None
    return _OPTIMIZERS[training.optimizer](module.parameters(), lr=LEARNING_RATE, fused=fused)


def _dlrm(
    c: DlrmConfig, rank: int, device: str, batches: int, generator: np.random.Generator
) -> tuple[torch.nn.Module, list[Any]]:
    if c.input_dist or replicated(c.plan):
        problem = "input_dist and data-parallel tables can be predicted, not run"
        raise InputError(c.source, problem, "leave input_dist out; shard by table, columns or rows")
    odd = [t.name for t in c.tables if t.weighted or t.features > 1 or t.placement != "device"]
    if odd:
        raise InputError(
            f"{c.source}: table {odd[0]!r}", "weights, features and host placement can be predicted, not run",
            "leave weighted, features and placement out",
        )  # fmt: skip
    if c.stack != EAGER:
        problem = f"{c.stack} can be predicted, not run: run trains with today's torch"
        raise InputError(f"{c.source}: [training]: stack", problem, 'leave it out, or set stack = "eager"')
    if device == "cpu" and c.cpu_lookup != EMBEDDING_BAG:
        problem = f"lookups with {c.cpu_lookup} can be predicted, not run"
        raise InputError(c.source, problem, f'leave out cpu_lookup, or write "{EMBEDDING_BAG}"')
    lookup = rank_lookup(c, c.plan, rank, fused=False)
    tables = LocalTables(lookup, c.batch, device)
    made = []
    for _ in range(batches):
        dense = torch.rand(c.batch_per_rank, c.features, device=device)
        target = torch.randint(0, 2, (c.batch_per_rank, c.top[-1]), device=device).float()
        parts = [TableBatch.sample(lookup, i, generator, device) for i in range(len(lookup.tables))]
        made.append(DlrmBatch(dense, parts, target))
    return Dlrm(c, rank, tables), made


def _transformer(
    c: LanguageConfig, device: str, batches: int, generator: np.random.Generator
) -> tuple[torch.nn.Module, list[Any]]:
    if c.training.recompute != "none":
        problem = "recomputation can be predicted, not run"
        raise InputError(f"{c.source}: [training]: recompute", problem, "leave it out")
    shape = (c.batch_per_rank, c.sequence)
    made = []
    for _ in range(batches):
        ids, target = (
            torch.from_numpy(generator.integers(0, c.model.vocab, shape)).to(device) for _ in range(2)
        )
        made.append((ids, target))
    return Transformer(c, device), made


PART = ".part"
"""Ends the name of a file that is not finished."""
WARM_STEPS = 6
"""Until buckets, buffers and code have found their places."""
RECORDS_END_S = 0.1
"""Gloo's threads close their profiler records after the rank that waited goes on; a profiler that stops
before that frees records in use (one process in thirty died so under torch 2.13)."""


def _warm(rank: Rank, workload: Workload) -> Trainer:
    trainer = Trainer(workload, rank.rank, rank.device)
    for _ in range(WARM_STEPS):
        trainer.step()
    return trainer


def profile_rank(rank: Rank, workload: Workload, folder: str, steps: int) -> tuple[str, str]:
    """Profiles ``steps`` steps after warm-up; returns the two files written, which whoever called renames."""
    trainer = _warm(rank, workload)
    kineto = Path(folder) / f"rank{rank.rank}.pt.trace.json{PART}"
    et = Path(folder) / f"rank{rank.rank}_et.json{PART}"
    with torch.profiler.profile(
        activities=_activities(rank.device),
        record_shapes=True,
        execution_trace_observer=ExecutionTraceObserver().register_callback(str(et)),
    ) as profiler:
        trainer.step()  # the profiler's own first buffers are not part of a step
        for i in range(steps):
            with record_function(f"ProfilerStep#{i + 1}"):
                trainer.step()
        time.sleep(RECORDS_END_S)
    profiler.export_chrome_trace(str(kineto))
    return str(kineto), str(et)


def profile_host(rank: Rank, workload: Workload, folder: str, steps: int) -> str:
    """Profiles ``steps`` steps with as little as possible recorded: the host's times are what is wanted."""
    trainer = _warm(rank, workload)
    with torch.profiler.profile(activities=_activities(rank.device)) as profiler:
        for _ in range(steps):
            trainer.step()
        time.sleep(RECORDS_END_S)
    path = Path(folder) / f"{workload.name}_rank{rank.rank}.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    return str(path)


def _activities(device: str) -> list[ProfilerActivity]:
    on_gpu = [ProfilerActivity.CUDA] if device.startswith("cuda") else []
    return [ProfilerActivity.CPU, *on_gpu]
