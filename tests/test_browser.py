"""The site and a report in Chromium: search, the dark scheme, narrow screens and the console.

Environment variables:
    STOIX_LIKE_SITE: a site that is built already, such as `site` after `make docs`; by default the tests build it.
    STOIX_LIKE_SCREENSHOTS: directory to write `site.png` and `report.png` to, the pictures of `docs/images`.
"""

import contextlib
import functools
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from support.lazily import Lazy
from support.recorded import write_run

report = Lazy("stoix_like.lab.analysis.report")
webdriver = Lazy("selenium.webdriver")
wait = Lazy("selenium.webdriver.support.wait")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
PHONE, DESKTOP = 390, 1280
# Names of hosts are not resolved: what a page loads from elsewhere is an error in its console.
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, with another index of the search if one is given."""

    def __init__(self, *args, index=None, **kwargs):
        self.index = index
        super().__init__(*args, **kwargs)

    def translate_path(self, path):
        return str(self.index) if self.index and path.endswith("search_index.json") else super().translate_path(path)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def served(directory, index=None):
    handler = functools.partial(Handler, directory=directory, index=index)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = os.environ.get("STOIX_LIKE_SITE")
    if directory is None:
        directory = tmp_path_factory.mktemp("site")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    pages = sorted(path.relative_to(directory).as_posix() for path in Path(directory).rglob("*.html"))
    return directory, [page for page in pages if page != "404.html"]


@pytest.fixture(scope="module")
def address(site):
    with served(site[0]) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()


def resize(browser, width, height=800, scale=1):
    """Set the size of the screen; windows have a least width, screens have none."""
    sizes = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)


def errors(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def width_of_page(browser):
    return browser.execute_script("return document.scrollingElement.scrollWidth")


def wait_for(browser, selector):
    elements = functools.partial(browser.find_elements, "css selector", selector)
    return wait.WebDriverWait(browser, 30).until(
        lambda _: next((one for one in elements() if one.is_displayed()), None)
    )


def save_screenshot(browser, name):
    """Write what the browser shows, where screenshots are asked for."""
    if directory := os.environ.get("STOIX_LIKE_SCREENSHOTS"):
        assert browser.save_screenshot(f"{directory}/{name}.png")


# Words that the layout breaks, which are on several lines, so their boxes have different tops.
_BROKEN_WORDS = """
const broken = [];
for (const cell of document.querySelectorAll(arguments[0] || "th, td")) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    for (const match of walker.currentNode.data.matchAll(/[^\\s-]+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, match.index);
      range.setEnd(walker.currentNode, match.index + match[0].length);
      if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) broken.push(match[0]);
    }
  }
}
return broken;
"""
# Tables and code that are wider than their boxes.
_CUT_OFF = """
return [...document.querySelectorAll("article .md-typeset__scrollwrap, article pre > code")]
  .filter(box => box.scrollWidth > box.clientWidth + 1)
  .map(box => box.scrollWidth + " > " + box.clientWidth + ": " + box.textContent.trim().slice(0, 60));
"""


def test_search_finds_a_word_and_opens_the_page(address, browser):
    resize(browser, 1280)
    browser.get(address)
    field = wait_for(browser, "[data-md-component=search-query]")
    field.click()
    field.send_keys("gumbel")
    result = wait_for(browser, ".md-search-result__item a")
    found = result.get_attribute("href")
    result.click()
    wait.WebDriverWait(browser, 30).until(lambda _: browser.current_url == found != address)
    assert "gumbel" in wait_for(browser, "article").text.lower()
    assert errors(browser) == []


def test_pages_fit_a_phone_and_a_desktop_and_have_no_errors(site, browser, tmp_path):
    directory, pages = site
    # Every page reads the index of the search, megabytes, when it is loaded: here a short one.
    index = tmp_path / "search_index.json"
    search = json.loads(Path(directory, "search/search_index.json").read_text())
    index.write_text(json.dumps({**search, "docs": search["docs"][:1]}))
    found = []
    with served(directory, index) as address:
        for width, page in itertools.product((PHONE, DESKTOP), pages):
            resize(browser, width)
            browser.get(address + page)
            if width_of_page(browser) > width + 1:
                found.append((page, width, width_of_page(browser)))
            # Signatures of the reference scroll in their boxes.
            if width == DESKTOP and not page.startswith("reference/"):
                cut = browser.execute_script(_CUT_OFF) + browser.execute_script(_BROKEN_WORDS, "article code")
                found += [(page, text) for text in cut]
            found += [(page, error) for error in errors(browser)]
    assert found == []


@pytest.fixture
def reports(tmp_path):
    """Write invented runs of three recurrent cells and a report, and another with a grid on another environment."""
    steps, rng = np.arange(11)[:, None], np.random.default_rng(0)
    for cell, final, speed in (("gru", 0.93, 0.9), ("lstm", 0.91, 0.7), ("s5", 0.97, 1.3)):
        curves = final / (1.0 + np.exp(4.0 - speed * steps)) + rng.normal(0.0, 0.02, (11, 5))
        write_run(
            tmp_path / "cells" / cell,
            curves=curves.clip(0.0, 1.0).tolist(),
            system="ppo/rec_ppo",
            env="Example-v0",
            cell=cell,
        )
    rates = {"actor_lr": [1e-3, 1e-4], "gamma": [0.9, 0.99]}
    write_run(tmp_path / "varied", (0.5, 0.52), env="Other-v0", varied=rates)
    pages = {tmp_path / "cells.html": tmp_path / "cells", tmp_path / "all.html": tmp_path}
    for page, runs in pages.items():
        report.write([runs], page, animation=False)
    return [page.as_uri() for page in pages]


def test_reports_are_readable_on_a_phone_and_have_no_errors(reports, browser):
    resize(browser, 1000, 1000)
    browser.get(reports[0])
    save_screenshot(browser, "report")
    for page, width in itertools.product(reports, (1000, PHONE)):
        resize(browser, width)
        browser.get(page)
        assert width_of_page(browser) <= width + 1
        assert browser.execute_script(_BROKEN_WORDS) == []
        assert errors(browser) == []
