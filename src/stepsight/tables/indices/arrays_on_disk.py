"""Arrays in .npy, .npz and .pt files as memory maps: nothing is loaded, torch is not needed.

Members of a zip that are stored plainly are mapped where they lie; compressed ones are
unpacked once into a temporary file that vanishes with the map.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from stepsight.errors import InputError
from stepsight.inputs import copy_expanded

AnyArray = npt.NDArray[Any]

_LOCAL_HEADER = 30
"""Bytes of a zip member's local header before its name and extra field."""
_STORAGES = {
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
}


def arrays_in(path: str | Path) -> dict[str, AnyArray]:
    """Every array of a .npy, .npz, .pt or .pt.gz file by name ("0", "1", … for unnamed ones)."""
    path = Path(path)
    if not path.is_file():
        raise InputError(str(path), "no such index file", "check the path")
    try:
        if path.suffix == ".npy":
            return {"indices": np.load(path, mmap_mode="r", allow_pickle=False)}
        if path.suffix == ".npz":
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                return {
                    info.filename.removesuffix(".npy"): _npy_member(file, archive, info)
                    for info in archive.infolist()
                }
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed, _unpacked(packed, path, path.stat().st_size) as plain:
                return _torch_arrays(plain, path)
        with path.open("rb") as file:
            return _torch_arrays(file, path)
    except InputError:
        raise
    except Exception as error:  # zip, zlib, pickle and numpy raise almost anything on damaged bytes
        raise InputError(
            str(path), f"not readable as {path.suffix} ({error})", "save it again with numpy or torch.save"
        ) from None


def _unpacked(stream: IO[bytes] | gzip.GzipFile, where: object, packed_bytes: int) -> IO[bytes]:
    """The whole stream in a temporary file without a name."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the memory maps keep it alive
    copy_expanded(cast("IO[bytes]", stream), file, str(where), packed_bytes)
    file.seek(0)
    return file


def _mapped_member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[IO[bytes], int]:
    """A file and the offset in it at which the member's plain bytes begin."""
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as stream:
            return _unpacked(stream, info.filename, info.compress_size), 0
    file.seek(info.header_offset)
    name_length, extra_length = struct.unpack("<26xHH", file.read(_LOCAL_HEADER))
    return file, info.header_offset + _LOCAL_HEADER + name_length + extra_length


def _map(file: IO[bytes], dtype: Any, offset: int, shape: tuple[int, ...]) -> AnyArray:
    if 0 in shape:
        return np.zeros(shape, dtype=dtype)
    return np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)


def _npy_member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> AnyArray:
    source, start = _mapped_member(file, archive, info)
    source.seek(start)
    version = np.lib.format.read_magic(source)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(source)
    if fortran and len(shape) > 1:
        return np.asarray(_map(source, dtype, source.tell(), shape[::-1]).T)
    return _map(source, dtype, source.tell(), shape)


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: Any
    key: str
    size: int


class _TensorUnpickler(pickle.Unpickler):
    """Reads tensors and plain containers, and refuses to import anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name.startswith("_rebuild_tensor"):
            return lambda storage, offset, shape, *_: (storage, offset, tuple(shape))
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, not only integer and float tensors")

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, size = pid
        return _Storage(dtype, str(key), int(size))


def _torch_arrays(file: IO[bytes], path: Path) -> dict[str, AnyArray]:
    if not zipfile.is_zipfile(file):
        raise InputError(
            str(path), "not a zip, so not from torch.save of torch 1.6 or later", "save it again"
        )
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        pickled = next((name for name in members if name.endswith("/data.pkl")), None)
        if pickled is None:
            raise InputError(str(path), "holds no tensors", "save tensors with torch.save")
        folder = pickled.removesuffix("data.pkl")
        value = _TensorUnpickler(io.BytesIO(archive.read(pickled))).load()
        named = value if isinstance(value, Mapping) else dict(enumerate(_as_sequence(value)))
        arrays = {}
        for name, (storage, offset, shape) in named.items():
            source, start = _mapped_member(file, archive, members[f"{folder}data/{storage.key}"])
            whole = _map(source, storage.dtype, start, (storage.size,))
            count = int(np.prod(shape, dtype=np.int64))
            arrays[str(name)] = whole[offset : offset + count].reshape(shape)
        return arrays


def _as_sequence(value: Any) -> list[Any]:
    """A lone tensor is a list of one; (storage, offset, shape) is how a tensor was read."""
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], _Storage):
        return [value]
    return list(value)
