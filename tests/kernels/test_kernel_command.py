"""``stepsight kernel`` as a user types it."""

import json
from pathlib import Path

from click.testing import CliRunner

from stepsight.commands.kernel import command as kernel
from stepsight.errors import InputError


def test_one_kernel_as_json() -> None:
    args = ["gemm", "--gpu", "A100-SXM4-40G", "--dtype", "bf16", "--dim", "m=4096", "--dim", "n=4096",
            "--dim", "k=4096", "--json"]  # fmt: skip
    answer = json.loads(CliRunner().invoke(kernel, args, catch_exceptions=False).output)
    assert 440 < answer["speed_of_light_us"] < answer["time_us"] < 800
    assert answer["source"] == "learned"
    assert answer["low_us"] < answer["time_us"] < answer["high_us"]


def test_one_kernel_in_words() -> None:
    output = CliRunner().invoke(kernel, ["fill", "--gpu", "V100", "--dim", "bytes=1e8"]).output
    assert "fill fp32 bytes=1e+08 on V100-SXM2-16G" in output


def test_mistakes_are_named() -> None:
    for args, word in (
        (["gem", "--gpu", "V100"], "gemm"),
        (["gemm", "--gpu", "V100", "--dim", "q=3"], "no size 'q'"),
        (["gemm", "--gpu", "V100", "--dim", "m=many"], "not a number"),
        (["gemm", "--dim", "m=3"], "--gpu"),
        (["gemm", "--gpu", "Z9000", "--dim", "m=3", "--dim", "n=3", "--dim", "k=3"], "catalogue"),
        (["gemm", "--gpu", "V100", "--dim", "m=3"], "needs n, k"),
        ([], "--table"),
    ):
        error = CliRunner().invoke(kernel, args).exception
        assert isinstance(error, InputError) and word in str(error), args


def test_a_table(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_text("gpu,op,rows,cols\nP100,layer_norm,4096,1000\nP100,softmax,4096,1000\n")
    result = CliRunner().invoke(kernel, ["--table", str(source), "--out", str(out)], catch_exceptions=False)
    assert "2 learned" in result.output
    assert out.read_text().splitlines()[0].startswith("gpu,op,rows,cols,time_us,source")
