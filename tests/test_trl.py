"""TRL's exports against the menu.

A new trainer, callback or field of TRL without a place is a failure.
"""

import dataclasses
import importlib
import inspect
import json
import math
import os
import pkgutil
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import trl

sys.path.append(str(Path(__file__).parent / "fault"))

from kinds import compose as compose_kind
from kinds import read_kinds, write_rows
from needs import TINY, TRAINERS, needed
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from vllm_there import STAND_IN

from runner.config.composition import compose
from runner.config.menu import read_options
from runner.io.files import MENU, read_json, shipped
from runner.run.history import read_metrics
from runner.schema.read import read_signature

FOLDER = Path(trl.__file__).parent / "experimental"
MODULES = [
    "trl",
    *(f"trl.experimental.{module.name}" for module in pkgutil.iter_modules([str(FOLDER)])),
]


def exported(*kinds):
    """The classes of a kind that TRL exports, by the name that a configuration would use."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    names = {}
    for module in map(importlib.import_module, MODULES):
        for name in dir(module):
            part = getattr(module, name)
            if (
                inspect.isclass(part)
                and issubclass(part, kinds)
                and part.__module__.startswith("trl.")
            ):
                names[f"{module.__name__}.{name}"] = part
    return {
        name: part for name, part in names.items() if not name.rpartition(".")[2].startswith("_")
    }


def table():
    """The table's entry for each name of TRL's."""
    text = (
        (MENU / "trainer" / "README.md")
        .read_text()
        .partition("## TRL 1.16")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (\S.*?) \| (.*?) \|$", text, re.MULTILINE)
    entries = {}
    for names, says in rows:
        entries |= {f"trl.{name}": says for name in names.split(", ")}
    return entries


def targets(group):
    """The option of each target that a group names."""
    options = read_options(group)
    nodes = {name: option.get(group) or option for name, option in options.items()}
    targets_found = {
        name: node.get("_target_") or (node.get(name) or {}).get("_target_")
        for name, node in nodes.items()
    }
    return {target: name for name, target in targets_found.items()}


@pytest.mark.parametrize(("group", "kind"), [("trainer", Trainer), ("callback", TrainerCallback)])
def test_every_export_of_trl_has_an_option_or_a_reason(group, kind):
    says = table()
    options = targets(group)
    names = [name for name, part in exported(kind).items() if name.endswith(group.capitalize())]
    assert len(names) > 6
    for name in names:
        assert name in says, (
            f"{name} is new: an option of conf/{group}, and a line in conf/trainer/README.md"
        )
        if name in options:
            assert f"`{group}={options[name]}`" in says[name]
        else:
            assert says[name].startswith(("no:", "old names"))


def test_every_field_of_every_config_can_be_set():
    configs = exported(TrainingArguments)
    assert len(configs) > 18
    for name, config in configs.items():
        fields = {field.name for field in dataclasses.fields(config) if field.init}
        assert fields <= set(read_signature(name).parameters), name


@pytest.mark.quick(2)
@pytest.mark.parametrize("option", sorted(TRAINERS))
def test_a_trainer_composes_with_what_it_must_be_given(option):
    assert (
        compose([f"trainer={option}", *needed(option)])
        .cfg["trainer"]["args"]["_target_"]
        .endswith("Config")
    )


# --- A teacher behind vLLM's protocol: a stand-in for the server, since the real one needs a GPU --


class Teacher(BaseHTTPRequestHandler):
    """The part of ``vllm serve`` that the training uses.

    Health, model, and log-probabilities of prompts.
    """

    def do_GET(self):
        self.answer({"data": [{"id": "teacher"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(
            {"choices": [{"prompt_logprobs": self.score(ids, asked)} for ids in asked["prompt"]]}
        )

    def score(self, ids, asked):
        """For each token but the first, its log-probability and those of the likeliest ones, with
        ranks.
        """
        with torch.no_grad():
            logits = (
                self.server.model(torch.tensor([ids])).logits[0, :-1].float() / asked["temperature"]
            )
        scores = []
        for token, row in zip(ids[1:], logits.log_softmax(-1), strict=True):
            order = row.argsort(descending=True).tolist()
            wanted = {*order[: asked["prompt_logprobs"]], token}
            scores.append(
                {
                    str(score): {"logprob": row[score].item(), "rank": order.index(score) + 1}
                    for score in wanted
                }
            )
        return [None, *scores]

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@pytest.mark.slow
def test_a_teacher_on_a_server_teaches(runner):
    pytest.importorskip("requests", reason="TRL's client of vLLM asks by it")
    with ThreadingHTTPServer(("127.0.0.1", 0), Teacher) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.model = AutoModelForCausalLM.from_pretrained(shipped(TINY))
        with torch.no_grad():
            # it likes one word more than the student does
            server.model.get_output_embeddings().weight[5] += 1.0
        words = (
            "trainer=server_distillation",
            "metric=none",
            "trainer.args.max_steps=2",
            "dataset.limit.eval=8",
        )
        words += (
            "trainer.args.logging_steps=1",
            "trainer.args.per_device_train_batch_size=4",
            "name=run",
        )
        address = f"trainer.args.teacher_model_server_url=http://127.0.0.1:{server.server_port}"
        words = (*words, address, "learning_rate=1e-3")
        runner(*words, door="vllm_there:with_vllm", **STAND_IN)
        server.shutdown()
    losses = [
        line["loss"]
        for line in read_metrics(runner.runs("run")[0] / "metrics.jsonl")
        if "loss" in line
    ]
    assert len(losses) == 2
    for loss in losses:
        assert 0 < loss < math.inf


# --- A trainer that loads the weights itself ------------------------------------------------------

BY_PATH = """
from trl import SFTTrainer


class PathTrainer(SFTTrainer):
    def __init__(self, model: str, args=None, train_dataset=None, processing_class=None,
                 callbacks=None):
        assert type(model) is str
        super().__init__(model, args, None, train_dataset, processing_class=processing_class,
                         callbacks=callbacks)
"""


@pytest.mark.slow
def test_a_trainer_that_asks_for_a_path_is_given_one(runner):
    (runner.folder / "mine.py").write_text(BY_PATH)
    words = (
        "trainer=sft",
        "trainer._target_=mine.PathTrainer",
        "allow=[mine]",
        "trainer.args.max_steps=2",
    )
    words += ("trainer.args.chat_template_path=runner://model/tiny",)  # which TRL opens, too
    done = runner(
        *words, "dataset.limit.train=64", "dataset.limit.eval=8", "metric=none", "name=run"
    )
    assert "finished  2 steps" in done.stdout
    assert read_json(runner.runs("run")[0] / "manifest.json")["model"]["path"].endswith("tiny")


KINDS = [kind for kind in read_kinds() if not kind.refused][::20]


@pytest.mark.slow
def test_kinds_of_configurations_that_trl_trains_compose(tmp_path, monkeypatch):
    """One in twenty of those that ``tests/fault/kinds.py`` composes and trains."""
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    composed = {f"{kind.trainer}, {kind.name}": compose_kind(kind) for kind in KINDS}
    assert len(composed) > 18
    assert {name: fault for name, fault in composed.items() if fault} == {}
