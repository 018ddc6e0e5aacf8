"""Losses by hand, their arguments, refusals, and a custom copy of TRL's loss that trains as TRL's
does.
"""

import json
import re

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy, logsigmoid

from runner import loss
from runner.__main__ import main
from runner.config.composition import compose
from runner.errors import ConfigError, SickRun
from runner.io.files import MENU
from runner.launch.signals import Stop
from runner.run import open_run
from runner.schema.choices import choices_compared
from runner.schema.read import read_signature
from runner.schema.source import find_definition
from runner.schema.upstream import (
    LOSS_INTERFACES,
    LOSS_TYPES,
    OWN_LOSS,
    OWN_POLICY_LOSS,
    SCALES,
    UNWEIGHABLE,
    loss_interface,
)
from runner.training import sequence_objective
from runner.training.components.assembly import build_components
from runner.training.hooks import Hooks
from runner.training.sequence_objective import WatchedSequences, watched
from runner.training.user_loss import aligned, call_loss
from runner.validate.loss_parts import ALSO_GIVES, GIVES

# --- By hand ------------------------------------------------------------------------------------


def test_focal_without_focus_is_cross_entropy():
    log_probs = torch.tensor([-0.1, -2.0, -1e-9], requires_grad=True)
    assert torch.equal(loss.focal(log_probs, gamma=0), -log_probs)
    loss.focal(log_probs, gamma=0).sum().backward()
    assert torch.equal(log_probs.grad, -torch.ones(3))


def test_focal_by_hand():
    shares = torch.tensor([0.5, 0.9], dtype=torch.float64)
    assert loss.focal(shares.log(), gamma=2.0).tolist() == pytest.approx(
        [0.25 * 0.6931471806, 0.01 * 0.1053605157]
    )


def test_label_smoothing_by_hand():
    logits = torch.randn(5, 7, dtype=torch.float64)
    targets = torch.tensor([0, 3, 6, 1, 1])
    logs = logits.log_softmax(-1)
    right = -logs[range(5), targets]
    assert torch.allclose(
        loss.label_smoothed(logits, targets, epsilon=0.2), 0.8 * right + 0.2 * -logs.mean(-1)
    )
    assert torch.allclose(
        loss.label_smoothed(logits, targets, epsilon=0.0),
        cross_entropy(logits, targets, reduction="none"),
    )


def test_rescaled_by_hand():
    log_probs = torch.tensor([-0.5, -2.0], dtype=torch.float64, requires_grad=True)
    losses = loss.rescaled(log_probs)
    losses.sum().backward()
    shares = log_probs.detach().exp()
    assert torch.equal(losses, shares * -log_probs)
    assert torch.equal(log_probs.grad, -shares)


def test_length_normalised_by_hand():
    pairs = {
        **{"chosen_logps": [-6.0], "rejected_logps": [-4.0]},
        **{"ref_chosen_logps": [-9.0], "ref_rejected_logps": [-4.5]},
        **{"chosen_lengths": [3], "rejected_lengths": [1]},
    }
    batch = {name: torch.tensor(values) for name, values in pairs.items()}
    expected = -torch.tensor(2.0 * (3.0 / 3 - 0.5 / 1)).sigmoid().log()
    assert loss.length_normalised(**batch, beta=2.0) == pytest.approx(expected.item())


def test_margin_with_and_without_a_reference():
    chosen = torch.tensor([-1.0, -1.0])
    rejected = torch.tensor([-2.0, -20.0])
    assert loss.margin(chosen, rejected, beta=0.1, gap=1.0).tolist() == pytest.approx([0.9, 0.0])
    assert loss.margin(chosen, rejected, chosen, rejected, beta=0.1).tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_simpo_is_what_the_file_of_cpo_says_to_type(tmp_path, monkeypatch):
    """It is length-normalised, with a margin, without CPO's likelihood of the chosen answer."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    text = (MENU / "trainer" / "cpo.yaml").read_text()
    words = next(
        re.findall(r"\S+=\S+", line) for line in text.splitlines() if "loss_type=simpo" in line
    )
    words += ["metric=none", "dataset.limit.train=8", "trainer.args.per_device_train_batch_size=4"]
    cfg = compose(["trainer=cpo", *words, f"output_root={tmp_path}"]).cfg
    trainer = build_components(open_run(cfg, []), Stop()).trainer
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model.eval(), batch)
        chosen, rejected = (
            _mean_log_prob(trainer.model, batch, side) for side in ("chosen", "rejected")
        )
    expected = -logsigmoid(
        trainer.args.beta * (chosen - rejected) - trainer.args.simpo_gamma
    ).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def _mean_log_prob(model, batch, side):
    ids, mask, labels = (
        batch[f"{side}_{name}"] for name in ("input_ids", "attention_mask", "labels")
    )
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    labels = labels[:, 1:]
    token_losses = -cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(
        labels
    )
    return token_losses.sum(-1) / (labels != -100).sum(-1)


# --- How a loss is called -----------------------------------------------------------------------


def test_a_loss_is_given_what_it_names():
    offered = {"log_probs": 1, "entropy": 2}
    assert call_loss(lambda entropy: entropy, **offered) == 2
    assert call_loss(lambda **all_of_it: all_of_it, **offered) == offered
    assert (
        call_loss(
            torch.nn.CrossEntropyLoss(),
            **{"input": torch.zeros(1, 2), "target": torch.tensor([0]), "other": 1},
        )
        > 0
    )


def test_weights_are_aligned_to_predictions():
    weights = torch.tensor([[1.0, 2.0, 3.0]])
    assert aligned(weights, torch.zeros(1, 2)).tolist() == [[2.0, 3.0]]
    # with two virtual tokens in front
    assert aligned(weights, torch.zeros(1, 4)).tolist() == [[1.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    "result", [torch.tensor(1.0), torch.zeros(2), 0.5], ids=["one number", "too few", "no tensor"]
)
def test_a_result_of_another_shape_is_refused(result):
    trainer = type("Mine", (sequence_objective.Objective,), {"__init__": lambda self: None})()
    trainer.hooks = Hooks(loss=lambda log_probs: result)
    with pytest.raises(ConfigError, match=r"\(3,\)"):
        trainer.entrywise(3, log_probs=torch.zeros(3))


def test_a_loss_that_bypasses_the_recorded_forward_pass_is_refused():
    class Models:
        accelerator = type("Accelerator", (), {"unwrap_model": staticmethod(lambda model: model)})
        model = torch.nn.Linear(1, 1)
        ref_model = None

    ids = torch.tensor([[1, 2]])
    with (
        pytest.raises(SickRun, match="0 forward passes"),
        watched(Models, {"input_ids": WatchedSequences(ids)}, times=2),
    ):
        Models.model(torch.ones(1))


def test_orpo_and_cpo_give_the_number_of_tokens_of_each_answer():
    class Stock(sequence_objective.Trainer):
        is_encoder_decoder = False
        beta = 0.1

        def get_batch_loss_metrics(self, model, batch, train_eval="train"):
            return self.cpo_loss(torch.zeros(2), torch.zeros(2))[0], {}

        def cpo_loss(self, chosen, rejected):
            return (chosen,)

    trainer = type("Mine", (sequence_objective.Contrasts, Stock), {"__init__": lambda self: None})()
    trainer.hooks = Hooks(
        loss=lambda chosen_lengths, rejected_lengths: torch.stack(
            [chosen_lengths.sum(), rejected_lengths.sum()]
        )
    )
    # The first token of a text is never a target.
    chosen = torch.tensor([[-100, -100, 5, 6], [3, 4, 5, -100]])
    rejected = torch.tensor([[-100, 7, -100], [-100, 8, 9]])
    batch = {"chosen_labels": chosen, "rejected_labels": rejected}
    counts, _ = trainer.get_batch_loss_metrics(None, batch, train_eval="eval")
    assert counts.tolist() == [2 + 2, 1 + 2]


def test_a_trl_that_asks_for_no_log_probabilities_is_refused():
    class Stock(sequence_objective.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs)

    trainer = type("Mine", (sequence_objective.Tokens, Stock), {"__init__": lambda self: None})()
    with pytest.raises(SickRun, match="not asked for log-probabilities"):
        trainer.compute_loss(lambda **inputs: torch.tensor(1.0), {})


# --- The names of TRL that are relied on --------------------------------------------------------

KINDS = {
    "sft": "tokens",
    "dpo": "pairs",
    "kto": "labels",
    "orpo": "odds",
    "cpo": "contrasts",
    "reward": "scores",
}
KINDS |= {"ppo": "policy", "grpo": "groups", "gmpo": "groups", "rloo": "sequences"}
CONTRASTED = ("def get_batch_loss_metrics", "chosen_labels", "self.is_encoder_decoder")
SAMPLED = ("completion_mask", "self.aux_loss_enabled", "self.router_aux_loss_coef")
# Names in TRL's trainers that our classes read, beside those in ``upstream``: attributes, and
# columns of their batches.
READ = {
    "sft": ("fused_lm_head", "label_mask", "log_probs", "entropy", "is_top1", "aux_loss"),
    "dpo": (
        "fused_lm_head",
        "self.precompute_ref_logps",
        "ref_chosen_logps",
        "ref_rejected_logps",
        "completion_mask",
    ),
    "kto": (
        "fused_lm_head",
        "self.precompute_ref_logps",
        "self.calculate_KL",
        "KL_input_ids",
        "ref_KL_logps",
    ),
    "orpo": ("policy_chosen_logps", "policy_rejected_logps", "self.beta", *CONTRASTED),
    "cpo": ("policy_chosen_logps", "policy_rejected_logps", "self.beta", *CONTRASTED),
    "reward": ("outputs.logits",),
    "ppo": (),  # our own, which calls the loss itself
    "grpo": (
        *SAMPLED,
        "tool_mask",
        "old_per_token_logps",
        "ref_per_token_logps",
        "importance_sampling_ratio",
        "num_items_in_batch",
        "self.args.steps_per_generation",
        "self.beta",
        "self.current_gradient_accumulation_steps",
        "self.max_completion_length",
        "self.num_generations_eval",
    ),
    "gmpo": ("completion_mask", "old_per_token_logps", "ref_per_token_logps"),
    "rloo": (*SAMPLED, "old_logps"),
}


def kind_of(trainer, config):
    return loss_interface(read_signature(trainer), read_signature(config))


def targets_of(option):
    node = yaml.safe_load((MENU / "trainer" / f"{option}.yaml").read_text())["trainer"]
    return node["_target_"], node["args"]["_target_"]


@pytest.mark.parametrize("option", sorted(path.stem for path in MENU.glob("trainer/*.yaml")))
def test_a_trainer_is_known_by_its_names(option):
    assert kind_of(*targets_of(option)) == KINDS.get(option), (
        "TRL has renamed one of upstream.LOSS_INTERFACES"
    )


def test_every_kind_has_a_class_and_says_what_it_gives():
    assert (
        {*LOSS_INTERFACES}
        == {*KINDS.values()}
        == {*GIVES}
        == {*sequence_objective.OBJECTIVES, "policy"}
    )


@pytest.mark.parametrize("option", KINDS)
def test_attributes_of_trainers_that_our_classes_read_exist(option):
    source = find_definition(targets_of(option)[0]).module.text
    assert [name for name in READ[option] if name not in source] == []


def test_fields_that_a_loss_or_weights_exclude_are_fields_of_a_trainer():
    configs = [read_signature(targets_of(option)[1]) for option in KINDS]
    fields = set().union(*(config.parameters for config in configs))
    assert {*OWN_LOSS, *UNWEIGHABLE, *OWN_POLICY_LOSS} - fields == set()
    trainers = [targets_of(option)[0] for option in KINDS]
    choices = set().union(*(choices_compared(trainer, "loss_type") for trainer in trainers))
    assert {"dft", "nll", "sigmoid"} <= choices
    assert "kto" in choices_compared("trl.KTOTrainer", "loss_type")
    of_groups = {*choices_compared("trl.GRPOTrainer", "loss_type")}
    of_groups |= {*choices_compared("trl.GRPOTrainer", "scale_rewards")}
    assert of_groups >= {*LOSS_TYPES.values(), *SCALES.values()}


OWN_TRAINERS = """
from dataclasses import dataclass
import transformers, trl
from trl.experimental.orpo import ORPOTrainer

class Pairs(trl.DPOTrainer):
    def __init__(self, *args, more=1, **kwargs):
        super().__init__(*args, **kwargs)

@dataclass
class PairsConfig(trl.DPOConfig):
    more: int = 1

class Odds(ORPOTrainer):
    def odds_ratio_loss(self, policy_chosen_logps, policy_rejected_logps):
        return super().odds_ratio_loss(policy_chosen_logps, policy_rejected_logps)

@dataclass
class FreshConfig(transformers.TrainingArguments):
    novelty: float = 0.5

class Fresh(transformers.Trainer):
    def __init__(self, model, args, train_dataset=None, eval_dataset=None, processing_class=None,
                 callbacks=None):
        super().__init__(model, args, train_dataset=train_dataset, eval_dataset=eval_dataset,
                         callbacks=callbacks)
"""


@pytest.fixture
def own_trainers(tmp_path, monkeypatch):
    (tmp_path / "my_trainers.py").write_text(OWN_TRAINERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_trainer_of_the_users_own_is_of_the_kind_that_it_builds_on(own_trainers):
    assert kind_of("my_trainers.Pairs", "my_trainers.PairsConfig") == "pairs"
    assert kind_of("my_trainers.Pairs", "trl.DPOConfig") == "pairs"
    assert kind_of("my_trainers.Odds", "trl.experimental.orpo.ORPOConfig") == "odds"
    assert (
        sequence_objective.OBJECTIVES.get(kind_of("my_trainers.Pairs", "trl.DPOConfig"))
        is sequence_objective.Pairs
    )
    assert kind_of("my_trainers.Fresh", "my_trainers.FreshConfig") is None


@pytest.mark.slow
@pytest.mark.parametrize("group", ["loss", "weight"])
def test_an_unknown_trainer_takes_everything_but_a_loss(own_trainers, capsys, group):
    words = [
        "trainer=sft",
        "trainer._target_=my_trainers.Fresh",
        "allow=[my_trainers]",
        "metric=none",
        "--dry-run",
    ]
    words += ["trainer.args._target_=my_trainers.FreshConfig"]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, {"loss": "loss=focal", "weight": "weight=answers"}[group]]) == 2
    stderr = capsys.readouterr().err
    assert "Fresh takes none: it computes its loss in its own way" in stderr
    able = {"loss": "sft, dpo, kto, orpo, cpo, reward, ppo, gmpo, grpo, rloo"}
    able = {**able, "weight": "sft, dpo, kto"}[group]
    assert f"one of these trainers: {able}\n" in stderr


# --- What is refused before anything loads ------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trainer=online_dpo", "loss=focal"), "learns from rewards"),
        (("trainer=ppo", "loss=focal"), "does not ask for advantages"),
        (
            ("trainer=gkd", "loss=focal", "trainer.teacher_model.path=runner://model/tiny"),
            "distance to a teacher",
        ),
        (
            (
                "trainer=distillation",
                "loss=focal",
                "trainer.teacher_model.path=runner://model/tiny",
            ),
            "distance to a teacher",
        ),
        (("trainer=dpo", "loss=focal"), "asks for log_probs, which DPOTrainer does not give"),
        (("trainer=sft", "loss=length_normalised"), "asks for chosen_logps"),
        (("trainer=orpo", "loss=length_normalised"), "asks for ref_chosen_logps"),
        (("trainer=dpo", "loss._target_=torch.nn.CrossEntropyLoss"), "trainer=sft"),
        (("trainer=dpo", "loss=margin", "trainer.args.loss_type=[ipo]"), "trainer.args.loss_type"),
        (
            ("trainer=dpo", "loss=margin", "trainer.args.label_smoothing=0.1"),
            "which has no effect with a loss",
        ),
        (("trainer=sft", "loss=focal", "loss.gama=1"), "gamma"),
        (("loss=focl",), "loss=focal"),
        (("loss._target_=os.system",), "may not run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_fault_is_found_before_anything_loads(capsys, words, message):
    assert main([*words, "metric=none"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_without_a_loss_has_the_key_that_it_had():
    assert not {"loss", "weight"} & set(compose([]).cfg)
    assert not {"loss", "weight"} & set(compose(["loss=none", "weight=none"]).cfg)


# --- Through the command ------------------------------------------------------------------------

FEW = (
    "trainer.args.max_steps=3",
    "trainer.args.logging_steps=1",
    "metric=none",
    "dataset.limit.eval=4",
)
SMALL = (*FEW, "dataset.limit.train=64", "trainer.args.per_device_train_batch_size=8")
MINE = """
import torch
from torch.nn.functional import cross_entropy, logsigmoid

def whole(outputs, labels, num_items_in_batch=None, **more):
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    total = cross_entropy(logits, targets, reduction="sum", ignore_index=-100)
    if num_items_in_batch is None:
        num_items_in_batch = (targets != -100).sum()
    return total / num_items_in_batch

def pair(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta):
    margin = (chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps)
    return -logsigmoid(beta * margin)

def judged(logps, ref_logps, desirable, kl, beta):
    return 1 - torch.sigmoid(beta * torch.where(desirable, 1.0, -1.0) * (logps - ref_logps - kl))

def odds(chosen_logps, rejected_logps, beta):
    chosen, rejected = chosen_logps.exp(), rejected_logps.exp()
    chosen_odds = chosen_logps - torch.log1p(-chosen)
    return -beta * logsigmoid(chosen_odds - (rejected_logps - torch.log1p(-rejected)))

def surrogate(log_probs, old_log_probs, advantages, mask, clip=0.2):
    ratio = (log_probs - old_log_probs).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip))

def one_number(log_probs, advantages, mask):
    return -(log_probs * advantages)[mask].sum()

def scores(chosen_rewards, rejected_rewards):
    return -logsigmoid(chosen_rewards - rejected_rewards)

def every(**given):
    import json
    from pathlib import Path
    Path("given.json").write_text(json.dumps(sorted(given)))
    names = ("log_probs", "logps", "chosen_logps", "chosen_rewards")
    names = [name for name in names if name in given]
    losses = given[names[0]] ** 2
    return losses.sum(1) if "old_logps" in given else losses

def surrogate_of_group(log_probs, old_log_probs, ref_log_probs, advantages, mask, beta, entropy):
    ratio = (log_probs - old_log_probs).exp()
    kl = ((ref_log_probs - log_probs).exp() - (ref_log_probs - log_probs) - 1) * ratio
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) + beta * kl

def surrogate_of_sequence(log_probs, old_logps, advantages, mask):
    ratio = ((log_probs * mask).sum(1) - old_logps).exp()
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's own in the folder that the command is called from."""
    (tmp_path / "my_losses.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def losses(done):
    assert (done.code, done.state()) == (0, "finished")
    return [line["loss"] for line in done.lines if line["step"]]


def weights(done):
    return next(done.run.model.glob("*model.safetensors")).read_bytes()


# Each sample is trained on twice, in two micro-batches, with a KL, at a rate that clips.
TWICE = (
    "kl_coef=0.1 learning_rate=2e-3 tolerate.ended_worse=true trainer.args.num_iterations=2 "
    "trainer.args.gradient_accumulation_steps=2 trainer.args.max_completion_length=8"
)
TWINS = [
    (f"trainer=grpo peft=lora {TWICE}", "loss=policy_gradient", True),
    ("trainer=sft trainer.args.loss_type=dft", "trainer.args.loss_type=nll loss=rescaled", True),
    (
        "trainer=sft trainer.args.label_smoothing_factor=0.1",
        "trainer.args.label_smoothing_factor=0 loss=label_smoothed",
        False,
    ),
    (
        "trainer=sft trainer.args.gradient_accumulation_steps=2",
        "loss._target_=my_losses.whole",
        False,
    ),
    (
        "trainer=sft trainer.args.packing=true trainer.args.max_length=64",
        "loss=focal loss.gamma=0",
        True,
    ),
    (
        "trainer=dpo trainer.args.loss_type=[sigmoid_norm]",
        "trainer.args.loss_type=[sigmoid] loss=length_normalised",
        True,
    ),
    (
        "trainer=dpo trainer.args.precompute_ref_log_probs=true",
        "loss._target_=my_losses.pair",
        True,
    ),
    ("trainer=dpo peft=lora", "loss._target_=my_losses.pair", True),
    ("trainer=kto", "loss._target_=my_losses.judged", False),
    ("trainer=orpo", "loss._target_=my_losses.odds", False),
    ("trainer=reward", "loss._target_=my_losses.scores", True),
    ("trainer=ppo trainer.args.num_mini_batches=2", "loss._target_=my_losses.surrogate", True),
    ("trainer=ppo trainer.args.num_mini_batches=2", "loss=policy_gradient", True),
    (f"trainer=grpo {TWICE}", "loss._target_=my_losses.surrogate_of_group", True),
    (f"trainer=grpo launcher.num_processes=2 {TWICE}", "loss=policy_gradient", True),
    (f"trainer=rloo {TWICE}", "loss._target_=my_losses.surrogate_of_sequence", True),
]


@pytest.mark.grid(3)
@pytest.mark.slow
# TRL's own is compared
@pytest.mark.filterwarnings("ignore:`label_smoothing_factor` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("words", "ours", "is_exact"), TWINS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_copy_of_the_trainers_loss_trains_the_same(train, mine, words, ours, is_exact):
    theirs = train(*words.split(), *SMALL, name="theirs")
    custom = train(*words.split(), *ours.split(), "allow=[my_losses]", *SMALL, name="own")
    assert losses(custom) == (
        losses(theirs) if is_exact else pytest.approx(losses(theirs), rel=1e-5)
    )
    logged = [{name for name in done.lines[1] if "/" in name} for done in (theirs, custom)]
    assert logged[0] == logged[1], "the trainer's own metrics stay"
    if is_exact:
        assert weights(custom) == weights(theirs)


@pytest.mark.slow
def test_a_loss_of_ppo_that_is_one_number_is_refused(train, mine, capsys):
    done = train("trainer=ppo", "loss._target_=my_losses.one_number", "allow=[my_losses]", *SMALL)
    assert done.code == 2
    assert "a loss for each token" in capsys.readouterr().err


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", GIVES)
def test_each_trainer_gives_what_the_check_says(train, mine, kind, tmp_path):
    name = next(name for name, options in KINDS.items() if options == kind)
    words = [f"trainer={name}", "loss._target_=my_losses.every", "allow=[my_losses]"]
    if kind == "groups":  # at 0 there is no reference
        words.append("kl_coef=0.1")
    assert losses(train(*words, *SMALL))
    names = set(json.loads((tmp_path / "given.json").read_text()))
    # Logits and the outputs of the whole batch cost memory, and exist only for a loss that
    # names them.
    costly = {"logits", "outputs", "labels", "num_items_in_batch"} if kind == "tokens" else set()
    assert names == (set(GIVES[kind]) - costly) | ({"target"} if kind in ALSO_GIVES else set())


@pytest.mark.slow
def test_the_loss_counts_tokens_over_all_micro_batches(train):
    """The same rows of unequal length in one and in four micro-batches give the same loss."""
    sizes = [(16, 1), (4, 4)]
    totals = [
        losses(
            train(
                *(
                    "dataset=toy_reviews",
                    "trainer=sft",
                    "loss=focal",
                    *FEW,
                    "dataset.limit.train=64",
                ),
                f"trainer.args.per_device_train_batch_size={size}",
                f"trainer.args.gradient_accumulation_steps={rounds}",
                name=f"of-{size}",
            )
        )
        for size, rounds in sizes
    ]
    assert totals[1] == pytest.approx(totals[0], rel=2e-5)


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["trainer=sft loss=focal", "trainer=sft loss=label_smoothed",
    "trainer=dpo loss=length_normalised",
     "trainer=cpo loss=margin", "trainer=orpo loss=margin", "trainer=dpo loss=margin peft=lora",
     "trainer=sft loss._target_=torch.nn.CrossEntropyLoss loss.label_smoothing=0.1"],
)  # fmt: skip
def test_a_shipped_loss_trains_and_is_evaluated(train, words):
    done = train(*words.split(), *SMALL)
    assert len(losses(done)) == 3
    assert {"before", "after"} <= set(done.scores)
    assert done.scores["after"]["eval_loss"] < 100
