"""Without a network.

One question, one line of waiting, an answer in seconds, and no folder left behind.
"""

import os
import re
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.dataset.row_source import translate_dataset_errors
from runner.errors import EnvironmentFault
from runner.io import hub
from runner.launch import processes
from runner.model.load_errors import translate_model_errors
from runner.validate.hub_names import settle_hub

WORDS = ("trainer=dpo", "dataset=descriptiveness")


@pytest.fixture
def address(monkeypatch):
    """The address of a server that accepts questions and answers none, set as the hub's."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield address


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.slow
def test_a_hub_that_never_answers_is_waited_for_in_one_line(address, here, monkeypatch, capsys):
    monkeypatch.setattr(hub, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(hub, "QUIET_SECONDS", 0.01)
    began = time.monotonic()
    assert main([*WORDS, "model=qwen2_5_0_5b"]) == 5
    assert time.monotonic() - began < 60
    streams = capsys.readouterr()
    assert streams.out == f"waiting   for {address}, at most 0 s\n"
    assert streams.err.count("is not in the cache") == 2
    assert "model.tokenizer" not in streams.err
    assert not (here / "outputs").exists()


@pytest.mark.slow
def test_an_absent_hub_is_reported_at_once(here, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert main([*WORDS]) == 5
    assert main(["predict", "model=hub", "model.path=no/where", "file=x.jsonl"]) == 5
    assert main(["preview", *WORDS]) == 5
    assert main(["rehearse", *WORDS]) == 5
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("127.0.0.1:9 is not reachable") == 4
    assert not (here / "outputs").exists()


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_at_once(address, here, monkeypatch):
    """The wait would take half an hour; the signal comes with the line about it."""
    monkeypatch.setattr(hub, "MAX_SECONDS", 1800)
    monkeypatch.setattr(hub, "QUIET_SECONDS", 0.01)
    told = []

    def interrupt(*words, **how):
        told.append(words)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(hub, "print", interrupt, raising=False)
    assert main([*WORDS]) == 130
    assert "waiting" in str(told[0])
    assert not (here / "outputs").exists()


def test_cached_files_are_used_without_asking_again(address, here, monkeypatch, capsys):
    monkeypatch.setattr(hub, "MAX_SECONDS", 0.1)
    node = {"_target_": "runner.model.load.load_model", "path": "org/name"}
    (here / "hf" / "hub" / "models--org--name" / "snapshots" / "abc").mkdir(parents=True)
    settle_hub([{"model": node}])
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert "what is in the cache is used" in capsys.readouterr().out
    monkeypatch.setattr(hub, "hub_answer", pytest.fail)
    with pytest.raises(
        EnvironmentFault, match="org/other is not in the cache, and HF_HUB_OFFLINE is set"
    ):
        settle_hub([{"model": node | {"path": "org/other"}}])


def test_nothing_is_asked_for_what_lies_here_nor_before_a_dry_run(address, here, monkeypatch):
    monkeypatch.setattr(hub, "hub_answer", pytest.fail)
    assert main([*WORDS, "--dry-run"]) == 0
    (here / "own" / "name").mkdir(parents=True)
    paths = {"model": "own/name", "dataset": "rows.jsonl", "reward": "runner://model/tiny"}
    settle_hub(
        [
            {
                key: {"_target_": "runner.model.load.load_model", "path": path}
                for key, path in paths.items()
            }
        ]
    )


def test_an_address_that_is_none_and_an_answer_that_is_none_are_no_answer(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            asked, _ = server.accept()
            asked.recv(9999)
            asked.sendall(b"\x1b[31mhello\r\n\r\n")
            asked.close()

        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        for endpoint in (address, "http://host:port", "http://[::1", "nothing", "http://a b"):
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            monkeypatch.setenv("no_proxy", "*")
            assert "is not reachable" in hub.hub_silence()
            assert "\x1b" not in hub.hub_silence()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("place", ["", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_hub_that_leads_in_a_circle_or_away_is_no_answer(here, monkeypatch, capsys, place):
    class Circle(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(302)
            self.send_header(
                "Location", place or f"http://127.0.0.1:{server.server_port}{self.path}"
            )
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *words):
            """Say nothing."""

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Circle) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert main([*WORDS]) == 5
        server.shutdown()
    reason = (
        "is not reachable"
        if place.startswith("ftp")
        else "answers 302, a redirect that leads nowhere"
    )
    assert reason in capsys.readouterr().err
    assert not (here / "outputs").exists()


@pytest.mark.parametrize("inside", [translate_model_errors, translate_dataset_errors])
def test_redirects_behind_the_first_answer_are_the_environments_fault(inside):
    redirects = type("TooManyRedirects", (Exception,), {"__module__": "httpx2"})
    with pytest.raises(EnvironmentFault, match="Exceeded 20 redirects"), inside("org/name"):
        raise redirects("Exceeded 20 redirects")


def test_the_password_in_an_address_is_not_shown(address, monkeypatch, capsys):
    monkeypatch.setattr(hub, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(hub, "QUIET_SECONDS", 0.01)
    monkeypatch.setenv("HF_ENDPOINT", address.replace("//", "//me:hunter2@"))
    assert main([*WORDS]) == 5
    streams = capsys.readouterr()
    assert "waiting" in streams.out
    assert "hunter2" not in streams.out + streams.err


@pytest.mark.skipif(not find_spec("bitsandbytes"), reason="bitsandbytes is not installed")
def test_no_kernel_is_fetched_as_a_library_is_imported(monkeypatch):
    """With the package kernels, bitsandbytes asks the hub for code.

    A local place without any stands in.
    """
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("LOCAL_KERNELS", None)
    processes.prepare_environment()
    folder = Path(find_spec("bitsandbytes").origin).parent
    fetched = set()
    for path in folder.rglob("*.py"):
        fetched |= set(
            re.findall(r"""get_kernel\(\s*["']([^"']+)""", path.read_text(encoding="utf-8"))
        )
    local = dict(entry.split("=") for entry in os.environ["LOCAL_KERNELS"].split(":"))
    assert fetched
    assert fetched <= local.keys()
    for place in local.values():
        assert not Path(place).is_dir()
