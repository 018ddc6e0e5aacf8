"""Pages are served while runs train, to whoever has the address, on this machine.

Nothing is written.
"""

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from laid import lay_run, lay_sweep, set_status

sys.path.insert(0, str(Path(__file__).parent / "fault"))

import browser
from browser import CHROMIUM, WIDTHS, served

from runner.__main__ import main
from runner.command import watch
from runner.report.page import SCRIPT
from runner.report.selection import summarise
from runner.report.sweep_page import write_report

BAD = "</script><script>alert(1)</script><!--"
LINES = [
    {"step": n, "loss": 1 / n, "num_tokens": 10 * n, "elapsed_seconds": 2.0 * n}
    for n in range(1, 6)
]


@pytest.fixture
def root(tmp_path):
    lay_sweep(tmp_path / "kl", {(0.1, 1e-4, 0): 0.5, (0.5, 1e-4, 0): 0.8}, logged=True)
    lay_run(tmp_path / "alone" / "run", state="running", lines=LINES)
    return tmp_path


def ask(server, path: str, method: str = "GET", **headers) -> tuple[int, str, dict]:
    """Status, text and headers of an answer.

    ``path`` is what follows the token, or begins with a slash.
    """
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    url_path = path if path.startswith("/") else urlsplit(server.address).path + path
    connection.request(
        method, url_path, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )
    answer = connection.getresponse()
    response = answer.status, answer.read().decode(), dict(answer.headers)
    connection.close()
    return response


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each file with its time and content, and each folder with its time."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def data_of(page: str) -> dict:
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )


@pytest.mark.slow
def test_every_page_exists_and_links_to_the_others(root):
    with served(root) as server:
        for page, links in (
            ("", ["alone/report.html", "kl/report.html", "report.html"]),
            ("kl/report.html", ["../", "kl-0.1%2Blr-0.0001%2Bseed-0/report.html"]),
            (
                "report.html",
                ["./", "alone/run/report.html", "kl/kl-0.1%2Blr-0.0001%2Bseed-0/report.html"],
            ),
            ("alone/run/report.html", ["../report.html"]),
            ("kl/kl-0.1%2Blr-0.0001%2Bseed-0/report.html", ["../report.html"]),
        ):
            status, text, headers = ask(server, page)
            assert status == 200 and set(re.findall(r'href="([^"]+)"', text)) >= set(links), page
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Content-Type"].startswith("text/html")
            status, text, response_headers = ask(server, page, "HEAD")
            assert (status, text, response_headers | {"Date": ""}) == (
                200,
                "",
                headers | {"Date": ""},
            )


def test_the_front_page_says_what_is_trained_how_well_and_how_far(root, monkeypatch):
    trainer = {"_target_": "trl.SFTTrainer", "args": {}}
    line = {"step": 2, "loss": 0.25, "remaining_seconds": 187.0}
    models = [{"path": f"org/Model-{n}"} for n in range(5)]
    for n, model in enumerate(models):
        state = "interrupted" if n else "running"
        lay_run(root / "going" / f"{n}", state=state, lines=[line], trainer=trainer, model=model)
    host = json.loads((root / "going" / "0" / "status.json").read_text())
    (root / "going" / "0" / "status.json").write_text(
        json.dumps(host | {"host": socket.gethostname(), "pid": os.getpid()})
    )
    (lay_run(root / "broken" / "run", state="created") / "config.yaml").write_text("a: [")
    described = []
    describe = watch.describe_name
    monkeypatch.setattr(
        watch, "describe_name", lambda *words: described.append(words[0].name) or describe(*words)
    )
    with served(root) as server:
        _, text, headers = ask(server, "")
        cells = {}
        for row in re.findall("<tr>(.*?)</tr>", text)[1:]:
            texts = [re.sub("<[^>]*>", "", cell).strip() for cell in row.split("</td>")]
            cells[texts[0]] = texts[1:7]
        assert cells["kl"] == ["DPO", "", "0.8", "eval_exact kl_coef=0.5", "100 %", ""]
        assert cells["going"] == [
            "SFT",
            "model-0, model-1, model-2, and 2 more",
            "0.25",
            "loss so far",
            "50 %",
            "3:07",
        ]
        assert cells["alone"][2:5] == ["0.2", "loss so far", "50 %"]
        assert cells["broken"] == ["", "", "", "", "50 %", ""]
        assert sorted(described) == ["alone", "broken", "going", "kl"]
        assert ask(server, "", If_None_Match=headers["ETag"])[0] == 304
        set_status(root / "alone" / "run", step=6)
        assert "75 %" in ask(server, "", If_None_Match=headers["ETag"])[1]
        assert sorted(described) == ["alone", "alone", "broken", "going", "kl"]
        shutil.rmtree(root / "broken")
        assert "broken" not in ask(server, "")[1]
        assert "<span>3:07 left</span>" in ask(server, "going/0/report.html")[1]
        assert " left</span>" not in ask(server, "going/1/report.html")[1]


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], ""),
        (["{}"], ""),
        (["{}/"], ""),
        (["./{}", "kl"], "kl/report.html"),
    ],
)
def test_the_folder_of_all_names_is_watched_as_well(words, address, root, monkeypatch, capsys):
    monkeypatch.chdir(root.parent)
    words = [word.format(root.name) for word in words] + [f"output_root={root.name}"]
    monkeypatch.setattr(watch.Server, "serve_forever", lambda server: None)
    assert main(["watch", *words]) == 0
    assert re.search(rf"page      http://127.0.0.1:\d+/[\w-]+/{address}$", capsys.readouterr().out)
    if not address:
        assert main(["report", *words]) == 0
        assert f"  {root.name}/kl " in capsys.readouterr().out


def test_nothing_else_is_served(root):
    lay_run(root / "secret" / "run", lines=LINES)
    page = "kl/report.html"
    inner = "kl/kl-0.1+lr-0.0001+seed-0"
    missing = [
        "/",
        "/{token}",
        "/wrong/" + page,
        "/wrong%E9/" + page,
        "kl/",
        "kl",
        "kl/summary.csv",
        "kl/gone/report.html",
        "//" + page,
    ]
    missing += [
        "../secret/report.html",
        "kl/../../secret/report.html",
        "kl/..%2Fsecret/report.html",
    ]
    missing += [
        "%2e%2e/secret/report.html",
        "secret/report.html",
        f"{inner}/config.yaml",
        f"{inner}/x/report.html",
    ]
    cases = [(path, "GET", {}, 404) for path in missing]
    cases += [(page, method, {}, 405) for method in ("POST", "PUT", "DELETE", "ANYTHING")]
    cases += [
        (page, "GET", {"Host": host}, 403)
        for host in ("evil.example", "127.0.0.1", "evil.example:{port}")
    ]
    with served(root, ["alone", "kl"]) as server:
        for path, method, headers, status in cases:
            hosts = {name: text.format(port=server.server_port) for name, text in headers.items()}
            code, text, sent = ask(server, path.replace("{token}", server.token), method, **hosts)
            assert code == status and "<" not in text and server.token not in str(sent) + text, path
            assert "Python" not in str(sent)


@pytest.mark.slow
def test_a_page_is_drawn_again_when_its_files_grow_and_the_run_may_go(root):
    with served(root) as server:
        _, text, headers = ask(server, "alone/run/report.html")
        same = ask(server, "alone/run/report.html", If_None_Match=headers["ETag"])
        assert same[:2] == (304, "")
        assert len(data_of(text)["steps"][0]) == 5
        path = root / "alone" / "run" / "metrics.jsonl"
        for name in ("alone/run/report.html", "alone/report.html", "report.html"):
            etag = ask(server, name)[2]["ETag"]
            with path.open("a") as file:
                step = len(path.read_text().splitlines()) + 1
                file.write(json.dumps({"step": step, "loss": 0.5}) + '\n{"step": 99, "lo')
            status, text, headers = ask(server, name, If_None_Match=etag)
            assert status == 200 and headers["ETag"] != etag, name
            path.write_text(path.read_text().rpartition("\n")[0] + "\n")
        assert max(map(max, data_of(text)["steps"])) == 8
        (root / "alone" / "run" / "status.json").write_text("{")
        assert ask(server, "alone/run/report.html")[0] == 200
        shutil.rmtree(root / "alone" / "run")
        assert ask(server, "alone/run/report.html")[:2] == (
            404,
            "No such page: its runs may have been deleted.",
        )
        lay_run(root / "kl" / "later", lines=LINES, kl_coef=0.9)
        assert "later/report.html" in ask(server, "kl/report.html")[1]


def test_to_look_writes_nothing(root):
    before = snapshot(root)
    with served(root) as server:
        for page in (
            "",
            "kl/report.html",
            "report.html",
            "alone/run/report.html",
            "kl/report.html",
        ):
            assert ask(server, page)[0] == 200
    assert snapshot(root) == before


@pytest.mark.slow
def test_the_script_is_the_one_that_the_page_names_and_small(root):
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert len(SCRIPT.encode()) <= 100_000
    assert "</script" not in SCRIPT
    assert "<!--" not in SCRIPT
    write_report(summarise(root / "kl"))
    with served(root) as server:
        _, live, headers = ask(server, "kl/report.html")
    for page, details in (
        ((root / "kl" / "report.html").read_text(), ""),
        (live, "; connect-src 'self'"),
    ):
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
        rules = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        assert policy == f"{rules}; script-src 'sha256-{digest}'{details}"
        assert page.count("<script>") == 1
        assert f"<script>{SCRIPT}</script>" in page
    assert headers["Content-Security-Policy"].startswith(policy)


def test_no_name_of_a_stranger_ends_the_data_or_the_page(tmp_path):
    lines = [{"step": n, "loss": n, f"eval_{BAD}_loss": n} for n in (1, 2, 3)]
    for name in ("one", "two"):
        lay_run(
            tmp_path / "x" / f"{name} <b>",
            lines=lines,
            kl_coef=f"{BAD}{name}",
            after={f"eval_{BAD}": 1.0},
        )
    with served(tmp_path) as server:
        for page in ("x/report.html", "x/one%20%3Cb%3E/report.html", ""):
            text = ask(server, page)[1]
            assert "alert(1)</script>" not in text
            assert text.count("<script") == 2
        assert BAD in str(data_of(ask(server, "x/report.html")[1])["labels"])
        assert any(
            BAD in label
            for label, *_ in data_of(ask(server, "x/one%20%3Cb%3E/report.html")[1])["labels"]
        )


def test_the_numbers_of_a_page_are_those_of_the_log(tmp_path):
    for seed, top in ((0, 1.0), (1, 3.0)):
        lines = [
            {"step": n, "loss": n * top, "num_tokens": n * 100, "elapsed_seconds": n * 2.0}
            for n in (1, 2)
        ]
        lay_run(tmp_path / "g" / f"{seed}", seed=seed, lines=lines)
    page = write_report(summarise(tmp_path / "g")).read_text()
    data = data_of(page)
    ((name, title, [[label, dashed, steps, values, sds]], share),) = data["charts"]
    assert not share
    assert (name, title, label, dashed, data["steps"][steps]) == ("loss", "loss", 0, False, [1, 2])
    assert values == [2, 4]
    assert sds == [1.414214, 2.828427]
    assert data["labels"][0][2] == {"tokens": [steps, [100, 200]], "time": [steps, [2, 4]]}


def test_a_setting_keeps_its_colour_while_others_pass_it(root):
    with served(root) as server:
        colours = dict(label[:2] for label in data_of(ask(server, "kl/report.html")[1])["labels"])
        lay_sweep(root / "kl", {(0.9, 1e-4, 0): 0.95, (0.05, 1e-4, 0): 0.1}, logged=True)
        _, text, _ = ask(server, "kl/report.html")
    later = dict(label[:2] for label in data_of(text)["labels"])
    assert len(later) == len(set(later.values())) == 4
    assert next(iter(later)) == "kl_coef=0.9"
    assert {label: later[label] for label in colours} == colours
    assert "python -m runner report</code> writes.</p>" in text


@pytest.mark.slow
def test_several_names_share_a_page_and_keep_their_own(root, monkeypatch, capsys):
    monkeypatch.chdir(root.parent)
    words = [f"{root.name}/kl", f"{root.name}/alone/run", f"output_root={root.name}"]
    assert main(["report", *words, "objective=loss"]) == 0
    out = capsys.readouterr().out
    assert out.count("report    ") == 2
    assert f"{root.name}/side_by_side.html" in out
    page = (root / "side_by_side.html").read_text()
    assert "alone" in page
    assert 'href="alone/run/report.html"' in page
    assert ">name</th>" in page
    assert not (root / "summary.csv").exists()
    assert (root / "kl" / "summary.csv").exists()


@pytest.mark.slow
def test_the_verb_prints_its_address_and_ends_by_ctrl_c(root, runner):
    started = runner.start("watch", str(root / "kl"))
    try:
        address = None
        deadline = time.monotonic() + 600
        while not address:
            assert not started.ended()
            assert time.monotonic() < deadline
            text = started.out.read_text() if started.out.exists() else ""
            address = re.search(r"page +(http://127\.0\.0\.1:(\d+)/(\S{32})/kl/report\.html)", text)
            time.sleep(0.02)
        connection = http.client.HTTPConnection("127.0.0.1", int(address[2]), timeout=600)
        connection.request("GET", urlsplit(address[1]).path)
        assert connection.getresponse().status == 200
        refused = runner("watch", f"port={address[2]}", code=5)
        assert "port=0" in refused.stderr
        assert address[2] in refused.stderr
    finally:
        started.send(signal.SIGINT)
    done = started.wait()
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count(address[3]) == 1


def test_readers_who_say_nothing_hang_up_or_take_nothing_leave_no_trace(root, monkeypatch, capsys):
    monkeypatch.setattr(watch.Handler, "timeout", 0.2)
    ended = []
    monkeypatch.setattr(
        watch.Server, "shutdown_request", lambda self, request: ended.append(request.close())
    )
    with served(root) as server:
        monkeypatch.setattr(server, "page_of", lambda address, cache: ('"x"', "y" * 30_000_000))
        asked = (
            f"GET {urlsplit(server.address).path} HTTP/1.1\r\nHost: {server.hosts[0]}\r\n\r\n"
        ).encode()
        readers = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(5)]
        silent, leaving, half, greedy, gone = readers
        half.send(b"GET / HTTP/1.1\r\nHost:")
        greedy.send(asked)  # and reads nothing of it
        gone.send(asked)
        for reader in (leaving, gone):
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader.close()  # closed by a reset
        assert silent.recv(1) == half.recv(1) == b""
        deadline = time.monotonic() + 60
        while len(ended) < len(readers):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for reader in readers:
            reader.close()
    assert capsys.readouterr().err == ""


@pytest.mark.dear("a real browser")
@pytest.mark.grid(0)
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_draws_every_page_and_the_controls_do_what_they_say(tmp_path):
    browser.lay(root := tmp_path / "outputs")
    assert list(browser.misses(root, widths=WIDTHS[1:])) == []
