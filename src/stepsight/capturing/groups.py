"""torch.distributed on the recording group: torchrun's variables, group creation, object collectives, DDP."""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from stepsight.capturing.process_group import (
    Exchange,
    batch_messages,
    group_ranks,
    maker,
    record_functional,
)
from stepsight.capturing.recorder import Recorder
from stepsight.capturing.tensors import only_gpu

BACKEND = "stepsight"


@dataclass(slots=True)
class World:
    """The job as one process sees it; ``groups`` are all that were made, in order, with their description."""

    rank: int
    size: int
    per_node: int
    initialised: bool = False
    groups: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


def set_variables(world: World, environment: MutableMapping[str, str]) -> None:
    """What torchrun sets."""
    environment.update(
        RANK=str(world.rank), WORLD_SIZE=str(world.size), LOCAL_RANK=str(world.rank % world.per_node),
        LOCAL_WORLD_SIZE=str(min(world.per_node, world.size)), GROUP_RANK=str(world.rank // world.per_node),
        NODE_RANK=str(world.rank // world.per_node), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="stepsight", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_MAX_RESTARTS="0",
        GROUP_WORLD_SIZE=str(-(-world.size // world.per_node)), ROLE_RANK=str(world.rank),
        ROLE_WORLD_SIZE=str(world.size),
    )  # fmt: skip


def install_groups(recorder: Recorder, world: World, folder: str = "") -> None:
    """``folder`` is where ranks captured in turn leave their words for each other."""
    set_variables(world, os.environ)
    exchange = Exchange(folder, world.rank)
    if not dist.is_available():
        return
    dist.Backend.register_backend(BACKEND, maker(recorder, exchange), devices=["cpu", "cuda"])
    recorder.functional = record_functional
    _install_creation(world)
    _install_objects(world, exchange)
    _install_ddp()
    _install_fsdp1()
    _install_random()


def _install_creation(world: World) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    real_init, real_new = c10d.init_process_group, c10d.new_group

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1,
        rank: int = -1, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        size = world_size if world_size > 0 else int(os.environ["WORLD_SIZE"])
        me = rank if rank >= 0 else int(os.environ["RANK"])
        world.initialised = True
        world.groups.append(("world", tuple(range(size))))
        real_init(BACKEND, store=FakeStore(), rank=me, world_size=size)

    def new_group(ranks: Any = None, *_: Any, group_desc: Any = None, **__: Any) -> Any:
        members = tuple(ranks) if ranks is not None else tuple(range(dist.get_world_size()))
        world.groups.append((str(group_desc or ""), members))
        return real_new(ranks, backend=BACKEND, group_desc=group_desc)

    for module in (dist, c10d):
        module.init_process_group, module.new_group = init_process_group, new_group
        module.get_backend = lambda *_, **__: "nccl"
        module.is_nccl_available = lambda: True
        module.batch_isend_irecv = batch_messages
        module.monitored_barrier = lambda *_, **__: None
    dist.is_torchelastic_launched = lambda: True
    _install_mesh(new_group)


def _install_mesh(new_group: Any) -> None:
    """Device meshes make their groups through names that they imported before."""
    import torch.distributed.device_mesh as mesh

    mesh.new_group, mesh.get_backend = new_group, dist.get_backend
    mesh.init_process_group = dist.init_process_group


def _install_objects(world: World, exchange: Exchange) -> None:
    """Objects arrive as this rank sent them: ranks are taken to be identical."""

    def all_gather_object(out: list[Any], value: Any, group: Any = None) -> None:
        out[:] = [value] * len(out)

    def gather_object(value: Any, out: Any = None, dst: Any = None, group: Any = None, **_: Any) -> None:
        if out:
            out[:] = [value] * len(out)

    def scatter_object_list(out: list[Any], values: Any, *_: Any, **__: Any) -> None:
        out[0] = values[world.rank % len(values)] if values else None

    def send_object_list(
        values: list[Any], dst: Any = None, group: Any = None, *_: Any, **options: Any
    ) -> None:
        exchange.put("objects", _peer(dst, options.get("group_dst"), group), list(values))

    def recv_object_list(out: list[Any], src: Any = None, group: Any = None, *_: Any, **options: Any) -> int:
        sender = _peer(src, options.get("group_src"), group)
        sent = exchange.get("objects", sender)
        if sent is not None:
            out[:] = sent
        return sender

    for module in (dist, c10d):
        module.all_gather_object, module.gather_object = all_gather_object, gather_object
        module.broadcast_object_list = lambda *_, **__: None
        module.scatter_object_list = scatter_object_list
        module.send_object_list, module.recv_object_list = send_object_list, recv_object_list


def _peer(rank: int | None, group_rank: int | None, group: Any) -> int:
    """A peer's global rank, however it was named."""
    if rank is not None:
        return rank
    return int(group_ranks(group or c10d._get_default_group())[group_rank or 0])


def _install_ddp() -> None:
    import torch.nn.parallel.distributed as ddp

    ddp._verify_param_shape_across_processes = lambda *_, **__: True
    ddp._sync_module_states = lambda *_, **__: None
    real_init = ddp.DistributedDataParallel.__init__

    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        real_init(self, module, *args, **kwargs)
        self.__dict__["logger"] = _Quiet()
        self.__dict__["reducer"] = _Untimed(self.reducer)

    ddp.DistributedDataParallel.__init__ = init


def _install_fsdp1() -> None:
    """The first FSDP compares the device it is given with the parameters', which is cuda:0 on every rank."""
    import torch.distributed.fsdp._init_utils as fsdp

    named = fsdp._get_device_from_device_id

    def device(*args: Any, **kwargs: Any) -> Any:
        return only_gpu(named(*args, **kwargs))

    fsdp._get_device_from_device_id = device


def _install_random() -> None:
    """DTensor offsets the GPU's random state by shard; there is none here, and no number is ever drawn."""
    from torch.distributed.tensor import _random as random

    class Tracker(random._RNGStateTracker):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            self._use_distribute_region = False
            self.rng_states: dict[str, Any] = {}

        def _distribute_region(self, *_: Any, **__: Any) -> Any:
            return contextlib.nullcontext()

        def _manual_seed(self, *_: Any) -> None:
            return None

    random.OffsetBasedRNGTracker = Tracker
    random.manual_seed = lambda *_, **__: None


class _Quiet:
    """DDP's logger reads CUDA timers that are not there."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _Untimed:
    """The reducer without the CUDA events with which it times its first iterations."""

    def __init__(self, reducer: Any) -> None:
        self.reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return (lambda: None) if name == "prepare_for_forward" else getattr(self.reducer, name)
