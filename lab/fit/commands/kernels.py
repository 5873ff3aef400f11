"""``python -m lab fit kernels``: every shipped kernel artefact, again, from the measured tables."""

from __future__ import annotations

from pathlib import Path

import click

from lab.datasets.folder import data_folder


@click.command("kernels")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of measured tables.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where the artefacts go.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(
        ["fp32", "gemm_fp32", "conv_fp32", "rows_fp32", "gemm_bf16", "gemm_fp8", "attention_bf16", "half"]
    ),
    help="Fit only these.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: Path | None, out: Path, only: tuple[str, ...], as_json: bool) -> None:
    """Fit the kernel models and print their error on shapes left out of the fit."""
    from dataclasses import asdict

    from lab.fit.kernels.recipes import fit_kernels
    from stepsight.documents import to_json

    written = []
    for fitted in fit_kernels(data_folder(data), out, only):
        written.append(asdict(fitted))
        mape = "" if fitted.mape is None else f"   MAPE {fitted.mape:6.2%}"
        click.echo(
            f"{fitted.artefact:32s} {fitted.gpu:16s} {fitted.model:28s} "
            f"{fitted.rows:6d} rows   GMAE {fitted.gmae:6.2%}{mape}",
            err=as_json,
        )
    if not only or "half" in only:  # last: half-precision corrections stand on the shipped bf16 models
        from lab.fit.kernels.half import fit_half

        for residual in fit_half(data_folder(data), out):
            name = f"{residual.family} fp16 {residual.variant}"
            written.append(
                {"artefact": "half", "gpu": residual.gpu, "model": name, "rows": residual.rows,
                 "gmae": residual.gmae}
            )  # fmt: skip
            click.echo(
                f"{'half':32s} {residual.gpu:16s} {name:40s} {residual.rows:6d} rows   "
                f"GMAE {residual.gmae:6.2%}   spread {residual.spread:.3f}",
                err=as_json,
            )
    if as_json:
        click.echo(to_json(written))
