"""Weights for vLLM, and a stand-in for its server; ``fault/vllm_real.py`` asks the real one."""

import contextlib
import json
import logging.config
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from vllm_there import STAND_IN

from runner.__main__ import main
from runner.config.sharding import find_gpu_faults
from runner.errors import ConfigError, EnvironmentFault, reason_of
from runner.generate import vllm_server
from runner.generate.sampler import Sampling, seeded_generator, uniform
from runner.generate.vllm_engine import check_model, set_meeting_point
from runner.generate.vllm_server import EXTENSION, ServerSettings, VLLMServer
from runner.io.files import read_rows
from runner.launch.run_log import logging_to
from runner.model.current_weights import current_weights, write_current_weights
from runner.run.history import read_metrics
from tests.tiny_ppo import END, letter_model

PROBE = torch.tensor([[1, 2, 3, 4, 5]])
TUNERS = {
    "lora": LoraConfig(target_modules=["q_proj", "down_proj"]),
    "dora": LoraConfig(target_modules=["v_proj"], use_dora=True),
    "with a whole layer": LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "with embeddings": LoraConfig(target_modules=["embed_tokens", "o_proj"]),
}


def shaken(tuner: str) -> object:
    """A model with two adapters, neither of which is still without effect."""
    model = letter_model(tie_word_embeddings=False)
    model = get_peft_model(model, TUNERS[tuner], adapter_name="policy")
    model.add_adapter("other", LoraConfig(target_modules=["k_proj"]))
    model.set_adapter("policy")
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora" in name or "modules_to_save" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


@pytest.mark.parametrize("tuner", TUNERS)
def test_current_weights_are_those_that_an_adapted_model_computes_with(tuner, tmp_path):
    model = shaken(tuner)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        expected = model(PROBE).logits
    write_current_weights(model, tmp_path, "policy")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        assert loaded(PROBE).logits == pytest.approx(expected, abs=1e-5)


def test_current_weights_of_a_whole_model_are_its_own_each_once():
    model = letter_model(tie_word_embeddings=True)
    weights = dict(current_weights(model))
    assert [*weights] == [name for name, _ in model.named_parameters()]
    assert "lm_head.weight" not in weights


SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
# In memory the head of the first has another name than in its files, and the second has all experts
# of a layer in one weight.
CONVERTED = {
    "gpt_neox": {"tie_word_embeddings": False},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 2},
}


@pytest.mark.parametrize("kind", CONVERTED)
def test_current_weights_have_the_names_and_shapes_of_the_files_of_a_model(kind, tmp_path):
    config = AutoConfig.for_model(kind, **SMALL, **CONVERTED[kind])
    made = AutoModelForCausalLM.from_config(config)
    made.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    for model in (made, loaded):
        assert saved.keys() != dict(model.named_parameters()).keys()
        weights = dict(current_weights(model))
        assert weights.keys() == saved.keys()
        for name, weight in saved.items():
            assert torch.equal(weights[name], weight), name


def test_a_model_whose_sum_with_its_adapter_cannot_be_told_is_refused():
    model = letter_model(tie_word_embeddings=True)
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        adapted = get_peft_model(model, LoraConfig(target_modules=["embed_tokens"]))
    with pytest.raises(ConfigError, match="embeddings that the output layer shares"):
        check_model(adapted)
    check_model(get_peft_model(letter_model(), LoraConfig(target_modules=["q_proj"])))


def test_ways_of_weights_that_need_a_card_are_refused_without_one():
    trl = {"use_vllm": True, "vllm_mode": "server"}
    assert [fault.found for fault in find_gpu_faults(trl)] == ["server, but there is no GPU here"]
    assert not list(find_gpu_faults(trl | {"vllm_mode": "colocate"}))
    (fault,) = find_gpu_faults({"vllm_weight_transfer": "nccl"})
    assert fault.fix == "trainer.args.vllm_weight_transfer=folder"
    (fault,) = find_gpu_faults({"vllm_enable_sleep_mode": True})
    assert fault.found == "true, but there is no GPU here"


def test_runs_that_start_at_once_meet_at_ports_of_their_own(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "node7")
    ports = set()
    for _ in range(2):
        monkeypatch.delenv("MASTER_PORT", raising=False)
        set_meeting_point()
        ports.add(os.environ["MASTER_PORT"])
    assert not ports & {"29500", "23456", "12355", "12345"}  # those that TRL tries first
    monkeypatch.setenv("MASTER_PORT", "29500")
    set_meeting_point()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("node7", "29500")


def test_what_pydantic_refuses_is_told_by_its_reason_and_not_by_its_count():
    text = "1 validation error for ModelConfig\n  Value error, no sleep here [type=value_error]"
    assert reason_of(ValueError(text)) == "Value error, no sleep here"
    assert reason_of(ValueError("a\nb")) == "a"


def test_the_log_of_a_run_goes_on_after_a_library_has_closed_it(tmp_path):
    path = tmp_path / "log.txt"
    with logging_to(path):
        logging.getLogger("a").warning("before")
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        logging.getLogger("a").warning("after")
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["before", "after"]


# --- An engine in this process: a stand-in for the package ----------------------------------------


@pytest.mark.dear("three commands that load a model")
@pytest.mark.slow
def test_vllm_answers_greedily_as_our_sampler_does_and_seeds_each_completion(runner):
    words = ("model=tiny", "dataset=toy_sort", "limit=3")
    door = "vllm_there:with_vllm"
    runner("predict", *words, "to=ours.jsonl")
    runner("predict", *words, "engine=vllm", "to=vllm.jsonl", door=door, **STAND_IN)
    ours = read_rows(runner.folder / "ours.jsonl")
    for row, answer in zip(ours, read_rows(runner.folder / "vllm.jsonl"), strict=True):
        assert answer == row | {"log_probability": pytest.approx(row["log_probability"], abs=1e-4)}
    runner("predict", *words, "n=4", "engine=vllm", "to=four.jsonl", door=door, **STAND_IN)
    texts = [row["completion"] for row in read_rows(runner.folder / "four.jsonl")]
    assert any(len({*texts[row : row + 4]}) > 1 for row in range(0, len(texts), 4))


@pytest.mark.dear("two trainings")
@pytest.mark.slow
def test_vllm_samples_held_out_answers_and_leaves_the_training_as_it_is(runner):
    words = ("metric=exact", "trainer.args.max_steps=2", "trainer.args.logging_steps=1")
    words += ("dataset.limit.train=64", "dataset.limit.eval=4", "trainer.args.eval_steps=1")
    words += ("trainer.args.eval_strategy=steps", "learning_rate=1e-2", "tolerate.ended_worse=true")
    runner(*words, "name=ours")
    runner(*words, "name=vllm", "engine=vllm", door="vllm_there:with_vllm", **STAND_IN)
    logs = {}
    for name in ("ours", "vllm"):
        logs[name] = read_metrics(runner.runs(name)[0] / "metrics.jsonl")
    losses = [line["loss"] for line in logs["ours"] if "loss" in line]
    assert losses == [line["loss"] for line in logs["vllm"] if "loss" in line]
    sampled = [line["step"] for line in logs["vllm"] if "eval_exact" in line]
    assert sampled == [line["step"] for line in logs["ours"] if "eval_exact" in line]


def test_an_engine_for_answers_that_nobody_samples_is_refused(capsys):
    for words in (["trainer=sft", "metric=none"], ["trainer=reward"]):
        assert main([*words, "engine=vllm", "--dry-run"]) == 2
        assert "no metric samples held-out answers" in capsys.readouterr().err


@pytest.mark.slow
def test_vllm_is_missed_before_a_model_is_loaded(runner):
    refused = runner("evaluate", "model=tiny", "dataset=toy_sort", "engine=vllm", code=5)
    assert "vllm is not installed" in refused.stderr


@pytest.mark.slow
def test_a_vllm_that_does_not_start_says_why(runner):
    words = ("predict", "model=tiny", "dataset=toy_sort", "engine=vllm", "to=a.jsonl")
    refused = runner(*words, code=5, VLLM_CPU_KVCACHE_SPACE="100000", **STAND_IN)
    assert "less than requested memory" in refused.stderr


# --- A server -------------------------------------------------------------------------------------


class Served(BaseHTTPRequestHandler):
    """The part of a vLLM server that PPO uses; each completion is the last token, again and again.

    ``server.info`` is how it was started, and ``server.weights`` what it was sent.
    """

    def do_GET(self):
        server = self.server
        if self.path == "/health":
            server.lives.wait()
        answers = {
            "/health": {},
            "/v1/models": {"data": [{"id": "served"}]},
            "/weight_info": {"weight_version": server.version},
        }
        if server.takes_weights:
            answers["/server_info?config_format=json"] = {"vllm_config": server.info}
        self.answer(answers.get(self.path))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, asked))
        answer = {}
        if self.path == "/v1/completions" and self.server.refuses:
            error = {"message": self.server.refuses, "type": "BadRequestError", "code": 400}
            self.answer({"error": error}, 400)
            return
        if self.path == "/v1/completions":
            self.server.goes_on.wait()
            token = asked["prompt"][-1]
            tokens = [token] * asked["max_tokens"]
            logprobs = {"token_logprobs": [-0.5] * len(tokens)}
            answer = {"choices": [{"token_ids": tokens, "logprobs": logprobs}]}
        elif self.path == "/collective_rpc":
            folder = Path(asked["kwargs"]["weights_path"])
            self.server.weights = sorted(path.name for path in folder.iterdir())
        elif self.path == "/update_weight_version":
            self.server.version = asked["new_version"]
        self.answer(answer)

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        with contextlib.suppress(BrokenPipeError):  # of a client that no longer waits
            self.send_response(404 if value is None else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[ThreadingHTTPServer]:
    """The stand-in, and the settings and the model of a client."""
    model = letter_model()
    model.name_or_path = "mine"
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.info = {
            "model_config": {"logprobs_mode": "processed_logprobs", "model": "mine"},
            "parallel_config": {"worker_extension_cls": EXTENSION},
            "scheduler_config": {"enable_chunked_prefill": False},
            "device_config": {"device": "cpu"},
        }
        server.version = "default"
        server.asked = []
        server.goes_on = threading.Event()
        server.goes_on.set()
        server.lives = threading.Event()
        server.lives.set()
        server.takes_weights = True
        server.refuses = ""
        server.model = model
        url = f"http://127.0.0.1:{server.server_port}"
        server.settings = ServerSettings(url, 5.0, "folder", folder / "weights")
        yield server
        server.goes_on.set()
        server.lives.set()
        server.shutdown()


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path) as server:
        yield server


def connect(server: ThreadingHTTPServer) -> VLLMServer:
    return VLLMServer(server.model, server.settings, sends=True)


def ask(client: VLLMServer, prompts: list[list[int]]) -> object:
    noise = torch.stack(
        [uniform(4, generator=seeded_generator(row)) for row in range(len(prompts))]
    )
    return client.sample(prompts, Sampling(4, (END,), temperature=0.7), noise)


def test_a_server_is_sent_the_weights_and_asked_with_a_seed_for_each_prompt(served, tmp_path):
    client = connect(served)
    client.load_weights(served.model, "run, step 1")
    assert served.weights == ["config.json", "model.safetensors"]
    assert not (tmp_path / "weights").exists()
    assert [path for path, _ in served.asked[1:]] == [
        "/reset_prefix_cache",
        "/update_weight_version",
    ]
    responses = ask(client, [[1, 2], [1, 2], [3, END]])
    assert [tokens.tolist() for tokens in responses.tokens] == [[2] * 4, [2] * 4, [END]]
    assert [len(logprobs) for logprobs in responses.logprobs] == [4, 4, 1]
    asked = [body for path, body in served.asked if path == "/v1/completions"]
    assert len({body["seed"] for body in asked}) == 3
    assert {body["temperature"] for body in asked} == {0.7}


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("model_config", {"logprobs_mode": "raw_logprobs"}, "--logprobs-mode raw_logprobs"),
        ("model_config", {"model": "others"}, "a server of others, while mine is trained"),
        ("parallel_config", {"worker_extension_cls": ""}, "packs its weights"),
        ("scheduler_config", {"enable_chunked_prefill": True}, "reads prompts in parts"),
    ],
)
def test_a_server_that_is_no_use_is_refused_with_the_command_for_another(
    served, part, values, message
):
    served.info[part] |= values
    with pytest.raises(ConfigError, match=message) as error:
        connect(served)
    program = "python -m vllm.entrypoints.openai.api_server --model mine"
    port = served.server_port
    fix = error.value.faults[0].fix
    assert fix.startswith(f"VLLM_SERVER_DEV_MODE=1 {program} --port {port} --logprobs-mode")


def test_a_server_that_takes_no_weights_is_refused(served):
    served.takes_weights = False
    with pytest.raises(ConfigError, match="development mode"):
        connect(served)


def test_a_server_without_room_for_a_completion_is_told_in_its_own_words(served):
    client = connect(served)
    client.load_weights(served.model, "run, step 1")
    served.refuses = "maximum context length is 3 tokens"
    with pytest.raises(ConfigError, match="context length is 3 tokens") as error:
        ask(client, [[1, 2]])
    assert "--max-model-len" in error.value.faults[0].fix


def test_a_server_that_somebody_else_sends_weights_is_noticed(served):
    client = connect(served)
    client.load_weights(served.model, "run, step 1")
    served.version = "other run, step 7"
    with pytest.raises(EnvironmentFault, match="other run, step 7"):
        ask(client, [[1, 2]])


def test_a_server_may_take_long_while_it_lives_and_no_longer(served, monkeypatch):
    monkeypatch.setattr(vllm_server, "SECONDS_BETWEEN_LOOKS", 0.01)
    served.settings = replace(served.settings, timeout=0.2)
    client = connect(served)
    client.load_weights(served.model, "run, step 1")
    served.goes_on.clear()
    looks = []

    def look(path):
        looks.append(path)
        if len(looks) == 3:
            served.goes_on.set()
        return get(path)

    get = client._get
    monkeypatch.setattr(client, "_get", look)
    assert [tokens.tolist() for tokens in ask(client, [[1, 2]]).tokens] == [[2] * 4]
    assert looks.count("/health") >= 1
    monkeypatch.setattr(client, "_get", get)
    served.goes_on.clear()
    served.lives.clear()
    with pytest.raises(EnvironmentFault, match=r"no answer to /health: nothing for 0\.2 s"):
        ask(client, [[1, 2]])


def test_no_server_at_all_is_told_within_the_time(served):
    served.settings = replace(served.settings, url="http://127.0.0.1:9", timeout=0.2)
    with pytest.raises(EnvironmentFault, match="no answer to /health"):
        connect(served)
