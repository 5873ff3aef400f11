import pytest

from lab.fit.dlrm_study import (
    MODELS,
    ActiveRow,
    active_ms,
    batch_speeds,
    board_speeds,
    shipped_speeds,
    speeds_without,
)
from lab.score.e2e.dlrm import machine
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.workload.files import load_workload


def test_the_active_time_follows_from_the_published_errors():
    row = {
        "iter_ms_digitised": "10.0",
        "paper_kernel_only_error_pct": "-10.0",
        "paper_active_error_pct": "-5.0",
    }
    assert active_ms(row) == pytest.approx(9.0 / 0.95)
    assert active_ms({**row, "paper_kernel_only_error_pct": "-35.0"}) is None


def test_a_model_never_votes_on_its_own_board_speed():
    rows = [ActiveRow("V100", "DLRM_default", 10.0, 9.0), ActiveRow("V100", "DLRM_MLPerf", 10.0, 8.0)]
    speeds = board_speeds(rows)["V100"]
    assert speeds["DLRM_default"] == pytest.approx(0.8)
    assert speeds["DLRM_MLPerf"] == pytest.approx(0.9)
    assert speeds["DLRM_DDP"] == pytest.approx((0.8 * 0.9) ** 0.5, rel=1e-3)


def test_shipped_speeds_are_those_of_real_boards():
    shipped = shipped_speeds()
    for gpu, by_model in shipped.without_model.items():
        assert set(by_model) == set(MODELS)
        assert all(0.7 < speed < 1.2 for speed in by_model.values())
        assert all(0.7 < shipped.of(gpu, MODELS[0], 512, what) < 1.2 for what in ("model", "GPU", "batch"))


def test_a_board_and_a_batch_size_have_no_vote_on_themselves():
    rows = [ActiveRow("V100", "a", 10.0, 9.0, 1024), ActiveRow("V100", "a", 10.0, 8.0, 4096),
            ActiveRow("Xp", "a", 10.0, 7.0, 1024)]  # fmt: skip
    assert speeds_without(rows, lambda row: row.gpu)["V100"] == pytest.approx(0.7)
    assert batch_speeds(rows)["V100"] == pytest.approx({"1024": 0.8, "4096": 0.9})
    assert batch_speeds(rows)["Xp"] == {}


def test_each_model_has_a_host_without_its_own_times():
    hosts = {model: machine(model, "V100").overheads for model in MODELS}
    assert len({table.provenance for table in hosts.values()}) == 3
    assert all(table.launch_us() == 4.0 for table in hosts.values())


def test_a_slower_board_takes_longer():
    workload = load_workload("examples/dlrm.toml", ("batch=65536",))
    usual, slow = (
        predict(workload, load_platform("4xV100-SXM2", overrides)) for overrides in ([], ["gpu.speed=0.8"])
    )
    kernels = [sum(r.compute_us for r in p.ranks) for p in (usual, slow)]
    assert kernels[1] == pytest.approx(kernels[0] / 0.8, rel=0.02)
