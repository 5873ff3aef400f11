"""Names in published tables find the shipped models and boards, whatever their spelling."""

from __future__ import annotations

import pytest

from lab.datasets.llm.case import catalogue_gpu, catalogue_model, joined_gpus


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama 3.1 405b", "llama3.1-405b"),
        ("qwen3_30b_a3b (BF16)", "qwen3-30b-a3b"),
        ("NeMo Megatron", "gpt3-175b"),
        ("DeepSeek V3", "deepseek-v3"),
        ("Moonlight 16B", "moonlight-16b-a3b"),
        ("Qwen3 MoE 30B", "qwen3-30b-a3b"),
        ("Llama 4 Scout 17b 16e", "llama4-scout"),
        ("Nemotron Nano v3 30B-A3B", "nemotron-3-nano-30b-a3b"),
        ("GLM 4.5 Air", "glm-4.5-air"),
        ("DeepSeek V3.2", None),
        ("a model of nobody", None),
    ],
)
def test_models(text: str, name: str | None) -> None:
    assert catalogue_model(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DGX-H100", "H100-SXM-80G"),
        ("Blackwell GPU (B200-SXM-180GB)", "B200-SXM-180G"),
        ("NVIDIA B200", "B200-SXM-180G"),
        ("NVIDIA GB200", "GB200-186G"),
        ("NVIDIA GB200 NVL72 (186GB)", "GB200-186G"),
        ("NVIDIA Grace Blackwell Superchip (GB200-NVL72)", "GB200-186G"),
        ("NVIDIA B300", "B300-SXM-288G"),
        ("NVIDIA HGX B300", "B300-SXM-288G"),
        ("NVIDIA GB300", "GB300-288G"),
        ("NVIDIA H200", "H200-SXM-141G"),
        ("NVIDIA H100-NVL", "H100-NVL"),
        ("NVIDIA H100-PCIe-80GB", "H100-PCIE-80G"),
        ("NVIDIA A100-PCIe-40GB (250W)", "A100-PCIE-40G"),
        ("DGX A100, 8x A100 80GB", "A100-SXM4-80G"),
        ("8xV100 32G", "V100-SXM2-32G"),
        ("AMD Instinct MI325X 256GB HBM3e", "MI325X"),
        ("NVIDIA Blackwell Ultra", "B300-SXM-288G"),
        ("NVIDIA Blackwell Ultra GPU (GB300)", "GB300-288G"),
        ("DGX-2", "V100-SXM3-32G"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("Gaudi 3", None),
    ],
)
def test_boards(text: str, name: str | None) -> None:
    assert catalogue_gpu(text) == name


@pytest.mark.parametrize(
    ("gpu", "gpus", "joined"), [("H100-SXM-80G", 64, 8), ("GB200-186G", 144, 72), ("GB200-186G", 512, 64)]
)
def test_gpus_of_one_link(gpu: str, gpus: int, joined: int) -> None:
    assert joined_gpus(gpu, gpus) == joined
