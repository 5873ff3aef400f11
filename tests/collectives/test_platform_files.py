"""Curves that a platform folder keeps, and imports into it."""

from __future__ import annotations

import pytest

from stepsight.collectives.models import CollectiveModels
from stepsight.errors import InputError
from stepsight.estimate import Source
from stepsight.platform.importing import import_benchmark, read_benchmark
from stepsight.platform.load import load_platform

from .platforms import platform
from .test_nccl_tests import HEAD, ROWS, TAIL

CSV = "kind,ranks,bytes,time_us\nall_reduce,2,1024,10\nall_reduce,2,1048576,100\nall_reduce,2,4194304,400\n"


def folder_with(tmp_path, text, name="all_reduce.csv"):
    (tmp_path / "collectives").mkdir()
    (tmp_path / "collectives" / name).write_text(text)
    return tmp_path


def test_a_platforms_own_curve_goes_before_the_catalogues(tmp_path):
    models = CollectiveModels.load(folder_with(tmp_path, CSV), platform())
    answer = models.estimate("all_reduce", [1048576], (0, 1))[0]
    assert answer.time_us == pytest.approx(100) and answer.source is Source.MEASURED


def test_an_own_curve_is_surer_than_another_stacks(tmp_path):
    own = CollectiveModels.load(folder_with(tmp_path, CSV), platform()).estimate("all_reduce", [2048], (0, 1))
    other = CollectiveModels(platform()).estimate("all_reduce", [2048], (0, 1))
    assert own.spread[0] < other.spread[0]


def test_own_curves_serve_links_that_no_catalogue_knows(tmp_path):
    spec = platform("cpu", 4, link="loopback", gbps=10)
    models = CollectiveModels.load(folder_with(tmp_path, CSV), spec)
    two, four = (models.estimate("all_reduce", [1048576], tuple(range(n)))[0] for n in (2, 4))
    assert two.source is Source.MEASURED
    assert four.source is Source.LEARNED and four.time_us > two.time_us


def test_a_folder_without_curves_falls_back_to_the_catalogue(tmp_path):
    models = CollectiveModels.load(tmp_path, platform())
    assert models.own is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind,ranks,bytes\nall_reduce,2,1024\n", "no column time_us"),
        ("kind,ranks,bytes,time_us\nall_shuffle,2,1024,1\n", "line 2: unknown collective"),
        ("kind,ranks,bytes,time_us\nall_reduce,2,1024,0\n", "line 2: a time of 0"),
        ("kind,ranks,bytes,time_us\nall_reduce,2,1KB,3\n", "line 2: not a number"),
        ("kind,ranks,nodes,bytes,time_us\nall_reduce,2,4,1024,3\n", "2 ranks on 4 nodes"),
    ],
)
def test_a_wrong_row_names_its_line(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        CollectiveModels.load(folder_with(tmp_path, text), platform())


def test_an_import_makes_a_platform_around_the_gpu_it_names(tmp_path):
    source = tmp_path / "all_reduce.txt"
    source.write_text(HEAD + ROWS + TAIL)
    done = import_benchmark(source, tmp_path / "mine")
    assert done.created
    mine = load_platform(tmp_path / "mine")
    assert (mine.spec.gpu.name, mine.spec.gpus_per_node, mine.spec.nodes) == ("A100-SXM4-40G", 2, 2)
    answer = mine.collectives.estimate("all_reduce", [4194304], (0, 1, 2, 3))[0]
    assert answer.time_us == pytest.approx(59) and answer.source is Source.MEASURED


def test_an_import_again_replaces_the_same_curve(tmp_path):
    source = tmp_path / "all_reduce.txt"
    source.write_text(HEAD + ROWS + TAIL)
    first = import_benchmark(source, tmp_path / "mine")
    again = import_benchmark(source, tmp_path / "mine")
    assert again.path == first.path and not again.created


def test_an_import_that_names_no_known_gpu_asks_for_a_platform(tmp_path):
    source = tmp_path / "all_reduce.txt"
    source.write_text((HEAD + ROWS + TAIL).replace("A100-SXM4-40GB", "Unheard-Of"))
    with pytest.raises(InputError, match=r"platform\.toml"):
        import_benchmark(source, tmp_path / "mine")


def test_an_import_larger_than_its_platform_is_refused(tmp_path):
    source = tmp_path / "all_reduce.txt"
    source.write_text(HEAD + ROWS + TAIL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "platform.toml").write_text('gpu = "A100-SXM4-40G"\ngpus_per_node = 2\n')
    with pytest.raises(InputError, match="measured 4 GPUs on 2 nodes"):
        import_benchmark(source, tmp_path / "mine")


@pytest.mark.parametrize(
    ("spelt", "name"), [("AMD Instinct MI300X", "MI300X"), ("Tesla V100-SXM2-16GB", "V100-SXM2-16G")]
)
def test_gpus_are_known_as_drivers_spell_them(tmp_path, spelt, name):
    source = tmp_path / "all_reduce.txt"
    source.write_text((HEAD + ROWS + TAIL).replace("NVIDIA A100-SXM4-40GB", spelt))
    import_benchmark(source, tmp_path / "mine")
    assert load_platform(tmp_path / "mine").spec.gpu.name == name


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(InputError, match="neither nccl-tests"):
        read_benchmark(path)
    with pytest.raises(InputError, match="no such file"):
        read_benchmark(tmp_path / "missing.txt")
