"""Cases of ``vllm_real.py``: servers that fail, servers of another kind, and the stand-ins.

A case fails by an exception, most of them by an AssertionError with what was seen instead.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from test_vllm import serving
from tiny import tiny_model
from vllm_real_bench import (
    EXACT,
    HALF,
    MANY_STEPS,
    PPO,
    SERVER_OPTIONS,
    TESTS,
    TWO_STEPS,
    Bench,
    error_lines,
    on_server,
    shipped_model,
    told_ratios,
)

from runner.run.history import read_metrics

# --- A server that only tells probabilities -------------------------------------------------------


def server_distillation(bench: Bench) -> str:
    """A teacher with the student's weights: nothing is to learn until the student has moved."""
    with bench.other_server() as server:
        bench.command(
            "trainer=server_distillation",
            f"trainer.args.teacher_model_server_url={server.url}",
            *("metric=none", "dataset.limit.train=64", "dataset.limit.eval=8", "name=taught"),
            *("trainer.args.max_steps=4", "trainer.args.per_device_train_batch_size=4"),
            *("trainer.args.logging_steps=1", "learning_rate=1e-3", "tolerate.ended_worse=true"),
        )
    lines = read_metrics(bench.run("taught") / "metrics.jsonl")
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert abs(losses[0]) < EXACT < losses[-1], losses
    return f"held-out loss {losses[0]:.1e} with the teacher's weights, {losses[-1]:.1e} after"


# --- Servers that fail ---------------------------------------------------------------------------


def wrong_address(bench: Bench) -> str:
    words = (
        "trainer.args.vllm_mode=server",
        "trainer.args.vllm_server_base_url=http://127.0.0.1:9",
        "trainer.args.vllm_server_timeout=3",
        "name=wrong",
    )
    ended = bench.command(*PPO, TWO_STEPS, *words, code=5)
    assert "no answer to /health" in ended.stderr, ended.stderr
    return f"{error_lines(ended)} ({ended.seconds:.0f} s with the start)"


def other_model(bench: Bench) -> str:
    """A server of one model, and a training of another."""
    other = tiny_model(bench.folder / "other")
    words = [word for word in PPO if word != "model=tiny"]
    words += [f"model={other}", *on_server(bench.server()), "name=other"]
    ended = bench.command(*words, TWO_STEPS, code=2)
    assert "a server of" in ended.stderr and str(other) in ended.stderr, ended.stderr
    return error_lines(ended).replace(str(bench.folder), "")


def no_development(bench: Bench) -> str:
    with bench.other_server(variables={}) as server:
        ended = bench.command(*PPO, TWO_STEPS, *on_server(server), "name=nodev", code=2)
    assert "development mode" in ended.stderr, ended.stderr
    return error_lines(ended)


def no_extension(bench: Bench) -> str:
    """Without the extension, and with log-probabilities at temperature 1: both are told at once.

    The command that is told to type starts a server that will do.
    """
    with bench.other_server("--logprobs-mode", "raw_logprobs") as server:
        words = (*PPO, TWO_STEPS, *on_server(server), "name=noext")
        ended = bench.command(*words, code=2)
        assert "packs its weights" in ended.stderr, ended.stderr
        assert "--logprobs-mode raw_logprobs" in ended.stderr, ended.stderr
        told = error_lines(ended)
        server.stop()
        variable, python, *server.words = shlex.split(told.rpartition(" type ")[2])
        assert (variable, python) == ("VLLM_SERVER_DEV_MODE=1", "python"), told
        server.start()
        bench.command(*words)
        ratios = told_ratios(bench, "noext", HALF)
    return f"{told}; as typed it works: {ratios} in bfloat16"


def short_server(bench: Bench) -> str:
    """A server that holds fewer tokens than a prompt has."""
    with bench.other_server(*SERVER_OPTIONS, "--max-model-len", "16") as server:
        ended = bench.command(*PPO, TWO_STEPS, *on_server(server), "name=short_server", code=2)
    return error_lines(ended)


def killed(bench: Bench) -> str:
    """A server that is killed in the middle of a step, and started again."""
    with bench.other_server() as server:
        words = (*PPO, *MANY_STEPS, *on_server(server, 20), "name=killed")
        started = bench.start(*words)
        bench.wait_for_step("killed", 4, started)
        server.send(signal.SIGKILL)
        server.process.wait()
        ended = bench.wait(started)
        assert ended.code == 5, ended.text
        assert "then the same command continues" in ended.stderr, ended.stderr
        assert ended.seconds < 60, ended.seconds
        told = error_lines(ended)
        step = bench.step("killed")
        server.start()
        resumed = bench.command(*words)
    assert "resumes" in resumed.text, resumed.text
    assert bench.step("killed") == 30
    told_ratios(bench, "killed")
    return f"exit 5 at step {step} after {ended.seconds:.1f} s: {told}; then went on to step 30"


def slow(bench: Bench) -> str:
    """A server that is stopped in the middle of a step, and goes on later."""
    with bench.other_server() as server:
        words = (*PPO, *MANY_STEPS, *on_server(server, 5), "name=slow")
        started = bench.start(*words)
        bench.wait_for_step("slow", 4, started)
        server.send(signal.SIGSTOP)
        ended = bench.wait(started)
        server.send(signal.SIGCONT)
        assert ended.code == 5, ended.text
        assert "nothing for 5 s" in ended.stderr, ended.stderr
        told = error_lines(ended)
        # What was asked before it stopped is answered first.
        resumed = bench.command(*words)
    assert "resumes" in resumed.text, resumed.text
    return f"exit 5 after {ended.seconds:.1f} s: {told}; then went on to step {bench.step('slow')}"


def stolen(bench: Bench) -> str:
    """Two runs that send their weights to one server: at most one of them goes on."""
    with bench.other_server() as server:
        words = (*PPO, *MANY_STEPS, *on_server(server, 20))
        started = bench.start(*words, "name=first")
        bench.wait_for_step("first", 2, started)
        second = bench.wait(bench.start(*words, "seed=7", "name=second"))
        first = bench.wait(started)
    codes = sorted((first.code, second.code))
    assert codes in ([0, 5], [5, 5]), (first.text, second.text)
    stopped = first if first.code else second
    assert "another training sends it weights" in stopped.stderr, stopped.stderr
    return f"exit codes {codes}: {error_lines(stopped)}"


# --- Stand-ins -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A request, and the answer."""

    path: str
    body: dict[str, Any] | None = None

    def answer_of(self, url: str) -> tuple[int, Any]:
        """Status and content; an empty answer is an empty mapping."""
        data = None if self.body is None else json.dumps(self.body).encode()
        request = Request(url + self.path, data, {"Content-Type": "application/json"})
        try:
            with build_opener(ProxyHandler({})).open(request, timeout=60) as response:
                text = response.read()
                return response.status, json.loads(text) if text else {}
        except HTTPError as error:
            error.close()
            return error.code, None


def lacking(ours: Any, real: Any, path: str) -> list[str]:
    """The places of an answer of the stand-in that the real one does not have, or otherwise."""
    if isinstance(ours, dict) and isinstance(real, dict):
        missing = []
        for name, value in ours.items():
            if name not in real:
                missing.append(f"{path}.{name}")
            else:
                missing += lacking(value, real[name], f"{path}.{name}")
        return missing
    if isinstance(ours, list) and isinstance(real, list) and ours and real:
        return lacking(ours[0], real[0], f"{path}[0]")
    numbers = (int, float)
    is_alike = type(ours) is type(real) or (isinstance(ours, numbers) and isinstance(real, numbers))
    return [] if is_alike else [f"{path}: {type(ours).__name__}, not {type(real).__name__}"]


def stand_in_server(bench: Bench) -> str:
    """The stand-in of the suite answers as a real server does."""
    completion = {"model": "served", "prompt": [5, 6], "max_tokens": 4, "seed": 3, "top_k": 0}
    completion |= {"logprobs": 0, "return_token_ids": True, "ignore_eos": True}
    weights = bench.folder / "weights"
    shutil.copytree(shipped_model(), weights)
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
    requests = [
        Asked("/health"),
        Asked("/v1/models"),
        Asked("/server_info?config_format=json"),
        Asked("/update_weight_version", {"new_version": "run, step 1"}),
        Asked("/weight_info"),
        Asked("/collective_rpc", reload),
        Asked("/reset_prefix_cache", {}),
        Asked("/v1/completions", completion),
        Asked("/no_such_path"),
    ]
    real = bench.server()
    folder = bench.folder / "stand-in"
    wrong = []
    with serving(folder) as ours:
        for asked in requests:
            expected = asked
            if asked.path == "/v1/completions":
                expected = replace(asked, body={**completion, "model": shipped_model()})
            status, answer = asked.answer_of(ours.settings.url)
            real_status, real_answer = expected.answer_of(real.url)
            if status != real_status:
                wrong.append(f"{asked.path}: {status}, not {real_status}")
            wrong += lacking(answer, real_answer, asked.path)
        # A prompt that is too long.
        ours.refuses = "too long"
        long = replace(asked, path="/v1/completions", body={**completion, "prompt": [5] * 2000})
        status, _ = long.answer_of(ours.settings.url)
        long = replace(long, body={**long.body, "model": shipped_model()})
        real_status, _ = long.answer_of(real.url)
        if status != real_status:
            wrong.append(f"too long: {status}, not {real_status}")
    assert not wrong, wrong
    return f"{len(requests) + 1} requests: the same statuses, no field that the real one lacks"


PROBE = """
import json, os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
import vllm
from vllm import SamplingParams

llm = vllm.LLM(model=sys.argv[1], dtype="float32", skip_tokenizer_init=True, max_model_len=64,
    enforce_eager=True, logprobs_mode="processed_logprobs")
how = SamplingParams(temperature=0.7, max_tokens=4, seed=3, logprobs=0, detokenize=False,
    ignore_eos=True, stop_token_ids=[], top_k=0, top_p=1.0)
(output,) = llm.generate([{"prompt_token_ids": [5, 6]}], [how], use_tqdm=False)
(completion,) = output.outputs
seen = {"version": vllm.__version__.partition("+")[0]}
seen["prompt"] = list(output.prompt_token_ids)
seen["types"] = [type(token).__name__ for token in completion.token_ids]
shown = completion.logprobs[0][completion.token_ids[0]]
seen["logprob"] = sorted(name for name in ("rank", "logprob") if hasattr(shown, name))
seen["methods"] = [hasattr(llm, name) for name in
    ("collective_rpc", "reset_prefix_cache", "wake_up", "sleep", "generate")]
worker = llm.llm_engine.model_executor.driver_worker
seen["loads"] = hasattr(worker.model_runner.model, "load_weights")
from transformers import AutoModelForCausalLM
weights = AutoModelForCausalLM.from_pretrained(sys.argv[1]).named_parameters()
try:
    worker.model_runner.model.load_weights(weights)  # as TRL does
except Exception as error:
    seen["packed"] = f"{type(error).__name__}: {error}"
print(json.dumps(seen))
"""


def stand_in_engine(bench: Bench) -> str:
    """The stand-in of the suite has what the real one has, and fails as it does."""
    seen = []
    for path in (str(TESTS / "vllm_stand_in"), ""):
        paths = os.pathsep.join([path, bench.environment["PYTHONPATH"]])
        done = subprocess.run(
            [sys.executable, "-c", PROBE, shipped_model()],
            cwd=bench.folder,
            env=bench.environment | {"PYTHONPATH": paths.strip(os.pathsep)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        seen.append(json.loads(done.stdout.splitlines()[-1]))
    assert seen[0] == seen[1], seen
    return f"the same fields and methods; packed weights: {seen[1]['packed']}"


CASES = (
    server_distillation,
    wrong_address,
    other_model,
    no_development,
    no_extension,
    short_server,
    killed,
    slow,
    stolen,
    stand_in_server,
    stand_in_engine,
)
