"""Index files in every format people have, read without torch."""

from __future__ import annotations

import gzip
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from stepsight.errors import InputError
from stepsight.tables.indices.distributions import IndexDistribution, draw_indices
from stepsight.tables.indices.index_files import batch_stats, extrapolation, open_index_file

LENGTHS = np.array([[2, 0, 3], [1, 1, 2]])
INDICES = np.array([5, 9, 5, 5, 7, 100, 101, 100, 102])


def offsets() -> np.ndarray:
    return np.concatenate([[0], np.cumsum(LENGTHS.ravel())])


def write_torch_zip(path: Path, *arrays: np.ndarray) -> None:
    """What torch.save writes for a tuple of integer tensors, made by hand."""

    class Tensor:
        def __init__(self, key: int, array: np.ndarray) -> None:
            self.key, self.array = key, array

    class Pickler(pickle._Pickler):  # the pure Python one lets us write torch's names
        def persistent_id(self, obj: object) -> object:
            return None

        def save(self, obj: object, save_persistent_id: bool = True) -> None:
            if isinstance(obj, Tensor):
                self.write(b"ctorch._utils\n_rebuild_tensor_v2\n(")
                self.write(b"(")
                super().save("storage")
                self.write(b"ctorch\nLongStorage\n")
                for part in (str(obj.key), "cpu", obj.array.size):
                    super().save(part)
                self.write(b"tQ")
                super().save(0)
                super().save(obj.array.shape)
                super().save(tuple(s // 8 for s in obj.array.strides))
                super().save(False)
                super().save(None)
                self.write(b"tR")
            else:
                super().save(obj, save_persistent_id)

    with zipfile.ZipFile(path, "w") as archive, archive.open("archive/data.pkl", "w") as file:
        Pickler(file, protocol=2).dump([Tensor(i, a) for i, a in enumerate(arrays)])
    with zipfile.ZipFile(path, "a") as archive:
        for i, array in enumerate(arrays):
            archive.writestr(f"archive/data/{i}", array.astype("<i8").tobytes())


def assert_two_tables(path: Path) -> None:
    file = open_index_file(str(path))
    assert len(file.tables) == 2
    np.testing.assert_array_equal(file.tables[0].indices, [5, 9, 5, 5, 7])
    np.testing.assert_array_equal(file.tables[1].indices, [100, 101, 100, 102])
    assert file.tables[0].pooling == pytest.approx(5 / 3)
    assert file.tables[0].pooling_quantiles()[-1] == 3


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_indices_offsets_lengths(tmp_path: Path, save: object) -> None:
    save(tmp_path / "x.npz", indices=INDICES, offsets=offsets(), lengths=LENGTHS)
    assert_two_tables(tmp_path / "x.npz")


def test_pt_as_in_dlrm_datasets(tmp_path: Path) -> None:
    write_torch_zip(tmp_path / "x.pt", INDICES, offsets(), LENGTHS)
    assert_two_tables(tmp_path / "x.pt")


def test_gzipped_pt(tmp_path: Path) -> None:
    write_torch_zip(tmp_path / "x.pt", INDICES, offsets(), LENGTHS)
    with (tmp_path / "x.pt").open("rb") as plain, gzip.open(tmp_path / "y.pt.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    assert_two_tables(tmp_path / "y.pt.gz")


def test_pt_written_by_torch_itself(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(tuple(torch.from_numpy(a) for a in (INDICES, offsets(), LENGTHS)), tmp_path / "x.pt")
    assert_two_tables(tmp_path / "x.pt")


def test_a_pt_that_would_run_code_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(InputError, match="not only integer and float tensors"):
        open_index_file(str(tmp_path / "x.pt"))


@pytest.mark.parametrize("name", ["indices", "lengths", "offsets"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_array_of_objects_is_refused_and_never_mapped(tmp_path: Path, name: str, save: object) -> None:
    arrays = {"indices": INDICES, "lengths": LENGTHS, "offsets": offsets()}
    arrays[name] = np.array([object(), "x", 3] * 3, dtype=object)
    save(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=r"x\.npz.*array of object"):
        open_index_file(str(tmp_path / "x.npz"))


@pytest.mark.parametrize("dtype", ["U4", "S8", "M8[s]", "i8,O", "c16"])
def test_only_integers_and_floats_are_mapped(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "x.npz", indices=INDICES, lengths=np.zeros(3, dtype=dtype))
    with pytest.raises(InputError, match="not of integers or floats"):
        open_index_file(str(tmp_path / "x.npz"))


def test_an_object_npy_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1, "x"], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"x\.npy"):
        open_index_file(str(tmp_path / "x.npy"))


@pytest.mark.parametrize("header", [(10**6,), (-1,)])
def test_a_header_that_names_more_than_its_member_holds_is_refused(
    tmp_path: Path, header: tuple[int, ...]
) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        with archive.open("indices.npy", "w") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<i8", "fortran_order": False, "shape": header}
            )
            file.write(INDICES.tobytes())
        archive.writestr("padding", bytes(16 << 20))
    with pytest.raises(InputError, match="does not fit"):
        open_index_file(str(tmp_path / "x.npz"))


def write_pickle_zip(path: Path, pickled: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", INDICES.tobytes())


def torch_pickle(storage: bytes = b"ctorch\nLongStorage\n", *, elements: int = 9, offset: int = 0,
                 shape: str = "(I9\nt", strides: str = "(I1\nt") -> bytes:  # fmt: skip
    persistent = b"((S'storage'\n" + storage + b"S'0'\nS'cpu'\nI%d\ntQ" % elements
    tensor = b"I%d\n" % offset + shape.encode() + strides.encode() + b"I00\nNtR"
    return b"(ctorch._utils\n_rebuild_tensor_v2\n" + persistent + tensor + b"t."


def test_the_hand_written_pickle_is_read(tmp_path: Path) -> None:
    write_pickle_zip(tmp_path / "x.pt", torch_pickle())
    np.testing.assert_array_equal(open_index_file(str(tmp_path / "x.pt")).tables[0].indices, INDICES)


@pytest.mark.parametrize(
    "pickled",
    [
        torch_pickle(b"S'O'\n"),
        torch_pickle(b"S'i8,O'\n"),
        torch_pickle(elements=10**9),
        torch_pickle(elements=-1),
        torch_pickle(offset=-3),
        torch_pickle(shape="(I90\nt"),
        torch_pickle(shape="(I3\nI3\nt", strides="(I1\nI3\nt"),
        b"(ctorch._utils\n_rebuild_tensor_v2\n(S'no storage'\nI0\n(I9\nt(I1\nttRt.",
        b"(S'words'\nt.",
        b"I5\n.",
        b"cbuiltins\neval\n.",
    ],
)
def test_a_pt_that_names_its_own_memory_is_refused(tmp_path: Path, pickled: bytes) -> None:
    write_pickle_zip(tmp_path / "x.pt", pickled)
    with pytest.raises(InputError, match=r"x\.pt"):
        open_index_file(str(tmp_path / "x.pt"))


def test_npz_with_offsets_alone_is_one_table(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", indices=INDICES, offsets=np.array([0, 4, 4]))
    (table,) = open_index_file(str(tmp_path / "x.npz")).tables
    np.testing.assert_array_equal(table.lengths, [4, 0, 5])


def test_a_matrix_is_samples_by_tables(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, 7], [2, 7], [1, 8]]))
    first, second = open_index_file(str(tmp_path / "x.npy")).tables
    np.testing.assert_array_equal(first.indices, [1, 2, 1])
    assert second.pooling == 1


def test_criteo_text_skips_label_and_counts(tmp_path: Path) -> None:
    row = ["0", *["3"] * 13, *[f"{i:08x}" for i in range(26)]]
    other = ["1", *[""] * 13, *["ffffffff"] * 25, ""]
    (tmp_path / "day_0.tsv").write_text("\t".join(row) + "\n" + "\t".join(other) + "\n")
    tables = open_index_file(str(tmp_path / "day_0.tsv")).tables
    assert len(tables) == 26
    np.testing.assert_array_equal(tables[1].indices, [1, 0xFFFFFFFF])
    np.testing.assert_array_equal(tables[25].indices, [25, -1])


def test_csv_with_a_header(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("user,item\n1,10\n2,10\n1,11\n")
    user, _ = open_index_file(str(tmp_path / "x.csv")).tables
    np.testing.assert_array_equal(user.indices, [1, 2, 1])


@pytest.mark.parametrize(
    ("name", "arrays", "said"),
    [
        ("x.npz", {"rows": INDICES}, "no array 'indices'"),
        ("x.npz", {"indices": INDICES * 1.5}, "not an integer array"),
        ("x.npz", {"indices": INDICES, "lengths": LENGTHS * 1.0}, "'lengths' is float64"),
        ("x.npz", {"indices": INDICES, "lengths": LENGTHS + 1}, "bags hold 15 lookups but 'indices' 9"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, arrays: dict[str, np.ndarray], said: str) -> None:
    np.savez(tmp_path / name, **arrays)
    with pytest.raises(InputError, match=said):
        open_index_file(str(tmp_path / name))


def test_missing_file_unknown_kind_and_missing_table(tmp_path: Path) -> None:
    for name in ("none.npz", "none.csv", "none.xyz"):
        with pytest.raises(InputError):
            open_index_file(str(tmp_path / name))
    np.save(tmp_path / "x.npy", INDICES)
    with pytest.raises(InputError, match="no table 4"):
        open_index_file(str(tmp_path / "x.npy")).table(4)


def test_a_batch_of_a_file_looks_like_a_batch_of_its_distribution(tmp_path: Path) -> None:
    zipf = IndexDistribution.zipf(1.05)
    np.savez(tmp_path / "x.npz", indices=draw_indices(zipf, 10_000, 60_000, np.random.default_rng(0)))
    measured = batch_stats(str(tmp_path / "x.npz"), 0, 10_000, 8_000)
    named = zipf.stats(10_000, 8_000)
    assert measured.unique_rows == pytest.approx(named.unique_rows, rel=0.03)
    np.testing.assert_allclose(
        measured.hit_rate([50, 500, 5_000]), named.hit_rate([50, 500, 5_000]), atol=0.02
    )
    assert (
        IndexDistribution.file(str(tmp_path / "x.npz")).stats(10_000, 8_000).unique_rows
        == measured.unique_rows
    )


def test_drawing_from_a_file_takes_a_stretch_of_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1_000))
    drawn = draw_indices(IndexDistribution.file(str(tmp_path / "x.npy")), 1_000, 50, np.random.default_rng(1))
    np.testing.assert_array_equal(np.diff(drawn), 1)


def test_a_batch_larger_than_its_file_reaches_rows_that_the_file_does_not(tmp_path: Path) -> None:
    rows, held, wanted = 1_000_000, 60_000, 960_000
    zipf = IndexDistribution.zipf(1.05)
    path = str(tmp_path / "x.npz")
    np.savez(path, indices=draw_indices(zipf, rows, held, np.random.default_rng(0)))
    found = batch_stats(path, 0, rows, wanted)
    assert found.unique_rows == pytest.approx(zipf.stats(rows, wanted).unique_rows, rel=0.15)
    assert "power law with the file's distinct rows" in extrapolation(path, 0, rows, wanted)
    assert extrapolation(path, 0, rows, held) == ""


@pytest.mark.parametrize("wrong", [1_000, -1])
def test_row_numbers_that_a_table_does_not_have_are_refused(tmp_path: Path, wrong: int) -> None:
    np.save(tmp_path / "x.npy", np.array([1, 999, wrong]))
    with pytest.raises(InputError, match=f"row {wrong} of a table of 1000 rows"):
        batch_stats(str(tmp_path / "x.npy"), 0, 1_000, 3)


def test_labels_of_a_text_file_are_not_row_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("user\n" + "ffffffff\n" * 5)
    assert batch_stats(str(tmp_path / "x.csv"), 0, 1_000, 5).unique_rows == 1
