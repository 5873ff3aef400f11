"""Arrays in .npy, .npz and .pt files as memory maps: nothing is loaded, torch is not needed.

Members of a zip that are stored plainly are mapped where they lie; compressed ones are
unpacked once into a temporary file that vanishes with the map.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from stepsight.errors import InputError
from stepsight.inputs import unpacked

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
            return {"indices": _plain_numbers(np.load(path, mmap_mode="r", allow_pickle=False))}
        if path.suffix == ".npz":
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                return {
                    info.filename.removesuffix(".npy"): _npy_member(file, archive, info)
                    for info in archive.infolist()
                }
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                return _torch_arrays(
                    unpacked(cast("IO[bytes]", packed), str(path), path.stat().st_size), path
                )
        with path.open("rb") as file:
            return _torch_arrays(file, path)
    except InputError:
        raise
    except Exception as error:  # zip, zlib, pickle and numpy raise almost anything on damaged bytes
        raise InputError(
            str(path), f"not readable as {path.suffix} ({error})", "save it again with numpy or torch.save"
        ) from None


def _mapped_member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[IO[bytes], int]:
    """A file and the offset in it at which the member's plain bytes begin."""
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as stream:
            return unpacked(stream, info.filename, info.compress_size), 0
    file.seek(info.header_offset)
    name_length, extra_length = struct.unpack("<26xHH", file.read(_LOCAL_HEADER))
    return file, info.header_offset + _LOCAL_HEADER + name_length + extra_length


def _plain_numbers(array: AnyArray) -> AnyArray:
    if array.dtype.kind not in "iufb":
        raise ValueError(f"it holds an array of {array.dtype}, not of integers or floats")
    return array


def _map(file: IO[bytes], dtype: Any, offset: int, shape: tuple[int, ...], held_bytes: int) -> AnyArray:
    """A map of an array that lies in ``held_bytes`` bytes from ``offset`` on; numbers only.

    Mapped objects would be pointers that the file chose: reading one ends the process.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "iufb":
        raise ValueError(f"it holds an array of {kind}, not of integers or floats")
    if any(size < 0 for size in shape) or math.prod(shape) * kind.itemsize > held_bytes:
        raise ValueError(f"an array of shape {shape} does not fit into {held_bytes} bytes")
    if 0 in shape:
        return np.zeros(shape, dtype=kind)
    return np.memmap(file, dtype=kind, mode="r", offset=offset, shape=shape)


def _npy_member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> AnyArray:
    source, start = _mapped_member(file, archive, info)
    source.seek(start)
    version = np.lib.format.read_magic(source)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(source)
    held = info.file_size - (source.tell() - start)
    if fortran and len(shape) > 1:
        return np.asarray(_map(source, dtype, source.tell(), shape[::-1], held).T)
    return _map(source, dtype, source.tell(), shape, held)


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: Any
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]

    @classmethod
    def rebuilt(cls, storage: Any, offset: Any, shape: Any, strides: Any = None, *_: Any) -> _Tensor:
        """What a pickle asks for: a contiguous part of a storage, or an error."""
        sizes = tuple(int(size) for size in shape)
        if not isinstance(storage, _Storage) or int(offset) < 0 or any(size < 0 for size in sizes):
            raise pickle.UnpicklingError("it holds a damaged tensor")
        contiguous = tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
        if strides is not None and 0 not in sizes:
            steps = zip(sizes, strides, contiguous, strict=True)
            if any(size > 1 and step != whole for size, step, whole in steps):
                raise pickle.UnpicklingError("it holds a strided tensor; save tensor.contiguous()")
        return cls(storage, int(offset), sizes)


class _TensorUnpickler(pickle.Unpickler):
    """Reads tensors and plain containers, and refuses to import anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name.startswith("_rebuild_tensor"):
            return _Tensor.rebuilt
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, not only integer and float tensors")

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, size = pid
        if dtype not in _STORAGES.values():
            raise pickle.UnpicklingError(f"its storage is of {dtype!r}, not of integers or floats")
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
        named = (
            value
            if isinstance(value, Mapping)
            else dict(enumerate([value] if isinstance(value, _Tensor) else value))
        )
        arrays = {}
        for name, tensor in named.items():
            if not isinstance(tensor, _Tensor):
                raise ValueError(f"its item {name!r} is not a tensor")
            storage, first = tensor.storage, tensor.offset
            info = members[f"{folder}data/{storage.key}"]
            source, start = _mapped_member(file, archive, info)
            whole = _map(source, storage.dtype, start, (storage.size,), info.file_size)
            arrays[str(name)] = whole[first : first + math.prod(tensor.shape)].reshape(tensor.shape)
        return arrays
