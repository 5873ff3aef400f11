"""Names of measured models lead to a library's model; nothing here needs the libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.library.build import card
from stepsight.errors import InputError


@pytest.mark.parametrize(
    ("name", "library", "model"),
    [
        ("timm_vit", "timm", "vit_huge_patch14_clip_224"),
        ("timm_resnet50", "timm", "resnet50"),
        ("torchvision_vgg16", "torchvision", "vgg16"),
        ("hf_T5_base", "transformers", "t5"),
        ("hf_gpt2-xl", "transformers", "gpt2"),
        ("hf_electra", "transformers", "electra"),
        ("llama_v3_8b", "transformers", "llama"),
        ("resnet50", "", "resnet50"),
    ],
)
def test_a_name_tells_its_library_and_model(name: str, library: str, model: str) -> None:
    found = card(name)
    assert (found.library, found.model) == (library, model)


def test_a_short_name_has_the_sizes_of_the_published_configuration() -> None:
    assert card("hf_T5").sizes == card("t5-large").sizes
    assert card("hf_GPT2").sizes["n_layer"] == 36
    assert card("llama_v3_8b").sizes["intermediate_size"] == 14336


def test_a_configuration_beside_the_table_comes_first(tmp_path: Path) -> None:
    (tmp_path / "hf_T5.json").write_text(json.dumps({"model_type": "t5", "d_model": 64}))
    assert card("hf_T5", tmp_path).sizes == {"d_model": 64}
    (tmp_path / "hf_T5.json").write_text("{}")
    with pytest.raises(InputError, match="model_type"):
        card("hf_T5", tmp_path)
