import numpy as np
import pytest

from lab.score.sharding.tasks import Scale, population, random_task, task_workload
from stepsight.hardware.spec import GpuSpec
from stepsight.kernels.embedding.model import EmbeddingModel
from stepsight.platform.load import load_platform
from stepsight.sharding.loads import Loads, PartCosts, ScaledLookups
from stepsight.sharding.steps import PlanPricer

SMALL = Scale(most_rows=200_000, tables_per_rank=(4, 6), batches=(4096,))


@pytest.fixture(scope="session")
def pricer():
    """A heavy task on four V100s."""
    task = random_task(4, 1, SMALL)
    return PlanPricer(task_workload(task), load_platform("4xV100-SXM2"))


class PaperPricer:
    """Prices by lookups alone: the step is the busiest rank's. Exchange and dense part are free."""

    def __init__(self, tables, ranks, gpu: GpuSpec, batch=4096, days=None):
        self.ranks = ranks
        self.costs = PartCosts(
            days or [tables], batch, ranks, ScaledLookups(EmbeddingModel.for_gpu(gpu)), together=1
        )

    def times(self, loads: Loads):
        return (loads.forward_us + loads.backward_us).max(axis=-1)

    def step_us(self, plans):
        return self.times(self.costs.loads(plans))

    def copy_us(self, loads: Loads):
        return np.zeros_like(loads.lookups)

    def exchange_us_per_column(self, loads: Loads) -> float:
        return 0.0


@pytest.fixture(scope="session")
def on_paper():
    gpu = load_platform("1xV100-SXM2").spec.gpu
    return lambda tables, ranks, **more: PaperPricer(tables, ranks, gpu, **more)


@pytest.fixture
def some_tables():
    return population(12, 5, SMALL)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
