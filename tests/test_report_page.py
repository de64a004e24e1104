"""The page in a real browser: languages, slider, explorer, prediction, accessibility, widths.

Needs Chromium, Playwright and axe-core; skipped with the reason where one is missing, and failing
where continuous integration misses one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floatscope.formats import decode, encode
from floatscope.formats import format as format_called
from floatscope.formats.show import exact_decimal
from floatscope.lab.probe.answers import percent
from floatscope.report.assemble import assembled, sections_of
from floatscope.report.counts import FORMATS
from floatscope.report.evidence import Evidence, gather
from floatscope.report.instruments import explorer
from floatscope.report.sections.number_line import LEAST, MOST
from floatscope.report.shell import Page
from tests.made_study import made_study
from tests.page_tools import ROOT, missing

NOVEL = ROOT / "results" / "novel"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PATIENCE = 120_000
"""Milliseconds: a busy machine is no bug."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing("no chromium: apt-get install chromium fonts-noto-cjk")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def novel() -> Evidence:
    return gather(NOVEL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, novel: Evidence) -> dict[str, Path]:
    """The novel study's page, whole and static; that of one run; and the explorer."""
    folder = tmp_path_factory.mktemp("pages")
    one = gather(made_study(folder / "study", finished=1).path)
    sections = sections_of(novel)
    texts = {
        "novel": assembled(novel, sections, Page()),
        "static": assembled(novel, sections, Page(language="zh", is_static=True)),
        "one": assembled(one, sections_of(one), Page()),
        "explore": explorer(Page()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


class Opened:
    """A page on the screen, and what went wrong in it."""

    def __init__(self, browser: Any, path: Path, width: int = 1440, **options: Any) -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.uri = path.as_uri()

    def choose(self, radio: str) -> None:
        self.page.click(f"label[for={radio}]")

    def reveal(self) -> None:
        self.page.locator(".show-all").first.click()

    def scroll_through(self) -> None:
        self.page.evaluate("""async () => {
            for (let y = 0; y < document.documentElement.scrollHeight; y += 600) {
                scrollTo(0, y);
                await new Promise((done) => setTimeout(done, 30));
            }
        }""")

    def close(self) -> None:
        """Nothing but the file was asked for, and nothing went wrong."""
        assert self.wrong == []
        assert self.asked == [self.uri]
        self.page.context.close()


def test_figures_come_alive_and_nothing_is_fetched(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["novel"])
    opened.reveal()
    opened.scroll_through()
    opened.page.locator("[data-alive]").nth(4).wait_for()
    assert opened.page.locator("[data-alive]").count() == 5
    assert opened.page.locator("[data-alive] svg path").count() > 20
    opened.close()


def test_language_is_switched_and_remembered(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["novel"])
    heading = opened.page.locator("#verdict h2")
    assert opened.page.evaluate("document.documentElement.lang") == "en"
    assert heading.inner_text().endswith("Verdict")
    opened.choose("language-zh")
    assert opened.page.evaluate("document.documentElement.lang") == "zh"
    assert heading.inner_text().endswith("结论")
    assert opened.page.locator("#line-layer option").first.inner_text() == "全部"
    assert opened.page.locator(".en:visible").count() == 0
    opened.page.reload()
    assert opened.page.evaluate("document.documentElement.lang") == "zh"
    assert heading.inner_text().endswith("结论")
    opened.asked = opened.asked[:1]
    opened.close()


def test_the_slider_says_what_python_predicts(
    browser: Any, pages: dict[str, Path], novel: Evidence
) -> None:
    opened = Opened(browser, pages["novel"])
    probe = novel.main_probe
    assert probe is not None
    read = """([state, least, most]) => {
        document.getElementById(`line-state-${state}`).click();
        const slider = document.getElementById('line-scale');
        const found = [];
        for (let k = least; k <= most; k += 1) {
            slider.value = k;
            slider.dispatchEvent(new Event('input', { bubbles: true }));
            found.push([...document.querySelectorAll('#line-table tbody tr')].map(
                (row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent)));
        }
        return found;
    }"""
    for number, state in enumerate(probe.states):
        found = opened.page.evaluate(read, [number, LEAST, MOST])
        for place, exponent in enumerate(range(LEAST, MOST + 1)):
            for row, name in zip(found[place], FORMATS, strict=True):
                scale = 2.0**exponent
                total = state.total
                shares = (total.underflow(name, scale), total.subnormal(name, scale),
                          total.overflow(name, scale))  # fmt: skip
                assert row == [percent(share.fraction) for share in shares], (name, exponent)
    opened.close()


def test_layer_and_role_select_tensors(
    browser: Any, pages: dict[str, Path], novel: Evidence
) -> None:
    opened = Opened(browser, pages["novel"])
    probe = novel.main_probe
    assert probe is not None
    opened.page.select_option("#line-layer", "2")
    opened.page.select_option("#line-role", "attention.q")
    spectrum = probe.states[-1].spectra["blocks.2.attention.q.weight"]
    shown = opened.page.locator("#line-table tr[data-format=fp16] td").first.inner_text()
    assert shown == percent(spectrum.underflow("fp16").fraction)
    rows = [m for m in probe.states[-1].measured if m.name == "blocks.2.attention.q.weight"]
    mxfp4 = next(m for m in rows if m.format == "mxfp4")
    shown = opened.page.locator("#line-blocks tr[data-format=mxfp4] td").first.inner_text()
    assert shown == percent(mxfp4.underflow / mxfp4.of)
    opened.close()


def test_results_stay_hidden_until_predicted(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["novel"])
    page = opened.page
    curve = page.locator("#loss-difference")
    assert not curve.is_visible()
    assert not page.locator(".card").first.is_visible()
    page.check("#predict-worst-1")
    page.fill("#predict-words", "bf16 <b>loses</b>")
    page.click("#reveal")
    assert curve.is_visible()
    assert "bf16-mixed" in page.locator("#predicted").inner_text()
    assert "bf16 <b>loses</b>" in page.locator("#predicted").inner_text()
    page.reload()
    assert curve.is_visible()
    assert page.locator("#predict-worst-1").is_checked()
    page.click("#forget")
    assert not curve.is_visible()
    assert not page.locator("#predict-worst-1").is_checked()
    opened.asked = opened.asked[:1]
    opened.close()


def test_bits_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["explore"])
    page, fp16 = opened.page, format_called("fp16")
    page.fill("#bits-value", "1")
    page.focus("#bits-fields button")  # the sign
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    page.keyboard.press("Space")
    value = decode(encode(1, fp16) ^ 1, fp16)
    assert page.input_value("#bits-value") == exact_decimal(value)
    assert page.evaluate("document.activeElement.dataset.bit") == "0"
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.input_value("#bits-value") == "-" + exact_decimal(value)
    assert exact_decimal(-value) in page.locator("#bits-facts").inner_text()
    assert page.locator("#bits-fields button[aria-pressed=true]").count() == 6
    page.click("#bits-above")
    assert page.input_value("#bits-value") == "-1"
    opened.close()


@pytest.mark.parametrize(
    ("name", "bits"), [("fp64", 64), ("e8m0fnu", 8), ("mxfp4", 12), ("int4", 4)]
)
def test_every_kind_of_format_has_its_bits(
    browser: Any, pages: dict[str, Path], name: str, bits: int
) -> None:
    opened = Opened(browser, pages["explore"])
    opened.page.select_option("#bits-format", name)
    assert opened.page.locator("#bits-fields button").count() == bits
    opened.page.fill("#bits-value", "4")
    assert "4" in opened.page.locator("#bits-facts dd").first.inner_text()
    opened.page.fill("#bits-value", "x")
    assert opened.page.locator("#bits-problem").inner_text().startswith("Not a number")
    opened.close()


def test_the_bench_rounds_what_is_pasted(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["explore"])
    page = opened.page
    page.select_option("#bench-element", "e2m1fn")
    page.select_option("#bench-block", "row")
    page.fill("#bench-numbers", "6 0.1 -2.4 5")
    after = page.locator("#bench-first tr").nth(1).locator("td").all_inner_texts()
    assert after == ["6", "0", "-2", "4"]  # 5 is a tie between 4 and 6
    page.fill("#bench-numbers", "1 two 3")
    assert "two" in page.locator("#bench-problem").inner_text()
    page.click("#bench-draw")
    assert "256 (4 × 64)" in page.locator("#bench-facts").inner_text()
    opened.close()


def serious(page: Any) -> list[str]:
    """What axe-core finds that is serious or critical."""
    if not AXE.exists():
        missing("axe-core is not installed: npm ci")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:200]}"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["novel", "one", "explore", "static"])
def test_no_barrier(browser: Any, pages: dict[str, Path], name: str, theme: str) -> None:
    opened = Opened(browser, pages[name])
    opened.choose(f"theme-{theme}")
    if name in ("novel", "one"):
        opened.reveal()
    assert serious(opened.page) == []
    opened.close()


def test_a_planted_barrier_is_found(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["explore"])
    opened.page.evaluate("document.querySelector('main').append(Object.assign("
                         "document.createElement('img'), {width: 9, height: 9}))")  # fmt: skip
    assert [fault.split(":")[0] for fault in serious(opened.page)] == ["image-alt"]
    opened.close()


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("name", ["novel", "one", "explore", "static"])
def test_no_sideways_scroll(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    opened = Opened(browser, pages[name], width)
    if name in ("novel", "one"):
        opened.reveal()
        opened.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        opened.scroll_through()
    for language in ("en", "zh"):
        opened.choose(f"language-{language}")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


def test_without_scripts_everything_reads(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["static"], java_script_enabled=False)
    page = opened.page
    assert page.locator("#loss-difference .picture svg").is_visible()
    assert page.locator("#verdict h2").inner_text().endswith("结论")
    opened.choose("language-en")
    assert page.locator("#verdict h2").inner_text().endswith("Verdict")
    page.locator("button.grade.measured").first.click()
    assert page.locator("#grade-measured").is_visible()
    opened.close()


def test_a_page_of_placeholders_has_no_broken_figure(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["one"])
    opened.reveal()
    opened.scroll_through()
    for picture in opened.page.locator(".picture svg").all():
        box = picture.bounding_box()
        assert box is not None
        assert box["height"] > 50
    assert opened.page.locator(".pending:visible").count() >= 8
    opened.close()
