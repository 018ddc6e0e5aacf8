"""Every option of conf/peft trains, starts at the model it was put on, and loads again; and every
trainer measures from that start.
"""

import itertools
import warnings
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
from datasets import Dataset
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from peft.tuners.tuners_utils import BaseTunerLayer
from tiny import tell_story, tiny_model
from transformers import AutoModelForCausalLM
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

from runner.config.build import serve
from runner.config.experiment import AdapterPart
from runner.errors import ConfigError
from runner.io.files import MENU
from runner.model.adapter import changes_base, check_adapter, moves_start, write_adapter
from runner.model.freeze import train_last_layers
from runner.model.load import load_model, load_tokenizer
from runner.model.reference_model import copy_reference, match_reference, needs_reference
from runner.training.components.model import build_tuner

# Options for vision models are tried in test_image.
EACH_KIND = ("lora", "freeze", "p_tuning", "qlora")  # warnings about what they do to a model
MENU_NAMES = sorted(path.stem for path in (MENU / "peft").glob("*.yaml"))
OPTIONS = [*EACH_KIND, *(name for name in MENU_NAMES if name not in EACH_KIND)]
OPTIONS = [name for name in OPTIONS if not name.startswith("vision")]
TEXT = "Anna saw a dog at the park."
PREFERENCES = [
    {"prompt": post, "chosen": f" {good}", "rejected": f" {poor}"}
    for post, good, poor in map(tell_story, range(4))
]


# --- What is trained, and with what -------------------------------------------------------------


def make_lively(folder: Path, architecture: str) -> Path:
    """A model whose weights are large enough for a wrong reference to show."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model(folder, architecture))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("peft")
    return {name: make_lively(home / name, name) for name in ("qwen2", "gpt_neox", "llama")}


@pytest.fixture(scope="session")
def folder(folders) -> Path:
    return folders["qwen2"]


def load(path: Path, **how):
    return load_model(str(path), tokenizer=load_tokenizer(str(path)), **how)


def read_option(name: str) -> tuple[dict | None, object]:
    """The node of a peft option, and the quantisation that comes with it."""
    with initialize_config_dir(str(MENU), version_base="1.3"):
        cfg = OmegaConf.to_container(
            compose(overrides=["+quant=none", f"+peft={name}"]), resolve=True
        )
    return cfg["peft"], serve(cfg["quant"]) if cfg["quant"] else None


def load_adapter_weights(option: str, path: Path, head: str = "lm"):
    """A model as an option would have it, and the peft config for the trainer to put on."""
    node, quantization = read_option(option)
    model = load(path, head=head, quantization_config=quantization, dtype=dtype_for(option, head))
    model, config = build_tuner(AdapterPart.read_chosen(node), model, head)
    check_adapter(model, config)
    return model, config, quantization


def dtype_for(option: str, head: str) -> str:
    # TRL turns adapters of quantised models to bfloat16, and with them the score head.
    return "bfloat16" if (option, head) == ("qlora", "score") else "float32"


def build_trainer(kind: str, model, path: Path, config=None, reference=None, **settings):
    """A trainer that takes one step on four rows."""
    trainer, arguments, rows, arguments_of_kind = TRAINERS[kind]
    if reference is not None:
        arguments_of_kind = arguments_of_kind | {"ref_model": reference}
    args = arguments(
        output_dir=str(path / "out"),
        max_steps=1,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **{"activation_checkpointing": False} | SETTINGS.get(kind, {}) | settings,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*experimental.*")
        return trainer(
            model=model,
            args=args,
            train_dataset=Dataset.from_list(rows),
            processing_class=load_tokenizer(str(path)),
            peft_config=config,
            **arguments_of_kind,
        )


def score_length(completions, **_):
    return [float(len(text)) for text in completions]


PROMPTS = [{"prompt": row["prompt"]} for row in PREFERENCES]
UNPAIRED = [
    {"prompt": row["prompt"], "completion": row["chosen" if good else "rejected"], "label": good}
    for row, good in zip(PREFERENCES, (True, False) * 2, strict=True)
]
WHOLE = [{key: row["prompt"] + row[key] for key in ("chosen", "rejected")} for row in PREFERENCES]
TEXTS = [{"text": row["chosen"]} for row in WHOLE]
SCORED = {"reward_funcs": score_length}
TRAINERS = {
    "sft": (SFTTrainer, SFTConfig, TEXTS, {}),
    "reward": (RewardTrainer, RewardConfig, WHOLE, {}),
    "dpo": (DPOTrainer, DPOConfig, PREFERENCES, {}),
    "kto": (KTOTrainer, KTOConfig, UNPAIRED, {}),
    "grpo": (GRPOTrainer, GRPOConfig, PROMPTS, SCORED),
    "rloo": (RLOOTrainer, RLOOConfig, PROMPTS, SCORED),
    "online_dpo": (OnlineDPOTrainer, OnlineDPOConfig, PROMPTS, SCORED),
}
SHORT = {"num_generations": 2, "max_completion_length": 6, "beta": 0.1}
SETTINGS = {"grpo": SHORT, "rloo": SHORT, "online_dpo": {"max_new_tokens": 6, "max_length": 256}}
TAKES_REFERENCE = ("dpo", "kto", "online_dpo")


def take_step(kind: str, model, path: Path, config=None, **settings):
    """Train one step with the reference it needs, as the runner does; return trainer and log."""
    precomputed = settings.get("precompute_ref_log_probs", False)
    wanted = kind in TAKES_REFERENCE and needs_reference(model, config, precomputed=precomputed)
    reference = copy_reference(model) if wanted else None
    trainer = build_trainer(kind, model, path, config, reference, **settings)
    match_reference(trainer)
    trainer.train()
    return trainer, trainer.state.log_history[0]


def distance(log: dict) -> float:
    """The distance between policy and reference in the first step, as logged by the trainer."""
    names = ("rewards/margins", "rewards/chosen", "rewards/rejected", "kl", "objective/kl")
    figures = [abs(log[name]) for name in names if name in log]
    assert figures
    return max(figures)


@torch.no_grad()
def answer(model, path: Path) -> torch.Tensor:
    """The outputs for one text, without the positions of a learnt prompt."""
    inputs = load_tokenizer(str(path))(TEXT, return_tensors="pt")
    logits = model.eval()(**inputs).logits
    return logits[:, -inputs["input_ids"].shape[1] :] if logits.ndim == 3 else logits


# --- Every option -------------------------------------------------------------------------------


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_starts_at_its_reference_and_loads_again(option, folder, tmp_path):
    model, config, quantization = load_adapter_weights(option, folder)
    start = answer(load(folder, quantization_config=quantization), folder)
    trainer, log = take_step("dpo", model, folder, config)
    assert log["grad_norm"] > 0
    if moves_start(config):
        assert distance(log) > 1e-3
    else:
        assert distance(log) < 1e-4
        assert abs(log["loss"] - 0.693147) < 1e-4
    after = answer(trainer.model, folder)
    assert (after - start).abs().max() > 1e-3
    if config is None:
        trainer.model.save_pretrained(tmp_path)
        back = AutoModelForCausalLM.from_pretrained(tmp_path)
    else:
        write_adapter(trainer.model, tmp_path, base=str(folder))
        base = load(folder, quantization_config=quantization)
        # TRL trains the adapters of quantised models in bfloat16, which loading would turn back.
        back = peft.PeftModel.from_pretrained(
            base, tmp_path, autocast_adapter_dtype=not quantization
        )
    torch.testing.assert_close(answer(back, folder), after, atol=1e-5, rtol=0)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("option", EACH_KIND)
def test_an_option_trains_a_reward_model_with_its_head(option, folder, tmp_path):
    model, config, quantization = load_adapter_weights(option, folder, head="score")
    head = model.score.weight.detach().clone()
    trainer, _ = take_step("reward", model, folder, config)
    after = answer(trainer.model, folder)
    if config is None:
        trainer.model.save_pretrained(tmp_path)
        tokenizer = load_tokenizer(str(folder))
        back = load_model(str(tmp_path), tokenizer=tokenizer, head="score")
    else:
        write_adapter(trainer.model, tmp_path, base=str(folder))
        how = {"quantization_config": quantization, "dtype": dtype_for(option, "score")}
        base = load(folder, head="score", seed=1, **how)
        back = peft.PeftModel.from_pretrained(
            base, tmp_path, autocast_adapter_dtype=not quantization
        )
    torch.testing.assert_close(answer(back, folder), after, atol=1e-5, rtol=0)
    trained = [weight for name, weight in trainer.model.named_parameters() if "score" in name]
    assert any((weight - head).abs().max() > 1e-4 for weight in trained if weight.requires_grad)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("option", EACH_KIND)
def test_an_option_works_where_completions_are_sampled(option, folder):
    model, config, _ = load_adapter_weights(option, folder)
    _, log = take_step("grpo", model, folder, config)
    assert moves_start(config) or distance(log) < 1e-4


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt_neox", "llama"])
@pytest.mark.parametrize("option", ["freeze", "pissa", "ia3"])
def test_other_architectures_start_at_their_reference(option, architecture, folders):
    path = folders[architecture]
    model, config, _ = load_adapter_weights(option, path)
    _, log = take_step("dpo", model, path, config)
    assert distance(log) < 1e-4
    assert log["grad_norm"] > 0


# One that changes nothing, one that moves the start and one that changes the base come first.
OF_EACH_START = ("lora", "p_tuning", "pissa")


@pytest.mark.grid(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "option", [*OF_EACH_START, *(name for name in OPTIONS if name not in OF_EACH_START)]
)
def test_options_know_what_they_do_to_the_start(option, folder):
    """The rules against the facts: with the adapter switched off, and switched on."""
    node, quantization = read_option(option)
    if not node or quantization or "peft." not in node["_target_"]:
        pytest.skip("no adapter of peft on whole numbers")
    answers_of_base = answer(load(folder), folder)
    model, config = build_tuner(AdapterPart.read_chosen(node), load(folder), "lm")
    model = peft.get_peft_model(model, config)
    moved = (answer(model, folder) - answers_of_base).abs().max() > 1e-3
    with model.disable_adapter():
        changed = (answer(model, folder) - answers_of_base).abs().max() > 1e-3
    assert (moves_start(config), changes_base(config)) == (moved, changed)
    if option in OF_EACH_START:
        assert (moved, changed) == (option == "p_tuning", option == "pissa")


# --- Every trainer ------------------------------------------------------------------------------


def save_adapter(base: Path, folder: Path, **how) -> Path:
    """A trained LoRA on disk, far from where it started."""
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", **how)
    model = peft.get_peft_model(load(base), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(torch.randn_like(weight), alpha=0.05)
    write_adapter(model, folder, base=str(base))
    return folder


def move_weights(model):
    """As after an earlier stage in the same process: the weights on disk are others."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    return model


STARTS = ["full", "moved", "lora", "loaded", "pissa", "loaded pissa"]


@pytest.mark.grid(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "start"),
    # One trainer that gets a reference and one that makes it are tried from every start, the
    # others from two.
    [
        *itertools.product(("dpo", "grpo"), STARTS),
        *itertools.product(("kto", "rloo", "online_dpo"), ("moved", "loaded")),
    ],
)
def test_the_reference_is_the_start_model(kind, start, folder, tmp_path):
    torch.manual_seed(0)
    config = None
    how = {"init_lora_weights": "pissa"} if "pissa" in start else {}
    if "loaded" in start:
        model = load(save_adapter(folder, tmp_path, **how))
    else:
        model = load(folder)
        if start == "moved":
            model = move_weights(model)
        if start in ("lora", "pissa"):
            config = serve(AdapterPart.read(read_option(start)[0]).arguments, task_type="CAUSAL_LM")
    before = answer(model, folder)
    if how and kind not in TAKES_REFERENCE:
        with pytest.raises(ConfigError, match="start model") as caught:
            take_step(kind, model, folder, config)
        assert caught.value.faults[0].fix == "peft=lora, or kl_coef=0"
        return
    wanted = kind in TAKES_REFERENCE and needs_reference(model, config, precomputed=False)
    reference = copy_reference(model) if wanted else None
    trainer = build_trainer(kind, model, folder, config, reference)
    matched = match_reference(trainer)
    assert bool(matched) == (start == "moved" and kind in ("grpo", "rloo"))
    torch.testing.assert_close(answer(trainer.model, folder), before, atol=1e-4, rtol=0)
    trainer.train()
    assert distance(trainer.state.log_history[0]) < 1e-4


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "grpo"])
@pytest.mark.parametrize("start", ["moved", "pissa"])
def test_left_to_itself_a_trainer_measures_from_somewhere_else(kind, start, folder):
    """The control: if this ever passes without our help, the help can go."""
    torch.manual_seed(0)
    model = load(folder)
    config = None
    if start == "moved":
        model = move_weights(model)
    else:
        config = serve(AdapterPart.read(read_option("pissa")[0]).arguments, task_type="CAUSAL_LM")
    trainer = build_trainer(kind, model, folder, config)
    trainer.train()
    assert distance(trainer.state.log_history[0]) > 1e-2


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("option", ["none", "lora", "pissa"])
def test_precomputed_references_are_of_the_start_model(option, folder):
    model, config, _ = load_adapter_weights(option, folder)
    trainer, log = take_step("dpo", model, folder, config, precompute_ref_log_probs=True)
    assert distance(log) < 1e-4
    assert (trainer.ref_model is not None) == (option == "pissa")


@pytest.mark.slow
def test_a_reference_is_a_frozen_copy(folder):
    model = load(folder)
    reference = copy_reference(model)
    assert not reference.training
    for w in reference.parameters():
        assert not w.requires_grad
    for weight in model.parameters():
        assert weight.requires_grad
    move_weights(model)
    assert torch.equal(answer(reference, folder), answer(load(folder), folder))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_an_adapter_is_put_on_once(kind, folder):
    model, config, _ = load_adapter_weights("lora", folder)
    trainer, _ = take_step(kind, model, folder, config)
    layers = [part for part in trainer.model.modules() if isinstance(part, BaseTunerLayer)]
    assert len(layers) == 14  # seven linear layers in each of two blocks
    for part in layers:
        assert not isinstance(part.base_layer, BaseTunerLayer)


@pytest.mark.slow
def test_the_copy_that_a_trainer_keeps_as_reference_is_not_written(folder, tmp_path):
    model = load(save_adapter(folder, tmp_path / "adapter"))
    trainer, _ = take_step("dpo", model, folder)
    assert sorted(trainer.model.peft_config) == ["default", "ref"]
    write_adapter(trainer.model, tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    back = load(tmp_path / "out")
    torch.testing.assert_close(answer(back, folder), answer(trainer.model, folder))


@pytest.mark.slow
def test_a_saved_adapter_names_its_base_and_memory_is_unchanged(folder, tmp_path):
    model, config, _ = load_adapter_weights("lora", folder)
    trainer, _ = take_step("sft", model, folder, config)
    write_adapter(trainer.model, tmp_path, base="org/name", revision="v1")
    written = peft.PeftConfig.from_pretrained(tmp_path)
    assert (written.base_model_name_or_path, written.revision) == ("org/name", "v1")
    assert trainer.model.peft_config["default"].base_model_name_or_path == str(folder)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "grpo", "reward"])
def test_activation_checkpointing_changes_no_gradient_of_an_adapter(kind, folder):
    norms = []
    for checkpointing in (False, True):
        model, config, _ = load_adapter_weights(
            "lora", folder, head="score" if kind == "reward" else "lm"
        )
        _, log = take_step(kind, model, folder, config, activation_checkpointing=checkpointing)
        norms.append(log["grad_norm"])
    assert norms[0] > 0
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


# --- What cannot work ---------------------------------------------------------------------------


def faults_of(model, config) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        check_adapter(model, config)
    return [(fault.where, fault.fix) for fault in caught.value.faults]


@pytest.mark.slow
def test_adapters_that_cannot_work_are_refused_before_a_trainer_is_built(folder, tmp_path):
    def config(**how):
        return peft.LoraConfig(task_type="CAUSAL_LM", **how)

    base = load(folder)
    check_adapter(base, None)
    check_adapter(base, config(target_modules=["q_proj", "mlp.up_proj"]))
    assert faults_of(load(save_adapter(folder, tmp_path)), config()) == [
        ("peft", "peft=none, or model.merge=true")
    ]
    assert faults_of(base, config(init_lora_weights="pissa_niter_4")) == [
        ("peft.init_lora_weights", "peft.init_lora_weights=pissa")
    ]
    adaptive = peft.AdaLoraConfig(task_type="CAUSAL_LM", total_step=10, tinit=2, tfinal=2)
    assert faults_of(base, adaptive) == [("peft", "peft=lora")]
    assert (
        faults_of(base, config(target_modules=["q_proj", "query", "k"]))
        == [("peft.target_modules", "peft.target_modules=all-linear")] * 2
    )


@pytest.mark.slow
def test_quantised_weights_need_an_adapter_that_leaves_them_alone(folder):
    _, quantization = read_option("qlora")
    model = load(folder, quantization_config=quantization)
    assert faults_of(model, None) == [("peft", "peft=lora, or quant=none")]
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights="olora")
    assert faults_of(model, config) == [("peft", "peft=lora")]
    with pytest.raises(ConfigError, match="quantised"):
        train_last_layers(model, layers=1)


# --- Quantised ----------------------------------------------------------------------------------


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("bits", ["4bit", "8bit"])
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_gradients_are_the_same_after_an_evaluation(bits, architecture, folders):
    """On CPUs with bfloat16, bitsandbytes would repack the weights at the first evaluation."""
    path = folders[architecture]
    quantization = OmegaConf.to_container(OmegaConf.load(MENU / "quant" / f"{bits}.yaml"))
    gradients = []
    for evaluated in (False, True):
        torch.manual_seed(0)
        base = load(path, quantization_config=serve(quantization))
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False
        )
        model = peft.get_peft_model(base, config)
        if evaluated:
            answer(model, path)
        inputs = load_tokenizer(str(path))(TEXT, return_tensors="pt")
        model.train()(**inputs, labels=inputs["input_ids"]).loss.backward()
        gradients.append({n: w.grad for n, w in model.named_parameters() if w.requires_grad})
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradients[1][name], gradient)


# --- Frozen in part -----------------------------------------------------------------------------

NAMES = {
    "qwen2": ("model.layers.", "model.norm.", "model.embed_tokens."),
    "gpt_neox": ("gpt_neox.layers.", "gpt_neox.final_layer_norm.", "lm_head."),
    "llama": ("model.layers.", "model.norm.", "lm_head."),
}


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "layers", "also"),
    [
        *((architecture, 1, ["norm", "head"]) for architecture in NAMES),
        *(("qwen2", layers, also) for layers, also in ((1, []), (0, ["head"]), (2, ["norm"]))),
    ],
)
def test_only_the_chosen_weights_change(architecture, layers, also, folders):
    path = folders[architecture]
    model = load(path)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer, _ = take_step("sft", train_last_layers(model, layers=layers, also=also), path)
    changed = {n for n, w in trainer.model.named_parameters() if not torch.equal(w, before[n])}
    block, norm, head = NAMES[architecture]
    chosen = [f"{block}{number}." for number in range(2 - layers, 2)]
    chosen += [norm] if "norm" in also else []
    if "head" in also:
        chosen.append("model.embed_tokens." if model.config.tie_word_embeddings else head)
    assert changed == {name for name in before if name.startswith(tuple(chosen))}


@pytest.mark.slow
def test_a_score_head_is_trained_with_the_last_layer(folder):
    model = train_last_layers(load(folder, head="score"), layers=1, also=["head"])
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert "score.weight" in trained
    assert "model.embed_tokens.weight" not in trained


@pytest.mark.slow
def test_missing_layers_and_other_slips_are_named_at_once(folder, tmp_path):
    def faults(model, **how) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            train_last_layers(model, **how)
        return [fault.where for fault in caught.value.faults]

    model = load(folder)
    assert faults(model, layers=3) == ["peft.layers"]
    assert faults(model, layers=-1, also=["norms"]) == ["peft.layers", "peft.also"]
    assert faults(model, layers=0, also=[]) == ["peft"]
    assert faults(load(save_adapter(folder, tmp_path)), layers=1) == ["peft"]
    for weight in model.parameters():
        assert weight.requires_grad


def match_shards(words: list[str]) -> None:
    """In two processes, a sharded reference loaded from elsewhere becomes the policy."""
    from accelerate import PartialState
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    PartialState(cpu=True)
    torch.manual_seed(0)
    policy, reference = (
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 5)) for _ in range(2)
    )
    reference[0].load_state_dict(policy[0].state_dict())
    fully_shard(reference, mesh=init_device_mesh("cpu", (2,)))
    accelerator = SimpleNamespace(unwrap_model=lambda model, **_: model)
    trainer = SimpleNamespace(model=policy, ref_model=reference, accelerator=accelerator)
    assert match_reference(trainer) == ["1.weight", "1.bias"]
    assert match_reference(trainer) == []
    for name, weight in reference.named_parameters():
        assert torch.equal(weight.full_tensor(), policy.get_parameter(name))


@pytest.mark.dear("two processes")
@pytest.mark.slow
def test_each_shard_of_a_reference_is_that_of_the_policy(runner):
    for started in runner.start_two(door="test_peft:match_shards"):
        done = started.wait()
        assert done.returncode == 0, done.stderr
