"""Imports go one way: from a line of docs/architecture.md's layer list to the lines below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lab.datasets.llm.files import FILES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stepsight"
LAB = ROOT / "lab"
TORCH = ("run", "calibrate", "capturing")
"""The only packages that may import torch, fbgemm or torchrec, always lazily or in their own modules."""
UPWARD = {("prediction/answer.py", "report")}
"""A prediction shows itself: `Prediction.to_html` and `save_timeline` load the reports when called."""
HEAVY = ("torch", "fbgemm_gpu", "torchrec")


def layers() -> list[list[str]]:
    """The order as the document states it: one line a layer, the highest first."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    match = re.search(r"```layers\n(.*?)```", text, re.DOTALL)
    assert match, "docs/architecture.md has no block ```layers"
    names = [re.split(r"\s{2,}", line)[0] for line in match[1].splitlines() if line.strip()]
    return [[name.strip() for name in line.split(",")] for line in names]


def modules() -> Iterator[tuple[Path, str]]:
    """Every module of the package, then every module of the laboratory."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts not in (("__init__",), ("__main__",)):
            yield path, parts[0]
    for path in sorted(LAB.rglob("*.py")):
        yield path, "lab"


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, wherever it stands, and of every lazily named module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"(stepsight|lab)(\.\w+)+", str(node.value)):
            yield node.lineno, str(node.value)


def test_every_package_has_its_line() -> None:
    stated = {name for layer in layers() for name in layer}
    found = {package for _, package in modules()}
    assert found <= stated, f"not in docs/architecture.md: {sorted(found - stated)}"


def test_no_import_goes_up_or_sideways() -> None:
    rank = {name: i for i, layer in enumerate(layers()) for name in layer}
    wrong = []
    for path, package in modules():
        for line, name in imported(path):
            parts = name.split(".")
            if parts[0] == "lab":
                parts = ["stepsight", *parts]
            if parts[0] != "stepsight" or len(parts) < 2 or parts[1] not in rank or parts[1] == package:
                continue
            if (
                rank[parts[1]] <= rank[package]
                and (str(path)[len(str(SOURCE)) + 1 :], parts[1]) not in UPWARD
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{line} ({package}) imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_measuring_packages_import_torch() -> None:
    wrong = []
    for path, _ in modules():
        if LAB in path.parents:
            continue
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if module.startswith(TORCH):
            continue
        wrong += [
            f"{path.relative_to(ROOT)}:{line} imports {name}"
            for line, name in imported(path)
            if name.split(".")[0] in HEAVY
        ]
    assert not wrong, "\n".join(wrong)


def test_no_module_of_the_package_names_a_published_file() -> None:
    """Published tables belong to the laboratory; the package ships only what was fitted from them."""
    named = {
        node.value
        for path in sorted(LAB.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and re.fullmatch(r"([\w/]+/)?\w+\.(csv|parquet)", node.value)
    }  # fmt: skip
    files = {name.rsplit("/", 1)[-1] for name in named} | {f"{file.name}.csv" for file in FILES}
    assert {"nlp_fp32.csv", "dgxc_llm.csv"} <= files
    wrong = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in sorted(p for kind in ("py", "toml", "json") for p in SOURCE.rglob(f"*.{kind}"))
        for name in sorted(files)
        if re.search(rf"(?<!\w){re.escape(name)}", path.read_text(encoding="utf-8"))
    ]
    wrong += [
        f"{path.relative_to(ROOT)} names a .parquet file"
        for path in sorted(SOURCE.rglob("*.json"))
        if ".parquet" in path.read_text(encoding="utf-8")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_tests_with_optional_packages_are_there() -> None:
    script = (ROOT / "scripts" / "test-extras").read_text(encoding="utf-8")
    named = next(line for line in script.splitlines() if "set --" in line)
    for path in re.findall(r"\btests/[\w/.]+", named):
        assert (ROOT / path).exists(), path
