"""Bags of different length and weighted lookups, from the file to the kernels and exchanges."""

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.platform.load import load_platform
from stepsight.prediction.predict import predict
from stepsight.sharding.steps import PlanPricer
from stepsight.workload.files import parse_workload


def dlrm(ranks: int = 2, **table: object):
    usual = {"count": 4, "rows": 200_000, "dim": 64, "pooling": 20.0}
    return parse_workload(
        {
            "kind": "dlrm", "batch": 2048,
            "dense": {"features": 16, "bottom": [32, 64], "top": [32, 1]},
            "tables": [{**usual, **table}],
            "parallel": {"ranks": ranks, "input_dist": True} if ranks > 1 else {"ranks": 1},
        },
        "x",
    )  # fmt: skip


def collective(workload, name: str):
    return next(
        op.collective for op in workload.job().programs[0].ops if op.collective and op.collective.name == name
    )


def test_longer_tails_never_make_the_lookup_shorter():
    def lookup_us(spread: float) -> float:
        found = predict(dlrm(1, pooling={"mean": 20.0, "spread": spread}), load_platform("1xV100-SXM2-16G"))
        return found.breakdown_us["embedding"]

    times = [lookup_us(spread) for spread in (0.0, 0.4, 0.8, 1.6)]
    assert times == sorted(times)
    assert times[-1] > 1.05 * times[0]


def test_a_mean_without_spread_is_the_number():
    assert dlrm(pooling={"mean": 20.0}).tables == dlrm().tables


def test_ranks_send_different_amounts_where_bags_differ():
    alike, uneven = (collective(dlrm(pooling=p), "indices") for p in (20.0, {"mean": 20.0, "spread": 1.0}))
    assert np.ptp(alike.send_bytes) == 0
    assert uneven.bytes > alike.bytes
    assert uneven.send_bytes.sum() == pytest.approx(alike.send_bytes.sum())


def test_weights_travel_with_the_indices():
    plain, weighted = (collective(dlrm(weighted=w), "indices").bytes for w in (False, True))
    assert weighted == pytest.approx(1.5 * plain)


@pytest.mark.parametrize("table", [{"weighted": True}, {"pooling": {"mean": 20.0, "spread": 1.2}}])
def test_plans_are_priced_with_weights_and_tails(table):
    platform = load_platform("2xV100-SXM2")
    workload = dlrm(**table)
    pricer = PlanPricer(workload, platform)
    assert pricer.step_us([workload.plan])[0, 0] == pytest.approx(
        predict(workload, platform).step_time_us, rel=1e-3
    )


def test_lengths_come_from_the_index_file(tmp_path):
    lengths = np.array([[1, 2, 30, 7]])
    path = tmp_path / "day.npz"
    np.savez(path, indices=np.arange(40) % 11, offsets=np.array([0, 1, 3, 33, 40]), lengths=lengths)
    (table,) = dlrm(1, count=1, pooling="file", indices={"file": str(path)}).tables
    assert table.pooling == 10.0
    assert table.bag_spread == pytest.approx(np.sqrt(np.log1p(lengths.var() / 100)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"pooling": "file"}, "no index file"),
        ({"pooling": {"spread": 1.0}}, "mean"),
        ({"pooling": {"mean": 2.0, "spread": 9.0}}, "between 0 and 3"),
        ({"pooling": {"mean": 2.0, "deviation": 1.0}}, "unknown field"),
    ],
)
def test_mistakes_are_named(table, message):
    with pytest.raises(InputError, match=message):
        dlrm(1, **table)


@pytest.mark.parametrize("field", [{"bucket_mb": 50}, {"exchange_dtype": "fp16"}, {"input_dist": True}])
def test_fields_about_exchanges_are_refused_on_one_rank(field):
    document = {
        "kind": "dlrm", "batch": 64, "dense": {"features": 8, "bottom": [8], "top": [1]},
        "tables": [{"rows": 100, "dim": 8}], "parallel": {"ranks": 1, **field},
    }  # fmt: skip
    with pytest.raises(InputError, match="no effect on one rank"):
        parse_workload(document, "x")
    usual = {**document, "parallel": {"ranks": 1, "bucket_mb": 25, "exchange_dtype": "fp32"}}
    assert parse_workload(usual, "x").ranks == 1
    assert parse_workload({**document, "parallel": {"ranks": 2, **field}}, "x").ranks == 2
