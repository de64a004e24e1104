"""How long a report takes to build, how large it is, and how soon the page answers a reader.

    python benchmarks/report.py [DIR] [--rounds 5]

DIR is a study with its records, `results/novel` if not given. Building is timed in a process of its
own, start included. The browser (Chromium, by Playwright) opens the page from disk, each time in a
new context: milliseconds from navigation until the document can be used and until the slider of the
number line has answered, and how long it takes from the first scroll until every figure is live.
Promised for the novel study: built in under 10 s, at most 2.5 MB with scripts and 700 KB without,
interactive within 1 s.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from floatscope.lab.run.environment import processor

NOVEL = Path(__file__).parent.parent / "results" / "novel"
FLOATSCOPE = str(Path(sys.executable).with_name("floatscope"))
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
USABLE = "performance.getEntriesByType('navigation')[0].domInteractive"
ANSWERED = """() => {
    const slider = document.getElementById('line-scale');
    slider.value = Number(slider.value) + 8;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    document.querySelector('#line-table td').getBoundingClientRect();
    return performance.now();
}"""
LIVE = """async () => {
    const began = performance.now();
    const frame = () => new Promise(requestAnimationFrame);
    document.querySelector('.show-all')?.click();
    for (let y = 0; y < document.documentElement.scrollHeight; y += 800) {
        scrollTo(0, y);
        await frame();
    }
    while (document.querySelector('[data-live]:not([data-alive])')) await frame();
    return performance.now() - began;
}"""


def build(study: Path, page: Path, *options: str) -> float:
    """Seconds from the start of the command to its end."""
    began = time.perf_counter()
    subprocess.run(
        [FLOATSCOPE, "report", str(study), "-o", str(page), *options],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - began


def opened(browser: Any, page: Path) -> tuple[float, float, float]:
    """Milliseconds until the document is usable, until the slider answered; to make all live."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    tab = context.new_page()
    tab.goto(page.as_uri(), wait_until="domcontentloaded")
    usable = tab.evaluate(USABLE)
    found = usable, tab.evaluate(ANSWERED), tab.evaluate(LIVE)
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", nargs="?", type=Path, default=NOVEL)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole, static = Path(folder) / "whole.html", Path(folder) / "static.html"
        print(f"{processor()}, {options.rounds} rounds, medians\n")
        built = [build(options.study, whole) for _ in range(options.rounds)]
        build(options.study, static, "--static")
        print(f"built in             {statistics.median(built):8.1f} s")
        print(f"whole, static        {size(whole):8.2f} MB, {size(static):.2f} MB")
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        if chromium is None:
            print("no chromium: the page was not opened")
            return
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            times = [opened(browser, whole) for _ in range(options.rounds)]
            browser.close()
    usable, answered, live = (statistics.median(each) for each in zip(*times, strict=True))
    print(f"document usable      {usable:8.0f} ms")
    print(f"slider has answered  {answered:8.0f} ms")
    print(f"all figures live     {live:8.0f} ms, from the first scroll")


def size(page: Path) -> float:
    return page.stat().st_size / 1e6


if __name__ == "__main__":
    main()
