"""Passes without the padding of a batch give what passes with it give, and where they are not."""

import copy
import types

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tiny_ppo import PAD, letter_model, letter_tokenizer

from runner.run import COMPUTED, SKIPPED
from runner.training.padding import Line, skip_padding, wants_no_padding

PAIRS = [
    {"prompt": "abc", "chosen": "d", "rejected": "efghijk"},
    {"prompt": "l", "chosen": "mnopqrst", "rejected": "a"},
    {"prompt": "efghij", "chosen": "kl", "rejected": "b"},
]
LABELLED = [
    {"prompt": "abc", "completion": "d", "label": True},
    {"prompt": "l", "completion": "mnopqrst", "label": False},
    {"prompt": "efghij", "completion": "kl", "label": True},
]
ALONE = types.SimpleNamespace(world_size=1, deepspeed=None, torch_compile=False)
ROWS = {"SFT": LABELLED, "DPO": PAIRS, "KTO": LABELLED, "Reward": PAIRS}


def trainer_of(kind, folder, model, **changes):
    """TRL's trainer of a kind, with a batch that holds all rows."""
    settings = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
    settings |= {"per_device_train_batch_size": 3, "activation_checkpointing": False}
    columns = ["label"] if kind == "SFT" else []
    rows = Dataset.from_list(ROWS[kind]).remove_columns(columns)
    has_reference = kind in ("DPO", "KTO") and "peft_config" not in changes
    reference = {"ref_model": copy.deepcopy(model)} if has_reference else {}
    return getattr(trl, f"{kind}Trainer")(
        model,
        args=getattr(trl, f"{kind}Config")(str(folder), **settings),
        train_dataset=rows,
        processing_class=letter_tokenizer(),
        **reference,
        **changes,
    )


def model_of(kind, family="llama"):
    model = letter_model(family, labels=1 if kind == "Reward" else 0, **without_dropout(family))
    model.config.pad_token_id = PAD
    return model


def without_dropout(family):
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop") if family == "gpt2" else ()
    return dict.fromkeys(names, 0.0)


def step(trainer):
    """The loss, the figures and the gradients of a batch."""
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=None)
    trainer.model.zero_grad()
    loss.backward()
    gradients = {
        name: weight.grad.clone()
        for name, weight in trainer.model.named_parameters()
        if weight.grad is not None
    }
    figures = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    figures.pop("num_tokens", None)  # of all batches so far
    return loss.detach(), figures, gradients


def assert_equal_to_rounding(one, other):
    loss, figures, gradients = one
    assert torch.allclose(loss, other[0], rtol=1e-5)
    assert figures == pytest.approx(other[1], rel=1e-4, abs=1e-5)
    assert gradients.keys() == other[2].keys()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, other[2][name], atol=1e-4, rtol=1e-3), name


def widths_of(trainer):
    """The shapes of the tokens that the layers of a trainer's model get from here on."""
    shapes = []
    layers = next(part for part in trainer.model.modules() if isinstance(part, torch.nn.ModuleList))
    layers[0].register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape[:2])))
    return shapes


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", ROWS)
def test_loss_figures_and_gradients_are_those_of_the_padded_batch(kind, family, tmp_path):
    trainer = trainer_of(kind, tmp_path, model_of(kind, family))
    padded = step(trainer)
    assert skip_padding([trainer.model, getattr(trainer, "ref_model", None)], ALONE)
    shapes = widths_of(trainer)
    assert_equal_to_rounding(step(trainer), padded)
    assert {rows for rows, _ in shapes} == {1}


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_an_adapter_and_its_base_leave_it_out(kind, tmp_path):
    adapter = LoraConfig(target_modules="all-linear")
    trainer = trainer_of(kind, tmp_path, model_of(kind), peft_config=adapter)
    padded = step(trainer)
    assert skip_padding([trainer.model], ALONE)
    shapes = widths_of(trainer)
    assert_equal_to_rounding(step(trainer), padded)
    assert {rows for rows, _ in shapes} == {1}


def test_rows_that_are_padded_on_the_left_keep_their_positions():
    model = model_of("SFT", "gpt2")
    ids = torch.tensor([[PAD, PAD, 1, 2], [3, 4, 5, 6]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    before = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    assert skip_padding([model], ALONE)
    after = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    assert torch.allclose(after[mask.bool()], before[mask.bool()], atol=1e-5)


@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": torch.ones(2, 3, dtype=torch.long), "use_cache": False},
        {"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]), "use_cache": True},
        {
            "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
            "use_cache": False,
            "output_hidden_states": True,
        },
        {"use_cache": False},
    ],
    ids=["no padding", "a cache", "all states", "no mask"],
)
def test_other_passes_are_the_same_to_the_bit(given):
    model = letter_model()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    before = model(input_ids=ids, **given).logits
    assert skip_padding([model], ALONE)
    assert torch.equal(model(input_ids=ids, **given).logits, before)


@pytest.mark.parametrize(
    "model",
    [
        letter_model(attention_dropout=0.1),
        letter_model("gpt2"),
        letter_model("mistral", sliding_window=3),
        letter_model("opt", dropout=0.0),  # has positions of its own for rows padded on the left
        letter_model("mixtral", output_router_logits=True),
        get_peft_model(letter_model(), LoraConfig(lora_dropout=0.1, target_modules="all-linear")),
        get_peft_model(
            letter_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        ),
        torch.nn.Linear(2, 2),
    ],
    ids=[
        "attention dropout",
        "dropout",
        "windows",
        "positions",
        "experts",
        "adapter's dropout",
        "learnt prompt",
        "other",
    ],
)
def test_models_that_cannot_are_left_alone(model):
    assert not skip_padding([letter_model(), model], ALONE)
    assert not model._forward_hooks


@pytest.mark.parametrize(
    "change", [{"world_size": 2}, {"deepspeed": "ds.json"}, {"torch_compile": True}]
)
def test_several_processes_and_compiled_models_compute_it(change):
    args = types.SimpleNamespace(**vars(ALONE) | change)
    assert not skip_padding([letter_model()], args)


def test_a_line_holds_its_tokens_and_puts_states_back():
    mask = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=torch.bool)
    line = Line(mask)
    assert line.row_lengths == [2, 1]
    states = torch.tensor([[1.0], [2.0], [3.0]])
    assert line.put_back(states)[..., 0].tolist() == [[0, 1, 2], [0, 0, 0], [3, 0, 0]]


@pytest.mark.parametrize(
    ("manifest", "choice", "skips"),
    [
        ({}, None, True),
        ({}, False, False),
        ({"data": {}}, None, False),  # of an earlier version, which computed it
        ({"data": {}}, True, True),
        ({"data": {}, "padding": SKIPPED}, None, True),
        ({"padding": COMPUTED}, None, False),
    ],
)
def test_a_run_goes_on_as_its_steps_began(manifest, choice, skips):
    part = types.SimpleNamespace(skip_padding=choice)
    run = types.SimpleNamespace(
        experiment=types.SimpleNamespace(trainer=part, resume=None), manifest=lambda: manifest
    )
    assert wants_no_padding(run) is skips
