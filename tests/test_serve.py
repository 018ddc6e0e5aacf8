"""A server of others is found, started with the right words, and leaves nothing behind.

Real servers: ``tests/fault/serve_real.py``.
"""

import importlib.util
import inspect
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cli.serve import Serve
from transformers.utils.import_utils import is_serve_available

from runner.__main__ import main
from runner.command import CommandLine, _engine
from runner.command._engine import SERVE_MODULES, choose_engine, prepared_server
from runner.command._request import read_model_request
from runner.command._served_model import name_of
from runner.command.serve_options import Options
from runner.errors import EnvironmentFault
from runner.io.files import PACKAGE
from runner.launch.compose.stages import compose_runs
from runner.run import open_run
from runner.run.seal import seal

TINY = PACKAGE / "model" / "tiny"
# A server as vLLM's command is called: it answers two questions, and keeps a child that sleeps.
STAND_IN = """#!{python}
import http.server, json, os, subprocess, sys
words = sys.argv[1:]
assert words[0] == "serve", words
child = subprocess.Popen(["sleep", "600"])
with open(os.environ["STAND_IN_FACTS"], "w") as file:
    pids = [os.getpid(), child.pid]
    json.dump({{"files": os.listdir(words[1]), "pids": pids}}, file)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{{}}")
    def log_message(self, *words):
        pass
port = int(words[words.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def lay(tmp_path, monkeypatch):
    """A finished run on the shipped model, with an adapter or without."""
    monkeypatch.chdir(tmp_path)

    def call(*, adapter: bool = False):
        words = ["dataset=toy_sort", "name=my sort--1"]
        (composed,) = compose_runs(words + (["peft=lora"] if adapter else []))
        run = open_run(composed.cfg, composed.overrides)
        model = AutoModelForCausalLM.from_pretrained(TINY)
        if adapter:
            model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
        model.save_pretrained(run.model)
        AutoTokenizer.from_pretrained(TINY).save_pretrained(run.model)
        seal(run.model)
        run.set_status("finished", step=1)
        return run

    return call


def read(run, *words: str):
    return read_model_request(CommandLine("serve", list(words), [str(run)]), Options, ("model",))


def install(monkeypatch, *, modules=(), commands=()) -> None:
    """Have these modules and commands installed, and no other server."""
    servers = ("vllm", *SERVE_MODULES)
    find = _engine.importlib.util.find_spec

    def find_spec(name):
        if name in servers:
            return True if name in modules else None
        return find(name)

    monkeypatch.setattr(_engine.importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(
        _engine.shutil, "which", lambda name: f"/bin/{name}" if name in commands else None
    )


# --- The engine -----------------------------------------------------------------------------------


def test_the_engine_is_one_that_is_installed(lay, monkeypatch):
    run = lay()
    request = read(run)
    install(monkeypatch)
    with pytest.raises(EnvironmentFault, match=r"pip install 'fastapi.*extra serve"):
        choose_engine(request)
    install(monkeypatch, modules=SERVE_MODULES, commands=["llama-server"])
    assert choose_engine(request) == "transformers"
    with pytest.raises(EnvironmentFault, match=f"export {run} format=gguf"):
        choose_engine(read(run, "engine=llama.cpp"))
    with pytest.raises(EnvironmentFault, match="pip install vllm"):
        choose_engine(read(run, "engine=vllm"))
    (run.folder / "export-gguf").mkdir()
    (run.folder / "export-gguf" / "model.gguf").touch()
    assert choose_engine(request) == "llama.cpp"
    for found in ({"modules": ["vllm"]}, {"commands": ["vllm"]}):
        install(monkeypatch, **found)
        assert choose_engine(request) == "vllm"
    install(monkeypatch, modules=SERVE_MODULES[:1])
    with pytest.raises(EnvironmentFault, match="needs uvicorn, openai"):
        choose_engine(read(run, "engine=transformers"))


def test_no_secret_is_among_the_words(lay, monkeypatch):
    for name in ("HF_TOKEN", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "hf_verysecret")
    run = lay()
    (run.folder / "export-gguf").mkdir()
    (run.folder / "export-gguf" / "model.gguf").touch()
    install(monkeypatch, commands=["vllm", "llama-server"])
    request = read(run, "max_length=99", "model.dtype=bfloat16")
    words = {}
    for engine in ("vllm", "llama.cpp", "transformers"):
        with prepared_server(engine, request, 8123) as server:
            words[engine] = " ".join(server.words)
            assert "hf_verysecret" not in f"{server.words}{server.variables}"
            assert "--host 127.0.0.1 --port 8123" in words[engine]
    assert f"serve {read(run).weights.folder} --served-model-name my-sort-1" in words["vllm"]
    assert "--dtype bfloat16 --max-model-len 99" in words["vllm"]
    assert "--alias my-sort-1" in words["llama.cpp"]
    assert "--ctx-size 99" in words["llama.cpp"]
    assert "serve my-sort-1" in words["transformers"]


def test_the_server_of_transformers_knows_the_model_by_its_name(lay):
    """It lists what it finds in the hub's cache, which is made for it."""
    request = read(lay())
    with prepared_server("transformers", request, 8123) as server:
        cache = Path(server.variables["HF_HUB_CACHE"])
        (repository,) = scan_cache_dir(cache).repos
        assert repository.repo_id == name_of(request) == "my-sort-1"
        assert "main" in repository.refs
        config = AutoConfig.from_pretrained("my-sort-1", cache_dir=cache, local_files_only=True)
        assert config.vocab_size == 535
    assert not cache.exists()


def test_transformers_takes_the_words_and_needs_the_modules():
    taken = inspect.signature(Serve.__init__).parameters
    assert {"force_model", "host", "port", "dtype", "log_level", "trust_remote_code"} <= set(taken)
    needed = inspect.getsource(is_serve_available)
    assert all(f"is_{name}_available" in needed for name in (*SERVE_MODULES, "pydantic"))


@pytest.mark.slow
def test_an_adapter_is_merged_into_a_folder_that_goes(lay, capsys):
    run = lay(adapter=True)
    with prepared_server("vllm", read(run), 8123) as server:
        folder = Path(server.words[server.words.index("--served-model-name") - 1])
        assert (folder / "config.json").is_file()
        assert not (folder / "adapter_config.json").exists()
    assert not folder.exists()
    assert "merging   the adapter" in capsys.readouterr().out
    assert main(["export", str(run)]) == 0
    with prepared_server("vllm", read(run), 8123) as server:
        assert f"{read(run).run.folder}/export" in server.words
    assert (run.folder / "export" / "config.json").is_file()


# --- The server -----------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_told(lay, monkeypatch, capsys):
    run = lay()
    install(monkeypatch, commands=["vllm"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main(["serve", str(run), f"port={port}"]) == 5
    assert "port=0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_of_a_server(lay, tmp_path, number):
    run = lay()
    facts = tmp_path / "facts.json"
    environment = stand_in(tmp_path, STAND_IN.format(python=sys.executable))
    command = [sys.executable, "-c", FOREGROUND, "serve", str(run), "port=0", "engine=vllm"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("try"):
            break
    assert "model my-sort-1" in lines[-2]
    url = lines[-2].split()[1]
    assert urllib.request.urlopen(f"{url}/models").status == 200
    told = json.loads(facts.read_text())
    assert {"config.json", "model.safetensors"} <= set(told["files"])
    process.send_signal(number)
    code = process.wait(60)
    process.stdout.close()
    codes = {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGHUP: 143}
    assert code == codes.get(number, -number)
    pids = told["pids"] if number != signal.SIGKILL else told["pids"][:1]
    deadline = time.monotonic() + 30
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if number == signal.SIGKILL:
        os.kill(told["pids"][1], signal.SIGKILL)
    else:
        assert list(Path(environment["TMPDIR"]).iterdir()) == []


def test_a_server_that_ends_by_itself_is_told(lay, tmp_path, monkeypatch, capfd):
    run = lay()
    environment = stand_in(tmp_path, "#!/bin/sh\necho no such card >&2\nexit 3\n")
    monkeypatch.setenv("PATH", environment["PATH"])
    # Another test may have made a stand-in for the package importable.
    find_spec = importlib.util.find_spec
    without_vllm = lambda name, *further: None if name == "vllm" else find_spec(name, *further)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without_vllm)
    assert main(["serve", str(run), "port=0", "engine=vllm"]) == 5
    error = capfd.readouterr().err
    assert "no such card" in error
    assert "exit code 3" in error


# The command as a terminal starts it: neither Ctrl-C nor the end of the terminal is ignored.
FOREGROUND = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from runner.__main__ import main; sys.exit(main())"
)


def stand_in(folder: Path, script: str) -> dict[str, str]:
    """The environment of a command that finds this script as vLLM."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "vllm").write_text(script)
    (programs / "vllm").chmod(stat.S_IRWXU)
    temporary = folder / "temporary"
    temporary.mkdir()
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return os.environ | {
        "PATH": path,
        "PYTHONPATH": str(PACKAGE.parent),
        "STAND_IN_FACTS": str(folder / "facts.json"),
        "TMPDIR": str(temporary),
    }


def is_alive(pid: int) -> bool:
    """True for a process that runs, and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
