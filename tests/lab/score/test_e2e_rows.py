"""Every measured step carries its set, an interval and a naive baseline; missing files are skipped."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.datasets.folder import read_csv
from lab.score.e2e import dlrm, dlrm_multi
from lab.score.e2e.topic import command
from lab.score.steps import StepRow, score

HEADER = (
    "source,url_or_path,framework,model,params_b,task,gpus,gpu,nodes,parallelism,precision,global_batch,"
    "micro_batch,seq,throughput,unit,iter_time_ms,derived,notes,file\n"
)
ROW = (
    "NVIDIA/DeepLearningExamples,PyTorch/Recommendation/DLRM/README.md@HEAD :: A,PyTorch,DLRM small,,,1,"
    "8x A100 80GB,1.0,DDP,AMP,65536.0,64k,,1.0,samples/s,15.0,,,\n"
)
ODD = ROW.replace("AMP", "FP8") + ROW.replace(",15.0,", ",,")
OTHER = "elsewhere,x,HugeCTR,dlrm,,,8,A100,1.0,,,55296.0,,,1.0,samples/s,1.7,,,\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "dlrm_multi_gpu.csv").write_text(HEADER + ROW + ODD + OTHER)
    return tmp_path


def test_rows_of_stacks_without_a_model_are_left_out(folder):
    found = dlrm_multi.rows(folder)
    assert [(r.set, r.measured_ms) for r in found] == [("dlrm_nvidia", 15.0)]
    assert 0 < found[0].low_ms < found[0].predicted_ms < found[0].high_ms
    assert found[0].naive_ms > 0


def test_a_file_that_is_not_there_is_skipped_with_a_line(folder, capsys):
    assert dlrm.rows(folder) == []
    assert "skipped: dlrm_single_gpu.csv" in capsys.readouterr().err
    assert dlrm_multi.scores([]) == []


def test_only_other_predictors_stand_beside_our_line():
    row = StepRow("a", 100.0, 101.0, 50.0, others=(("published", 110.0),))
    ours, naive, other = score("e2e", "steps", [row], "all")
    assert ours.predictor == ""
    assert [(line.predictor, line.same_rows_as) for line in (naive, other)] == [
        ("naive sum of kernels", "steps"), ("published", "steps"),
    ]  # fmt: skip


def test_each_row_as_json(folder):
    result = CliRunner().invoke(command, ["--data", str(folder), "--each", "--json"])
    assert result.exit_code == 0, result.output
    assert '"set": "dlrm_nvidia"' in result.stdout


@pytest.mark.data
def test_nvidias_rows_hold_their_bar(measured_data):
    found = dlrm_multi.rows(measured_data)
    score = dlrm_multi.scores(found)[0]
    assert score.rows == sum(
        r["source"] == dlrm_multi.NVIDIA for r in read_csv(measured_data / dlrm_multi.FILE)
    )
    assert score.met, f"GMAE {score.gmae:.2%}"
    assert 0.85 <= sum(r.inside for r in found) / len(found) <= 1.0
