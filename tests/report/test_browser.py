"""The page in a browser: nothing scrolls sideways, overlaps, is empty, or is too small to read."""

import shutil

import pytest
from report.synthetic import write_run
from selenium import webdriver

from byov_jax import report

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTHS = (1280, 400)
LEAST_TEXT = 8.0
BOXES = """
return [...document.querySelectorAll(arguments[0])].map(element => {
  const box = element.getBoundingClientRect();
  return {left: box.left, top: box.top + scrollY, right: box.right, bottom: box.bottom + scrollY};
});
"""
EMPTY = """
return [...document.querySelectorAll("figure.panel")].filter(panel => {
  const box = panel.querySelector("svg").getBoundingClientRect();
  const data = [...panel.querySelectorAll('g[id*="-data-"]')];
  const drawn = data.flatMap(group => [...group.querySelectorAll("path, use, image")]).filter(mark => {
    const size = mark.getBoundingClientRect();
    return size.width + size.height > 0 && !mark.closest("defs");
  });
  return !(box.width > 0 && box.height > 0 && drawn.length);
}).map(panel => panel.querySelector("[aria-label]").getAttribute("aria-label"));
"""
TEXT = """
return [...document.querySelectorAll("figure.panel text")].map(text => {
  const matrix = text.getScreenCTM();
  const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
  return {what: text.textContent, size: size};
});
"""
CUT = """
return [...document.querySelectorAll("figure.panel")].flatMap(panel => {
  const frame = panel.querySelector("svg").getBoundingClientRect();
  return [...panel.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2
      || box.bottom > frame.bottom + 2;
  }).map(text => text.textContent);
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three methods and a second seed: every section there is."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("byov", "byol", "supervised_bbb"):
        write_run(root / method, method)
    write_run(root / "seed", "byol", seed=1, parts=["calibration"])
    return report.write([root], root / "report.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module", params=WIDTHS, ids="{} px".format)
def shown(request, browser, page):
    """The page in a window of that width; Chromium itself makes none below 500 px."""
    size = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    assert browser.execute_script("return innerWidth") == request.param
    return browser


@pytest.mark.slow
def test_the_page_never_scrolls_sideways(shown):
    assert shown.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    shown.execute_script("document.querySelectorAll('details').forEach(element => element.open = true)")
    assert shown.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_the_browser_does_not_complain(shown):
    assert [entry for entry in shown.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.slow
@pytest.mark.parametrize("selector", ["figure.panel, figure.card", "section"])
def test_no_two_boxes_overlap(shown, selector):
    boxes = shown.execute_script(BOXES, selector)
    assert len(boxes) > 10
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            across = min(a["right"], b["right"]) - max(a["left"], b["left"])
            down = min(a["bottom"], b["bottom"]) - max(a["top"], b["top"])
            assert across < 1 or down < 1


@pytest.mark.slow
def test_every_panel_shows_data(shown):
    assert shown.execute_script(EMPTY) == []


@pytest.mark.slow
def test_text_in_panels_can_be_read(shown):
    found = shown.execute_script(TEXT)
    assert len(found) > 100
    for text in found:
        assert text["size"] >= LEAST_TEXT, text


@pytest.mark.slow
def test_no_text_is_cut_off(shown):
    assert shown.execute_script(CUT) == []


@pytest.mark.slow
def test_links_of_the_contents_lead_somewhere(shown):
    missing = (
        "return [...document.querySelectorAll('nav a')].filter(a => !document.querySelector(a.hash)).length"
    )
    assert shown.execute_script(missing) == 0
