"""How fields are headed in tables."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from stepsight.report.search import show_rows
from stepsight.tuning.answer import settings_text
from stepsight.tuning.dimensions import short_names
from stepsight.tuning.trial import Row


def test_a_field_has_its_short_name_unless_another_has_the_same() -> None:
    assert short_names(["parallel.tensor", "platform.nic.gbps"]) == {
        "parallel.tensor": "tp", "platform.nic.gbps": "gbps",
    }  # fmt: skip
    both = short_names(["platform.nic.gbps", "platform.link.gbps"])
    assert list(both.values()) == ["nic.gbps", "link.gbps"]
    assert list(short_names(["batch", "a.batch", "b.a.batch"]).values()) == ["batch", "a.batch", "b.a.batch"]


def test_a_sweep_over_two_rates_tells_them_apart() -> None:
    settings = {"platform.nic.gbps": 50, "platform.link.gbps": 450}
    console = Console(width=120, record=True, file=StringIO())
    show_rows([Row(settings, "8xH100-SXM", step_time_us=1e3, low_us=9e2, high_us=2e3)], console)
    head = console.export_text().splitlines()[0]
    assert "nic.gbps" in head and "link.gbps" in head
    assert settings_text(settings) == "nic.gbps 50, link.gbps 450"
