"""A browser that looks at the pages, by the DevTools protocol over two pipes; no package is needed.

    python tests/fault/browser.py [--keep FOLDER]

Lays runs by hand, writes and serves their pages, and in ``chromium`` (of the PATH) looks at each at
1280 and at 390 pixels: its curves are drawn, nothing is wider than the window, no error is logged,
and the controls do what they say. ``--keep`` has the screenshots. A part of it is in the suite,
which skips it without a browser.
"""

import argparse
import base64
import contextlib
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from laid import lay_run, set_status

from runner.__main__ import main
from runner.command.watch import Server

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
WIDTHS = (1280, 390)
OVER = "document.querySelector('.u-over')"  # of the first chart


class Browser:
    """A page in a headless browser."""

    def __init__(self, folder: Path):
        (theirs_in, self.out) = os.pipe()
        (self.inn, theirs_out) = os.pipe()
        command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        words = [
            "bash",
            "-c",
            command,
            "bash",
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            words, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.rest = b""
        self.number = 0
        self.session = None
        self.errors = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        """The answer to a command of the protocol."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(answer["params"])
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self.rest:
            read = os.read(self.inn, 1 << 20)
            assert read, "the browser has gone"
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def value(self, script: str):
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 15) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.value(script):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)

    def open(self, address: str, width: int, dark: bool = False) -> None:
        """Open a page in a window of this width."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.wait("location.href == 'about:blank' && document.readyState == 'complete'")
        self.call("Page.navigate", url=address)
        self.wait("location.href != 'about:blank' && document.readyState == 'complete'")

    def mouse(self, kind: str, x: float, y: float, clicks: int = 0, button: str = "none") -> None:
        """An event of the mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=clicks, button=button)

    def drag(self, x: float, y: float, to: float) -> None:
        """Drag from left to right."""
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, 1, "left")
        for step in range(1, 6):
            self.mouse("mouseMoved", x + (to - x) * step / 5, y, 0, "left")
        self.mouse("mouseReleased", to, y, 1, "left")

    def picture(self, path: Path, full_page: bool = True) -> None:
        """A screenshot, of the whole page or of the window."""
        clip = {}
        if full_page:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {
                "clip": {
                    "x": 0,
                    "y": 0,
                    "width": size["width"],
                    "height": min(size["height"], 6000),
                    "scale": 1,
                }
            }
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=full_page, **clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def overflow(self) -> int:
        """The number of pixels by which the page is wider than its window."""
        return self.value(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.inn)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = Browser(Path(folder))
        try:
            yield started
        finally:
            started.close()


@contextlib.contextmanager
def served(root: Path, names: Sequence[str] = ()) -> Iterator[Server]:
    """A server of the given names under a folder, or of all of them."""
    if not names:
        names = sorted(path.name for path in root.glob("*/"))
    with Server(root, [root / name for name in names]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def lay(root: Path, steps: int = 60) -> None:
    """Lay two names.

    A sweep of four settings with two seeds, of which one run still trains, and a single run.
    """
    for kl, seed in itertools.product((0.05, 0.1, 0.2, 0.5), (0, 1)):
        state = "running" if (kl, seed) == (0.5, 1) else "finished"
        lines = [
            line(step, kl, seed) for step in range(1, steps // (2 if state == "running" else 1) + 1)
        ]
        folder = root / "sweep" / f"kl_coef-{kl}+seed-{seed}-0123456789"
        lay_run(
            folder,
            state=state,
            after={"eval_exact": 0.9 - kl + seed / 50},
            lines=lines,
            kl_coef=kl,
            seed=seed,
        )
        set_status(
            folder,
            pid=os.getpid(),
            host=os.uname().nodename,
            step=lines[-1]["step"],
            max_steps=steps,
        )
    lay_run(
        root / "alone" / "run-0123456789",
        after={"eval_exact": 0.7},
        lines=[line(n, 0.3, 2) for n in range(1, steps)],
    )


def line(step: int, kl: float, seed: int) -> dict:
    """A logged line."""
    wave = math.sin(step * (seed + 2) / 3) / 9
    figures = {
        "loss": 2 / (step + 5) + wave / 9,
        "reward": step * (1 - kl) / 60 + wave,
        "kl": kl * step / 9 + wave / 20,
    }
    figures |= {
        "num_tokens": step * 900,
        "elapsed_seconds": step * (2 + kl),
        "tokens_per_second": 450 + 300 * wave,
    }
    figures |= {
        "grad_norm": 1 + wave,
        "learning_rate": 1e-4 / step,
        "memory/peak_gb": 1.5 + step / 900,
    }
    return {"step": step, **figures} | ({"eval_loss": 2.1 / (step + 5)} if step % 20 == 0 else {})


def misses(root: Path, keep: Path | None = None, widths=WIDTHS) -> Iterator[str]:
    """The faults of the pages of the names under a folder, as files and served."""
    for name in ("sweep", "alone"):
        assert main(["report", str(root / name), f"output_root={root}"]) == 0
    assert main(["report", *(str(path) for path in root.glob("*/*-*")), f"output_root={root}"]) == 0
    with served(root) as server, browser() as page:
        run = ("alone", "run-0123456789")
        pages = {
            "run": [*run, "report.html"],
            "sweep": ["sweep", "report.html"],
            "names": ["report.html"],
        }
        files = {"names": ["side_by_side.html"]}
        for title, parts in (pages | {"index": [""]}).items():
            for width in widths:
                for kind, address in (
                    ("live", server.address + "/".join(parts)),
                    ("file", root.joinpath(*files.get(title, parts)).as_uri()),
                ):
                    if kind == "file" and title == "index":
                        continue
                    page.open(address, width)
                    if title != "index":
                        page.wait("document.documentElement.dataset.charts > 0")
                        if not page.value("document.querySelectorAll('figure canvas').length >= 5"):
                            yield f"{title} {kind} {width}: no curves"
                    if (wide := page.overflow()) > 0:
                        yield f"{title} {kind} {width}: {wide} pixels too wide"
                    if keep:
                        page.picture(keep / f"{title}-{kind}-{width}.png")
        yield from misses_of_looks(page, root.parent, keep)
        yield from misses_of_controls(page, server, root, keep)
        yield from (f"logged: {json.dumps(error)[:300]}" for error in page.errors)


def misses_of_looks(page: Browser, root: Path, keep: Path | None) -> Iterator[str]:
    """The faults in the looks of curves that coincide, have few points or far outliers, and of
    their numbers.
    """
    for kl, last in ((0.1, 40), (0.2, 40), (0.3, 400)):
        lines = [
            {"step": n, "loss": 1 / 32 + 29 / 32 * (n == 1), "kl": 123456.7 / n}
            for n in range(1, last + 1)
        ]
        lines += [{"step": n, "reward": kl * n, "elapsed_seconds": n} for n in (1, 2)]
        lay_run(root / "looks" / f"kl_coef-{kl}", lines=lines, after={"eval_exact": kl}, kl_coef=kl)
    main(["report", str(root / "looks")])
    page.open((root / "looks" / "report.html").as_uri(), 1280)
    plot = (
        "[...document.querySelectorAll('figure')].find(figure "
        "=> figure.dataset.name === '{}').chart.plot"
    ).format
    title = "document.querySelector('figure[data-name=loss] .title').innerText"
    before = page.value(f"{plot('loss')}.scales.x.max"), page.value(title)
    if not 40 <= before[0] < 50 or before[1] != "loss (1 beyond, to 400)":
        yield f"a longer run squeezes the others: {before}"
    if (
        page.value(
            f"new Set({plot('loss')}.series.map(line => "
            "line.mark && line.mark.glyph + line.dash)).size"
        )
        != 4
    ):
        yield "curves that coincide look alike"
    drawn = (
        f"{plot('reward')}.series.filter(line => line.mark).map(line "
        "=> line.mark.few && line.paths() === null)"
    )
    if page.value(drawn) != [True] * 3:
        yield "two points are a line"
    page.value(f"{OVER}.scrollIntoView()")
    for name, step, text in (
        ("loss", 2, "0.03125"),
        ("loss", 1, "0.9375"),
        ("kl", 1, "1.235e5"),
        ("kl", 40, "3086"),
    ):
        page.value(
            f"(it => {{ it.hovered = true; it.setCursor({{left: "
            f"it.valToPos({step}, 'x'), top: 50}}) }})({plot(name)})"
        )
        shown = page.value(f"{plot(name)}.root.querySelector('.values').innerText")
        if text not in shown.split():
            yield f"{name} at {step} is {shown!r}, not {text}"
    if keep:
        page.picture(keep / "looks.png")
    page.value("document.querySelector('.reset').click()")
    if page.value(f"{plot('loss')}.scales.x.max") != 400:
        yield "the whole range is not shown"


def misses_of_controls(
    page: Browser, server: Server, root: Path, keep: Path | None
) -> Iterator[str]:
    """The faults of the controls of the sweep's live page, and of its reaction to new rows and a
    lost server.
    """
    page.open(f"{server.address}sweep/report.html", 1280)
    page.wait("document.documentElement.dataset.charts > 0")
    page.value("document.querySelector('.controls').scrollIntoView()")
    x, y, width, height = page.value(
        f"(box => [box.x, box.y, box.width, box.height])({OVER}.getBoundingClientRect())"
    )
    page.mouse("mouseMoved", x + width * 0.5, y + height / 2)
    page.mouse("mouseMoved", x + width * 0.6, y + height / 2)
    page.wait("!document.querySelector('.values').hidden")
    if not all(
        f"kl_coef={kl}" in page.value("document.querySelector('.values').innerText")
        for kl in (0.05, 0.5)
    ):
        yield "no values at the cursor"
    if keep:
        page.picture(keep / "cursor.png", full_page=False)
    page.drag(x + width * 0.3, y + height / 2, x + width * 0.6)
    page.wait("!document.querySelector('.reset').disabled")
    page.value("document.querySelector('.controls input[type=checkbox]').click()")
    slide = "document.querySelector('.controls input[type=range]')"
    page.value(f"{slide}.value = 0.8; {slide}.dispatchEvent(new Event('input'))")
    page.value("document.querySelector('tr[data-label] button').click()")
    if page.value("document.querySelectorAll('.off').length") != 2:
        yield "a setting is not hidden in its row and in the legend"
    runs = (
        "[...document.querySelectorAll('section')].find(part => part.innerText.startsWith('Runs'))"
    )
    for _ in range(2):
        page.value(
            f"[...{runs}.querySelectorAll('th button')].find(each "
            "=> each.innerText == 'seed').click()"
        )
    if (
        page.value(f"{runs}.querySelector('th[aria-sort=descending]').innerText.trim()")[:4]
        != "seed"
    ):
        yield "the runs are not sorted"
    page.value(f"{runs}.querySelector('input').focus()")
    page.call("Input.insertText", text="0.5")
    if (
        page.value(f"[...{runs}.querySelectorAll('tbody tr')].filter(row => !row.hidden).length")
        != 2
    ):
        yield "the runs are not filtered"
    if keep:
        page.picture(keep / "choices.png", full_page=False)
    (metrics,) = root.glob("sweep/kl_coef-0.5+seed-1-*/metrics.jsonl")
    with metrics.open("a") as file:
        file.writelines(json.dumps(line(step, 0.5, 1)) + "\n" for step in range(31, 46))
    set_status(metrics.parent, step=45)
    page.wait("document.body.innerText.includes('45/60')")
    errors = [
        page.value("document.activeElement.value"),
        page.value("document.querySelectorAll('.off').length"),
    ]
    if [*errors, page.value("document.querySelector('.reset').disabled")] != ["0.5", 2, False]:
        yield f"a page that renews itself loses choices: {errors}"
    server.shutdown()
    server.server_close()
    page.wait("document.querySelector('.live').textContent.startsWith('disconnected')")
    page.errors = [error for error in page.errors if "CONNECTION_REFUSED" not in json.dumps(error)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="a folder for the screenshots")
    keep = parser.parse_args().keep
    if not CHROMIUM:
        sys.exit("no chromium on PATH")
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        lay(root := Path(folder) / "outputs")
        found = list(misses(root, keep))
    print("\n".join(found) or "all pages as they should be")
    sys.exit(bool(found))
