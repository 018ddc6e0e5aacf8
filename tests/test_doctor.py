"""One screen about the machine; and the verbs that only look start without anything heavy."""

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from runner.__main__ import main
from runner.command import doctor


def screen(capsys, *words, code=0):
    assert main(["doctor", *words]) == code
    return capsys.readouterr().out


def test_the_screen_fits_and_says_what_there_is(capsys, tmp_path):
    text = screen(capsys, f"output_root={tmp_path}")
    lines = text.splitlines()
    assert len(lines) <= 40 and all(len(line) <= 80 for line in lines)
    titles = [line.split()[0] for line in lines if line[0:1].isalpha()]
    assert titles[:7] == ["python", "cpu", "gpu", "models", "datasets", "disk", "hub"]
    assert "trl          1.16" in text and "GB free at" in text and "not asked, HF_HUB_OFFLINE" in text


def test_a_package_outside_of_its_range_or_missing_is_flagged(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "read_requirements", lambda: ["trl<1", "no-such-package>=2", "pyyaml>=5"])
    monkeypatch.setattr(doctor, "read_extras", dict)
    text = screen(capsys, code=5)
    assert "! trl" in text and "outside" in text and "! no-such-pa" in text and "missing" in text
    assert "  pyyaml" in text


def test_extras_tell_what_they_would_bring():
    extras = {"there": ["pyyaml>=5"], "not": ["no-such-package>=2", "pyyaml"], "both": ["trl-runner[there,not]"]}
    text = "\n".join(doctor.extras_table(extras))
    assert text.count("brings no-such-package>=2") == 2 and text.splitlines()[1].split() == ["there", "there"]


def test_the_hub_is_asked_once_and_not_when_offline(monkeypatch):
    heads = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            heads.append(self.headers["User-Agent"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert doctor.ask_hub() == f"{address} is reachable; a token is set" and heads == ["runner"]
    server.shutdown()
    server.server_close()
    assert "is not reachable" in doctor.ask_hub()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "not asked" in doctor.ask_hub() and len(heads) == 1


def test_a_hub_that_takes_too_long_is_not_waited_for(capsys, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(doctor, "ask_hub", never.wait)
    monkeypatch.setattr(doctor, "MAX_SECONDS_FOR_HUB", 0.01)
    assert "hub       no answer in 0.01 s" in screen(capsys)
    never.set()


def test_the_hub_is_asked_while_the_rest_is_read(capsys, monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(doctor, "ask_hub", lambda: asked.set() or "there")
    monkeypatch.setattr(doctor, "describe_cache", lambda *_: f"asked: {asked.wait(5)}")
    assert "models    asked: True" in screen(capsys)


def test_a_cache_at_home_is_shown_as_one_types_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctor.describe_cache(tmp_path / "hub", "*") == "nothing yet in ~/hub"


def test_a_cache_is_measured_without_following_links(tmp_path):
    (tmp_path / "blob").write_bytes(b"x" * 500_000)
    (tmp_path / "link").symlink_to(tmp_path / "blob")
    assert doctor.describe_cache(tmp_path, "*") == f"500 kB, 0 of them in {tmp_path}"


@pytest.mark.slow
def test_verbs_that_look_need_nothing_heavy(tmp_path):
    from laid import lay_run

    for name in "ab":
        lay_run(tmp_path / "outputs" / name / "run", after={"eval_x": 1.0})
    heavy = ["torch", "transformers", "datasets", "trl", "peft", "safetensors", "tokenizers", "psutil"]
    blocked = f"sys.modules |= dict.fromkeys({heavy})"
    verbs = [["doctor"], ["diff", "a", "b"], ["why", "learning_rate"], ["export", "--help"], ["reproduce", "--help"]]
    code = (
        f"import sys; {blocked}; from runner.__main__ import main; print([main(verb) for verb in {json.dumps(verbs)}])"
    )
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0]", done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["export", "diff", "why", "reproduce", "doctor", "report", "preview"])
def test_every_verb_has_its_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"python -m runner {verb}" in text and len(text.splitlines()) < 40
