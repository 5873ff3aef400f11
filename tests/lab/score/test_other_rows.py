"""A folder with other rows of some of the files: every topic scores what is there."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.__main__ import main
from lab.datasets.folder import data_folder
from stepsight.errors import InputError

FILES = ("e2e/dlrm_single_gpu.csv", "e2e/nlp_fp32_more.csv", "e2e/mlperf_llm.csv", "e2e/xtuner_a100_long.csv",
         "kernels/embedding_fbgemm_h100.csv")  # fmt: skip


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shuffled third of the rows of a few files."""
    try:
        data = data_folder()
    except InputError as error:
        pytest.skip(str(error))
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    for name in FILES:
        if not (data / name).is_file():
            pytest.skip(f"{name} is not there")
        with (data / name).open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        draw.shuffle(rows)
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows[: len(rows) // 3]])
    return folder


@pytest.mark.data
@pytest.mark.parametrize(
    ("topic", "files"),
    [
        ("e2e", {"dlrm_single_gpu", "nlp_fp32_more"}),
        ("llm", {"mlperf_llm", "xtuner_a100_long"}),
        ("embedding", {"embedding_fbgemm_h100"}),
        ("tune", set()),
    ],
)
def test_files_that_are_there_are_scored(topic: str, files: set[str], third: Path) -> None:
    done = CliRunner().invoke(main, ["score", topic, "--json", "--data", str(third)])
    assert done.exit_code in (0, 1), done.output
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
    assert set(json.loads(done.stdout)) - {"scores"} == files
