"""NVIDIA's DLRM example: what each rank runs, by the example's source."""

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.dlrm.joint import interaction_columns
from stepsight.workload.files import load_workload

LARGE = "examples/dlrm_nvidia_large.toml"


def kernels(job, rank: int, family: str):
    program = job.programs[job.program_of_rank[rank]]
    return [k for op in program.ops for k in op.kernels if k.family == family]


def test_the_bottom_mlp_runs_on_rank_0_alone_and_for_the_whole_batch():
    job = load_workload(LARGE).job()
    first, other = kernels(job, 0, "gemm"), kernels(job, 3, "gemm")
    assert max(k.dim("m") for k in first) == 65536
    assert max(k.dim("m") for k in other) == 8192
    assert not kernels(job, 0, "embedding")
    assert len(kernels(job, 3, "embedding")) == 1


def test_every_table_is_looked_up_once_and_no_rank_holds_more_than_its_share():
    workload = load_workload(LARGE)
    held = np.bincount([shard.rank for shard in workload.plan.shards], minlength=8)
    assert held.tolist() == [0, *[4] * 5, 3, 3] or (held[0] == 0 and held.max() == 4 and held.sum() == 26)


def test_the_interaction_is_padded_for_tensor_cores():
    assert interaction_columns(load_workload(LARGE).config) == 480  # 128 + 27·26/2 = 479


def test_half_precision_halves_what_is_exchanged():
    def exchanged(precision: str) -> float:
        job = load_workload(LARGE, (f"training.precision={precision}",)).job()
        return sum(
            op.collective.bytes
            for op in job.programs[0].ops
            if op.collective and "all_to_all" in op.collective.kind
        )

    assert exchanged("fp16") == pytest.approx(exchanged("tf32") / 2)


def test_a_graph_helps_where_the_host_is_slow():
    slow = load_platform("8xA100-SXM4-40G", ["host.speed=0.2"])
    times = [
        predict(load_workload(LARGE, (f"training.cuda_graph={on}",)), slow).step_time_us
        for on in ("true", "false")
    ]
    assert times[0] < times[1]


def ops(*changes: str, rank: int = 0):
    job = load_workload(LARGE, changes).job()
    return job.programs[job.program_of_rank[rank]].ops


def test_the_host_stages_the_next_batch_before_it_waits_for_the_device():
    names = [op.name for op in ops(rank=3)]
    staged = [op for op in ops(rank=3) if op.name == "cudaMemcpyAsync"]
    held = len(load_workload(LARGE).plan.on_rank(3))
    assert staged[0].host_bytes == 2 * 8 * 65536 * held  # int64 indices, read and written
    assert names[-1] == "cudaDeviceSynchronize" and names.index("cudaMemcpyAsync") > names.index(
        "Optimizer.step#SGD.step"
    )


def test_a_gradient_scaler_exposes_the_loader():
    def slower(precision: str) -> float:
        job = load_workload(LARGE, (f"training.precision={precision}",))
        slow, fast = (load_platform("8xA100-SXM4-80G", [f"host.speed={s}"]) for s in (0.5, 1.0))
        return predict(job, slow).step_time_us - predict(job, fast).step_time_us

    assert slower("fp16") > 2 * slower("tf32")


def test_autocast_casts_weights_and_gradients_and_apex_the_bottom_mlps_output():
    autocast, apex, full = (
        [k for op in ops(*changes) for k in op.kernels if k.operator == "cast"]
        for changes in (
            ("training.precision=fp16",),
            ("training.precision=fp16", "training.master_weights=true", "training.cuda_graph=false"),
            (),
        )
    )
    layers = 3 + 5
    on_copy_stream = len(full)  # dense features come as fp16
    assert len(autocast) == on_copy_stream + 2 * 2 * layers
    assert len(apex) == on_copy_stream + 4


@pytest.mark.parametrize(
    "change", ["training.optimizer=adam", "dense.interaction=cat", "training.loss=mse", "tables.0.dim=64"]
)
def test_what_the_example_cannot_do_is_refused(change):
    with pytest.raises(InputError, match="nvidia is known for"):
        load_workload(LARGE, (change,))


def test_a_cpu_is_refused():
    with pytest.raises(InputError, match="GPUs alone"):
        load_workload(LARGE).job("cpu")
