"""Predictions to report on, and a browser to open the reports in."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepsight.platform.load import load_platform
from stepsight.prediction.answer import Prediction
from stepsight.prediction.predict import predict
from stepsight.workload.files import load_workload

from .predictions import EXAMPLES, uneven

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1300,900", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


@pytest.fixture(scope="session")
def dlrm() -> Prediction:
    """The example DLRM on four V100s."""
    return predict(load_workload(EXAMPLES / "dlrm.toml"), load_platform("4xV100-SXM2"))


@pytest.fixture(scope="session")
def waiting() -> Prediction:
    """Four ranks of which the last is slowest."""
    return uneven([2048, 4096, 2048, 32768])


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium under WebDriver that reaches nothing but this machine."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    opened.set_script_timeout(60)
    yield opened
    opened.quit()


@pytest.fixture
def serve() -> Iterator[Callable[[Path, Mapping[str, bytes]], str]]:
    """Serves a folder and some files that exist only in memory on the loopback; gives the address."""
    servers: list[ThreadingHTTPServer] = []

    def start(folder: Path, extra: Mapping[str, bytes]) -> str:
        handler = partial(_Handler, extra, directory=str(folder))
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, extra: Mapping[str, bytes], *args: Any, **kwargs: Any) -> None:
        self.extra = extra
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        content = self.extra.get(self.path)
        if content is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Tests say what went wrong themselves."""
