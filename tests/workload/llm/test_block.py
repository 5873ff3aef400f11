"""Messages inside a layer."""

from __future__ import annotations

from collections import Counter

import pytest

from stepsight.workload.llm.build import build
from stepsight.workload.llm.config import LanguageConfig, read_language
from stepsight.workload.llm.layer import layer_work


def config(framework: str, *, sequence_parallel: bool = False) -> LanguageConfig:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 16, "training": {"framework": framework},
        "parallel": {"tensor": 4, "sequence_parallel": sequence_parallel, "micro_batch": 1},
    }  # fmt: skip
    return read_language(document, "test")


def sums(c: LanguageConfig) -> tuple[Counter[str], int]:
    """Collectives of a layer's backward pass by kind, and how many of them run alongside a product."""
    messages = layer_work(c, experts=False).backward.messages
    kinds: Counter[str] = Counter()
    for message, count in messages.items():
        kinds[message.kind] += count
    return kinds, sum(n for message, n in messages.items() if message.concurrent)


def test_two_sums_backward_beside_the_weights_gradients() -> None:
    assert sums(config("megatron")) == (Counter(all_reduce=2), 2)


def test_separate_gate_and_up_products_sum_their_inputs_gradients_each() -> None:
    assert sums(config("internevo")) == (Counter(all_reduce=3), 3)


def test_sums_that_nothing_runs_beside() -> None:
    assert sums(config("scaling")) == (Counter(all_reduce=3), 0)


@pytest.mark.parametrize(("framework", "gathers"), [("megatron", 4), ("scaling", 2)])
def test_kept_inputs_are_not_gathered_again(framework: str, gathers: int) -> None:
    kinds, _ = sums(config(framework, sequence_parallel=True))
    assert kinds == Counter(all_gather=gathers, reduce_scatter=2)


@pytest.mark.parametrize(("framework", "parts"), [("megatron", 4), ("internevo", 1)])
def test_tensor_ranks_send_their_part_of_a_message_between_stages_and_gather_it(
    framework: str, parts: int
) -> None:
    document = {
        "kind": "transformer", "family": "llama", "layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096,
        "vocab": 8192, "sequence": 1024, "global_batch": 16, "training": {"framework": framework},
        "parallel": {"tensor": 4, "pipeline": 2, "sequence_parallel": False, "micro_batch": 1, "zero": 0},
    }  # fmt: skip
    ops = build(read_language(document, "test")).programs[1].ops
    found = [op.collective for op in ops if op.label == "pipeline" and op.collective]
    assert {c.bytes for c in found if c.kind == "send_recv"} == {2 * 1024 * 1024 / parts}
    assert {c.bytes for c in found if c.kind == "all_gather"} == ({2 * 1024 * 1024} if parts > 1 else set())


@pytest.mark.parametrize(("framework", "waits"), [("megatron-deepspeed", 2), ("internevo", 0)])
def test_the_host_waits_to_read_the_sizes_of_every_micro_batch(framework: str, waits: int) -> None:
    document = {
        "kind": "transformer", "family": "gpt", "layers": 4, "hidden": 256, "heads": 4, "ffn": 1024,
        "vocab": 8192, "sequence": 512, "global_batch": 2, "training": {"framework": framework},
        "parallel": {"micro_batch": 1},
    }  # fmt: skip
    ops = build(read_language(document, "test")).programs[0].ops
    assert sum(op.phase == "micro-batch" and bool(op.waits) for op in ops) == waits
