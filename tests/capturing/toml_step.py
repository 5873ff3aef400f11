"""The training script behind a workload file: really builds the model with torch and trains it."""

import sys

import torch
import torch.distributed as dist

from stepsight.run.trainer import Trainer
from stepsight.workload.files import load_workload

workload = load_workload(sys.argv[1], sys.argv[2:])
if workload.ranks > 1:
    dist.init_process_group("nccl")
trainer = Trainer(workload, 0, "cuda:0", batches=1)
copied = "dlrm" not in sys.argv[1]
shapes = trainer.batches[:1] if copied else []
host = [tuple(torch.zeros(b.shape, dtype=b.dtype) for b in batch) for batch in shapes]
for _ in range(6):
    if copied:
        trainer.batches = [tuple(b.to("cuda") for b in batch) for batch in host]
    trainer.step()
