"""Optimizers by target: the settings of each weight, all trainers, and refusals."""

import pickle
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from runner.__main__ import main
from runner.errors import ConfigError
from runner.optimizer import Muon, build_optimizer, trust_state
from runner.validate import libraries

WEIGHTS = [
    "model.embed.weight",
    "model.layer.0.weight",
    "model.layer.0.bias",
    "model.layer.1.lora_B.weight",
]
DECAYED = {name for name in WEIGHTS if not name.endswith("bias")}


def build(groups, **settings):
    weights = {name: nn.Parameter(torch.ones(2)) for name in WEIGHTS}
    settings = {"lr": 0.1, "weight_decay": 0.01} | settings
    made = build_optimizer(
        torch.optim.AdamW, weights.items(), settings=settings, groups=groups, decayed=DECAYED
    )
    names = {id(weight): name for name, weight in weights.items()}
    settings = {}
    for group in made.param_groups:
        for weight in group["params"]:
            settings[names[id(weight)]] = (group["lr"], group["weight_decay"])
    return settings


def test_without_groups_only_biases_and_norms_escape_the_decay():
    groups = build({})
    assert groups.pop("model.layer.0.bias") == (0.1, 0.0)
    assert set(groups.values()) == {(0.1, 0.01)}


def test_the_first_pattern_that_fits_counts():
    groups = build(
        {
            "embed": {"lr": 0.5},
            r"layer\.1|embed": {"lr_ratio": 16, "weight_decay": 0.3},
            "bias": {"weight_decay": 1.0},
        }
    )
    assert groups["model.embed.weight"] == (0.5, 0.01)
    assert groups["model.layer.1.lora_B.weight"] == (pytest.approx(1.6), 0.3)
    assert groups["model.layer.0.bias"] == (0.1, 1.0)
    assert groups["model.layer.0.weight"] == (0.1, 0.01)


def test_frozen_weights_are_left_out():
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    weights = [("a", frozen), ("b", nn.Parameter(torch.ones(2)))]
    made = build_optimizer(
        torch.optim.SGD, weights, settings={"lr": 0.1}, groups={}, decayed={"a", "b"}
    )
    assert sum(len(group["params"]) for group in made.param_groups) == 1


def test_every_pattern_that_fits_nothing_is_a_fault():
    with pytest.raises(ConfigError) as error:
        build({"embd": {"lr": 1.0}, "layr": {"lr": 1.0}, "embed": {"lr": 1.0}})
    assert [fault.where for fault in error.value.faults] == [
        "optimizer.groups.embd",
        "optimizer.groups.layr",
    ]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer.groups={embed: {lr_rato: 0.1}}", "lr_ratio"),
        ("optimizer.groups={embed: 0.1}", "settings of the optimizer"),
        ("optimizer.groups={*a: {lr: 0.1}}", "a regular expression"),
        ("optimizer.lr=-1", "optimizer.lr"),
        ("optimizer.betaz=[0.9,0.99]", "betas"),
        ("optimizer._target_=torch.optim.Adamm", "torch.optim.Adam"),
        ("optimizer.scheduler._target_=os.system", "optimizer.scheduler._target_"),
    ],
)
def test_a_fault_is_found_before_anything_loads(capsys, word, message):
    assert main(["optimizer=adamw", word]) == 2
    assert message in capsys.readouterr().err


# --- Muon, and what other packages bring --------------------------------------------------------


def test_muon_has_the_matrices_inside_and_adamw_the_rest():
    shapes = {
        "model.embed_tokens.weight": (4, 2),
        "layers.0.q_proj.weight": (2, 2),
        "norm.weight": (2,),
        "lm_head": (4, 2),
    }
    weights = {name: nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    settings = {"lr": 0.1, "weight_decay": 0.5, "betas": [0.8, 0.9]}
    made = build_optimizer(Muon, weights.items(), settings=settings, groups={}, decayed=())
    inner, outer, rest = made.param_groups
    names = {id(weight): name for name, weight in weights.items()}
    group_names = [
        [names[id(weight)] for weight in group["params"]] for group in (inner, outer, rest)
    ]
    assert group_names == [
        ["layers.0.q_proj.weight"],
        ["model.embed_tokens.weight", "lm_head"],
        ["norm.weight"],
    ]
    assert [group["weight_decay"] for group in (inner, outer, rest)] == [0.5, 0.5, 0.0]
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    made.step()
    for group in made.param_groups:  # as a schedule does it
        group["lr"] = 0.0
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    made.step()
    assert all(
        torch.equal(weight, before[name]) and not torch.equal(weight, torch.ones(shapes[name]))
        for name, weight in weights.items()
    )
    again = build_optimizer(Muon, weights.items(), settings=settings, groups={}, decayed=())
    again.load_state_dict(made.state_dict())
    assert again.state.keys() == made.state.keys() == set(weights.values())
    assert again.param_groups[0]["lr"] == 0.0
    again.step()
    assert all(torch.equal(weight, before[name]) for name, weight in weights.items())


def test_state_of_an_optimizer_beyond_tensors_is_restored(tmp_path, monkeypatch):
    (tmp_path / "galore_torch").mkdir()
    (tmp_path / "galore_torch" / "__init__.py").write_text(
        "import torch\nfrom galore_torch.galore_projector import GaLoreProjector\n"
        "class GaLore(torch.optim.SGD): pass\n"
    )
    (tmp_path / "galore_torch" / "galore_projector.py").write_text(
        "class GaLoreProjector:\n    rank = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import galore_torch

    projector = galore_torch.GaLoreProjector()
    projector.ortho_matrix = torch.ones(2)
    torch.save({"state": {0: {"projector": projector}}}, tmp_path / "optimizer.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "optimizer.pt", weights_only=True)
    made = galore_torch.GaLore([nn.Parameter(torch.ones(2))])
    assert trust_state(made) is made
    read = torch.load(tmp_path / "optimizer.pt", weights_only=True)["state"][0]["projector"]
    assert torch.equal(read.ortho_matrix, torch.ones(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("optimizer=galore",), 5, "pip install galore-torch"),
        (("optimizer=apollo",), 5, "pip install apollo-torch"),
        (
            ("optimizer=adam_mini", "optimizer.dim=128", "optimizer.n_heads=4"),
            5,
            "pip install adam-mini",
        ),
        (("trainer.args.optim=muon",), 2, "optimizer=muon"),
        (("trainer.args.optim=galore_adamw",), 2, "trainer.args.optim_target_modules=all-linear"),
        (("optimizer=muon", "optimizer.groups={norm: {lr: 1}}"), 2, "optimizer.groups=null"),
        (("optimizer=adamw", "optimizer.groups={norm: {rank: 1}}"), 2, "no such setting"),
    ],
)
def test_missing_packages_are_reported_at_the_start(capsys, monkeypatch, words, code, message):
    absent = ("galore_torch", "apollo_torch", "adam_mini")
    monkeypatch.setattr(
        libraries, "find_spec", lambda name: None if name in absent else find_spec(name)
    )
    assert main([*words, "metric=none", "--dry-run"]) == code
    assert message in capsys.readouterr().err


# --- Through the command ------------------------------------------------------------------------

FEW = (
    "trainer.args.max_steps=3",
    "trainer.args.logging_steps=1",
    "metric=none",
    "dataset.limit.train=64",
    "dataset.limit.eval=4",
    "trainer.args.per_device_train_batch_size=8",
)


def rates(done):
    return [line["learning_rate"] for line in done.lines if line["step"]]


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "ppo"])
def test_adamw_of_the_group_is_adamw_of_the_trainer(train, trainer):
    ours = train(f"trainer={trainer}", "optimizer=adamw", *FEW, name="ours")
    theirs = train(f"trainer={trainer}", *FEW, name="theirs")
    assert rates(ours) == rates(theirs)
    assert len(rates(ours)) == 3
    read = [(done.run.model / "model.safetensors").read_bytes() for done in (ours, theirs)]
    assert read[0] == read[1]


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("trainer=sft", "peft=lora", "optimizer=lora_plus"),
        ("trainer=kto", "optimizer=adafactor"),
        ("trainer=grpo", "optimizer._target_=torch.optim.SGD", "optimizer.momentum=0.9"),
        ("trainer=ppo", "optimizer=adamw", "optimizer.groups={value_model: {lr_ratio: 10}}"),
    ],
    ids=" ".join,
)
def test_an_optimizer_trains(train, words):
    done = train(*words, *FEW)
    assert (done.code, done.state()) == (0, "finished")
    for line in done.lines:
        if line["step"]:
            assert line["grad_norm"] > 0


LINEAR = (
    "optimizer.scheduler._target_=torch.optim.lr_scheduler.LinearLR "
    "optimizer.scheduler.start_factor=0.5"
)
WITH_WARMUP = "optimizer.scheduler._target_=transformers.get_linear_schedule_with_warmup"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{LINEAR} optimizer.scheduler.total_iters=2", [5e-4, 7.5e-4, 1e-3]),
        # one that takes the number of steps
        (f"{WITH_WARMUP} optimizer.scheduler.num_warmup_steps=1", [0.0, 1e-3, 5e-4]),
    ],
)
def test_a_schedule_by_target(train, words, expected):
    done = train("optimizer=adamw", "learning_rate=1e-3", *words.split(), *FEW)
    assert rates(done) == pytest.approx(expected)
