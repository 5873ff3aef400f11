"""Platform names for shell completion."""

from __future__ import annotations

import re

import click
from click.shell_completion import CompletionItem

PLATFORM_HELP = "A name such as 8xH100-SXM (8 GPUs) or 4x8xH100-SXM-400G (4 nodes), or a path."


def complete_platform(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``8xH1`` → ``8xH100-SXM-80G`` …; paths complete as files."""
    from stepsight.hardware.gpus import canonical, gpu_catalogue

    counted = re.fullmatch(r"((?:\d+x)?\d+x)(.*)", incomplete)
    prefix, typed = (counted[1], counted[2]) if counted else ("8x", incomplete)
    names = [name for name in gpu_catalogue() if canonical(name).startswith(canonical(typed))]
    found = [CompletionItem(prefix + name) for name in names]
    return found or [CompletionItem(incomplete, type="file")]
