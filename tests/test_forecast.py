"""What a run will need: counted where it can be counted, and near to what is measured."""

import sys
from pathlib import Path

import pytest

from runner.forecast.machine import Device
from runner.forecast.plan import Rows, build_trainer, cycle_of, rows_per_step, steps_of
from runner.forecast.table import find_forecast, to_lines

ARCHITECTURE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
WEIGHTS = 512 * 64 + 4 * LAYER + 64  # tied embeddings counted once
LORA = {"_target_": "peft.LoraConfig", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
QUANT = {"_target_": "transformers.BitsAndBytesConfig", "load_in_4bit": True}


def configured(target="trl.SFTTrainer", config="trl.SFTConfig", head="lm", peft=None, quant=None, **args):
    """The parts of a run's configuration that a forecast reads."""
    return {
        "name": "run",
        "output_root": "outputs",
        "launcher": {"num_processes": 1},
        "trainer": {"_target_": target, "head": head, "form": "prompt", "args": {"_target_": config, **args}},
        "model": {"_target_": "runner.model.load.new_model", "tokenizer": None, **ARCHITECTURE},
        "peft": peft,
        "quant": quant,
        "optimizer": None,
        "reward": None,
    }


def found(cfg, rows=None, **device):
    return find_forecast(cfg, rows or Rows([32] * 8, total=100), Device("there", **({"gpu": False} | device)))


@pytest.mark.slow
def test_weights_gradients_and_the_state_of_adam_are_exact():
    forecast = found(configured())
    assert forecast.trainer.policy.count == WEIGHTS
    assert forecast.memory.held == {"weights": 4 * WEIGHTS, "optimizer": 8 * WEIGHTS}
    assert forecast.memory.update.left == 4 * WEIGHTS


@pytest.mark.slow
def test_of_an_adapter_only_its_own_weights_are_trained():
    forecast = found(configured(peft=LORA))
    assert forecast.trainer.policy.trained == 4 * 2 * (64 + 64)
    assert forecast.memory.held["optimizer"] == 8 * 4 * 2 * (64 + 64)
    assert forecast.memory.peak < found(configured()).memory.peak


@pytest.mark.slow
def test_four_bits_are_counted_for_the_layers_and_not_for_the_embeddings():
    policy = found(configured(peft=LORA, quant=QUANT)).trainer.policy
    quantised = 4 * (LAYER - 2 * 64)
    rest = 4 * (512 * 64 + 4 * 2 * 64 + 64) + 4 * policy.trained
    assert policy.weights == pytest.approx(quantised * (0.5 + 4 / 64) + rest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optim", "bytes_each"), [("adamw_torch", 8), ("sgd", 0), ("adamw_8bit", 2), ("lion_32bit", 4), ("lion_8bit", 1)]
)
def test_each_optimizer_keeps_its_own_state(optim, bytes_each):
    assert found(configured(optim=optim)).memory.held.get("optimizer", 0) == bytes_each * WEIGHTS


@pytest.mark.slow
def test_adafactor_keeps_rows_and_columns():
    rows = 4 * (512 + 64) + 4 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128) + 2 * 64) + 4 * 64
    assert found(configured(optim="adafactor")).memory.held["optimizer"] == rows


@pytest.mark.slow
def test_recomputed_activations_take_less_and_cost_more():
    kept = found(configured(per_device_train_batch_size=16), Rows([256] * 8))
    again = found(configured(per_device_train_batch_size=16, activation_checkpointing=True), Rows([256] * 8))
    assert again.memory.peak < 0.6 * kept.memory.peak
    assert 1.2 < again.memory.update.linear / kept.memory.update.linear < 1.4


@pytest.mark.slow
def test_operations_are_six_for_each_weight_and_token():
    update = found(configured(per_device_train_batch_size=4)).memory.update
    assert update.linear == pytest.approx(6 * (WEIGHTS - 4 * 2 * 64 - 64) * 4 * 32, rel=0.12)
    assert update.square == 4 * 4 * 7 / 2 * 4 * 4 * 32 * 32 * 16  # there, and two and a half times that back


@pytest.mark.slow
def test_pairs_are_twice_as_many_rows_and_need_a_reference():
    forecast = found(configured("trl.DPOTrainer", "trl.DPOConfig", beta=0.1, per_device_train_batch_size=2))
    assert forecast.trainer.batch.rows == 4
    assert forecast.memory.held["reference"] == 4 * WEIGHTS
    own = configured("trl.DPOTrainer", "trl.DPOConfig", beta=0.1, per_device_train_batch_size=2, peft=LORA)
    assert "reference" not in found(own).memory.held


@pytest.mark.slow
def test_ppo_has_a_critic_and_samples():
    cfg = configured("runner.trainer.ppo.PPOTrainer", "runner.trainer.ppo.PPOConfig", kl_coef=0.1, response_length=16)
    memory = found(cfg).memory
    assert memory.held["critic"] == memory.held["reference"] == 4 * WEIGHTS
    assert memory.held["optimizer"] == 16 * WEIGHTS
    cache = 2 * 4 * 2 * 16 * 8 * (32 + 16) * 4
    assert memory.phases["sampling"] > cache


@pytest.mark.slow
def test_an_architecture_that_looks_at_its_data_has_unknown_activations():
    cfg = configured()
    cfg["model"] = {"_target_": "x", "tokenizer": None, "model_type": "llama4_text", **SMALL_EXPERTS}
    forecast = found(cfg)
    assert forecast.memory.why
    assert "unknown" in "\n".join(to_lines([forecast]))


SMALL_EXPERTS = {
    **{name: value for name, value in ARCHITECTURE.items() if name != "model_type"},
    "intermediate_size_mlp": 64,
    "num_local_experts": 2,
    "head_dim": 16,
}


@pytest.mark.slow
def test_experts_are_simulated_in_32_bits_too():
    cfg = configured()
    own = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    cfg["model"] |= {"model_type": "qwen3_moe", **own}
    memory = found(cfg).memory
    assert not memory.why and memory.update.left == memory.held["weights"]


@pytest.mark.parametrize(
    ("cfg", "rows", "steps"),
    [
        (configured(), 100, 39),  # 13 batches of 8, three times
        (configured(num_train_epochs=1, gradient_accumulation_steps=2), 100, 7),
        (configured(max_steps=5), None, 5),
        (configured(), None, None),
        (configured("runner.trainer.ppo.PPOTrainer", "runner.trainer.ppo.PPOConfig"), 500, 186),
        (configured("trl.GRPOTrainer", "trl.GRPOConfig", num_generations=4), 9, 12),
    ],
)
def test_steps_are_counted_as_the_trainer_does(cfg, rows, steps):
    assert steps_of(cfg, Rows([10], total=rows)) == steps


def test_a_cycle_of_generation_and_its_rows():
    args = {"_target_": "trl.GRPOConfig", "steps_per_generation": 4, "num_iterations": 2}
    assert cycle_of(args) == 8
    assert rows_per_step(args | {"num_generations": 4}) == 1


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_what_to_type():
    lines = "\n".join(to_lines([found(configured(), memory=1_000_000, speed=1e9, how="measured")]))
    assert "warning" in lines and "more than the memory that is there" in lines
    assert "of them trained" in lines and "39 of" in lines
    roomy = "\n".join(to_lines([found(configured(), memory=10**12)]))
    assert "warning" not in roomy


@pytest.mark.slow
def test_a_model_of_an_earlier_stage_has_the_architecture_that_the_stage_began_with():
    from runner.forecast.structure import Source

    cfg = configured()
    cfg["model"] = {"_target_": "runner.model.load.load_model", "path": "outputs/run-sft/x/model", "dtype": "float32"}
    origins = {"outputs/run-sft/x/model": Source(architecture=ARCHITECTURE)}
    assert build_trainer(cfg, Rows([8]), gpu=False, origins=origins).policy.count == WEIGHTS


@pytest.mark.slow
def test_the_forecast_is_near_what_is_measured():
    """The quickest case of the benchmark; all of them: python tests/benchmark/forecast.py"""
    sys.path.append(str(Path(__file__).parent / "benchmark"))
    from forecast import forecast, measure_apart

    measured = measure_apart("sft wide", MALLOC_MMAP_THRESHOLD_="65536")
    assert forecast("sft wide") == pytest.approx(measured, rel=0.25)
