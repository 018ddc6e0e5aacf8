"""Serve a trained run by real servers: transformers with the extra serve, vLLM and llama.cpp.

    python tests/fault/serve_real.py [ENGINE ...]

An engine that is not installed is left out, and said so. Of each a run is asked for the list of
models, a completion and the same as a stream, which must be what ``chat`` answers; then Ctrl-C ends
it, and nothing may be left.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "Sort these digits: 3 1 2 7"
FOREGROUND = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from runner.__main__ import main; sys.exit(main())"
)


def main(engines: list[str]) -> int:
    """The number of engines that did not do as promised."""
    misses = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        )
        os.environ["TMPDIR"] = f"{folder}/temporary"
        os.mkdir("temporary")
        train = "experiment=toy_sft trainer.args.max_steps=60"
        for words in (train, f"{train} peft=lora name=lora"):
            runner(*words.split())
        for run in ("outputs/toy-sft", "outputs/lora"):
            for engine in engines:
                fault = fault_of(run, engine)
                misses += bool(fault)
                print(f"{engine:<14}{run:<18}{fault or 'as promised'}", flush=True)
    return misses


def runner(*words: str) -> str:
    """The output of a command."""
    command = [sys.executable, "-m", "runner", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def fault_of(run: str, engine: str) -> str:
    """The faults of a server of a run as one text; empty for none."""
    if engine == "llama.cpp":
        runner("export", run, "format=gguf")
    command = [sys.executable, "-c", FOREGROUND, "serve", run, "port=0", f"engine={engine}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("try"):
            break
    else:
        return process.stderr.read()[-800:]
    os.set_blocking(process.stderr.fileno(), False)
    faults = find_faults(run, lines[-2].split()[1])
    process.send_signal(signal.SIGINT)
    if process.wait(60):
        faults.append(f"it ended with {process.returncode}")
    faults += [f"{path} is left" for path in Path("temporary").glob("runner-serve-*")]
    left = subprocess.run(
        ["pgrep", "-f", lines[-2].split(":")[2].split("/")[0]], capture_output=True
    )
    if left.stdout:
        faults.append(f"processes are left: {left.stdout.decode()}")
    return "; ".join(faults)


def find_faults(run: str, url: str) -> list[str]:
    """The faults of the answers of a server."""
    faults = []
    name = Path(run).name
    (model,) = json.loads(urllib.request.urlopen(f"{url}/models").read())["data"]
    if model["id"] != name:
        faults.append(f"the model is called {model['id']}")
    expected = runner(
        "chat", run, f"prompt={QUESTION}", "temperature=0", "max_new_tokens=20"
    ).strip()
    body = {
        "model": name,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 20,
    }
    answer = json.loads(ask(url, body))["choices"][0]["message"]["content"].strip()
    pieces = []
    for line in ask(url, body | {"stream": True}).splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                pieces.append(choice["delta"].get("content") or "")
    if [answer, "".join(pieces).strip()] != [expected, expected]:
        faults.append(f"it answers {answer!r} and {''.join(pieces)!r}, and chat {expected!r}")
    if sum(map(bool, pieces)) < 3:
        faults.append("the stream came at once")
    return faults


def ask(url: str, body: dict) -> str:
    """The answer of the server to a question."""
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request).read().decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["transformers", "vllm", "llama.cpp"]))
