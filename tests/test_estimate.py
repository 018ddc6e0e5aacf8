"""The needs of a run: exact where they can be counted, and close to the measurement elsewhere."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.config.experiment import Experiment
from runner.estimate.forecast import Device, Forecast, format_forecasts
from runner.estimate.measure import measure_small
from runner.estimate.memory import Shards, Training
from runner.estimate.reduce import Clones, linked, reduce
from runner.estimate.steps import Rows, cycle_of, rows_per_step, steps_of
from runner.launch.compose import stages
from runner.model.clone import Source

ARCHITECTURE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 544,
    "tie_word_embeddings": True,
}
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
WEIGHTS = 544 * 64 + 4 * LAYER + 64  # tied embeddings counted once
LORA = {"_target_": "peft.LoraConfig", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
QUANT = {"_target_": "transformers.BitsAndBytesConfig", "load_in_4bit": True}
DOUBLE = QUANT | {"bnb_4bit_use_double_quant": True}


def configured(
    target="trl.SFTTrainer", config="trl.SFTConfig", head="lm", peft=None, quant=None, **args
):
    """The parts of a run's configuration that a forecast reads."""
    return {
        "name": "run",
        "output_root": "outputs",
        "launcher": {"num_processes": 1},
        "trainer": {
            "_target_": target,
            "head": head,
            "form": "prompt",
            "args": {"_target_": config, **args},
        },
        "model": {"_target_": "runner.model.load.new_model", "tokenizer": None, **ARCHITECTURE},
        "peft": peft,
        "quant": quant,
        "optimizer": None,
        "reward": None,
    }


def counted(cfg, rows=None, **device):
    """A forecast without a measured step, from what can be counted."""
    device = Device("there", **({"gpu": False} | device))
    return Forecast(
        Training(Experiment.read(cfg), rows or Rows([32] * 8, total=100), None, gpu=device.gpu),
        device,
        "not measured",
    )


BENCHMARK = Path(__file__).parent / "benchmark"
M_MMAP_THRESHOLD = -3
MODEL = [f"model.{name}={value}" for name, value in ARCHITECTURE.items()]


@pytest.fixture
def composed(tmp_path, monkeypatch):
    """The configuration of a run with a small model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def compose(*words, model=MODEL):
        (run,) = stages.compose_runs(
            ["model=new", *model, "metric=none", "dataset.limit.train=64", *words]
        )
        return run.cfg

    return compose


@pytest.fixture
def measured(composed, tmp_path):
    """A step of a run in small, trained for once."""

    def measure(cfg):
        small = reduce(cfg, tmp_path / "small", Clones(tmp_path / "models"))
        measurement, why = measure_small(small.cfg, False, tmp_path / "measured")
        assert not why
        return measurement

    return measure


@pytest.mark.slow
def test_weights_gradients_and_the_state_of_adam_are_exact():
    training = counted(configured()).training
    assert training.policy.count == WEIGHTS
    assert training.held == {"weights": 4 * WEIGHTS, "optimizer": 8 * WEIGHTS}
    assert training.gradients == 4 * WEIGHTS


@pytest.mark.slow
def test_of_an_adapter_only_its_own_weights_are_trained():
    training = counted(configured(peft=LORA)).training
    assert training.policy.trained == 4 * 2 * (64 + 64)
    assert training.held["optimizer"] == 8 * 4 * 2 * (64 + 64)
    assert training.peak < counted(configured()).training.peak


@pytest.mark.slow
def test_four_bits_are_counted_for_the_layers_and_not_for_the_embeddings():
    policy = counted(configured(peft=LORA, quant=QUANT)).training.policy
    quantised = 4 * (LAYER - 2 * 64)
    rest = 4 * (544 * 64 + 4 * 2 * 64 + 64) + 4 * policy.trained
    assert policy.bytes == pytest.approx(quantised * (0.5 + 4 / 64) + rest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optim", "bytes_each"),
    [("adamw_torch", 8), ("sgd", 0), ("adamw_8bit", 2), ("lion_32bit", 4), ("lion_8bit", 1)],
)
def test_each_optimizer_keeps_its_own_state(optim, bytes_each):
    assert (
        counted(configured(optim=optim)).training.held.get("optimizer", 0) == bytes_each * WEIGHTS
    )


@pytest.mark.slow
def test_adafactor_keeps_rows_and_columns():
    rows = (
        4 * (544 + 64) + 4 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 128) + 2 * 64) + 4 * 64
    )
    assert counted(configured(optim="adafactor")).training.held["optimizer"] == rows


@pytest.mark.slow
def test_a_step_is_measured_and_scaled_to_the_rows(composed, measured):
    cfg = composed("trainer=sft", "trainer.args.per_device_train_batch_size=4")
    measurement = measured(cfg)
    assert (
        measurement.rows,
        measurement.shape.layers,
        measurement.accumulates,
        measurement.reference,
        measurement.sampled,
    ) == (
        4,
        4,
        False,
        False,
        0,
    )
    training = Training(Experiment.read(cfg), Rows([32] * 8), measurement, gpu=False)
    weights = 6 * (WEIGHTS - 4 * 2 * 64 - 64) * 4 * 32
    attention = 4 * 4 * 7 / 2 * 4 * 4 * 32 * 32 * 16  # there, and two and a half times that back
    assert training.operations_per_step == pytest.approx(weights + attention)


@pytest.mark.slow
def test_recomputed_activations_take_less_and_cost_more(composed, measured):
    cfg = composed("trainer=orpo", "trainer.args.per_device_train_batch_size=8")
    measurement = measured(cfg)
    args = cfg["trainer"]["args"] | {"activation_checkpointing": True}
    both = (cfg, cfg | {"trainer": cfg["trainer"] | {"args": args}})
    kept_activations, again = (
        Training(Experiment.read(config), Rows([256] * 8), measurement, gpu=False)
        for config in both
    )
    assert again.peak < 0.6 * kept_activations.peak
    assert 1.2 < again.operations_per_step / kept_activations.operations_per_step < 1.4
    assert kept_activations.activations == pytest.approx(
        measurement.body * 256 * 16 / measurement.tokens
    )


@pytest.mark.slow
def test_pairs_are_twice_as_many_rows_and_need_a_reference(composed, measured):
    words = ("trainer=dpo", "trainer.args.per_device_train_batch_size=2")
    cfg = composed(*words)
    training = Training(
        Experiment.read(cfg), Rows([32] * 8), measurement := measured(cfg), gpu=False
    )
    assert (training.batch[0], training.texts) == (4, 2)
    assert training.held["reference"] == 4 * WEIGHTS
    # If each row is read first, the policy runs before the first step, and its memory then is
    # no longer held.
    once = Training(Experiment.read(cfg), Rows([32] * 8, total=64), measurement, gpu=False)
    assert "reference" not in once.held
    assert once.peak == training.peak - 4 * WEIGHTS
    args = cfg["trainer"]["args"] | {"precompute_ref_batch_size": 128}
    large = Training(
        Experiment.read(cfg | {"trainer": cfg["trainer"] | {"args": args}}),
        Rows([32] * 8, total=64),
        measurement,
        gpu=False,
    )
    layers = 64 * large.activations / large.policy.shape.layers
    assert large.peak == large.policy.bytes + int(layers) > once.peak
    for change in ({"weight": {"x": {}}}, {"dataset": {"streaming": True}}):
        assert (
            "reference"
            in Training(
                Experiment.read(cfg | change), Rows([32] * 8, total=64), measurement, gpu=False
            ).held
        )
    adapted = composed(*words, "peft=lora")
    assert (
        "reference"
        not in Training(Experiment.read(adapted), Rows([32] * 8), measured(adapted), gpu=False).held
    )


@pytest.mark.slow
def test_ppo_has_a_critic_and_samples(composed, measured):
    cfg = composed("trainer=ppo", "reward=length", "kl_coef=0.1", "trainer.args.response_length=16")
    training = Training(Experiment.read(cfg), Rows([32] * 8), measured(cfg), gpu=False)
    assert training.held["critic"] == training.held["reference"] == 4 * WEIGHTS
    assert training.held["optimizer"] == 16 * WEIGHTS
    cache = 2 * 4 * 2 * 16 * 8 * (32 + 16) * 4
    assert training.phases["sampling"] > cache


UNHEARD = """
from trl import GRPOTrainer

class Novel(GRPOTrainer):
    pass
"""


@pytest.mark.slow
def test_an_unknown_trainer_is_forecast_with_its_sampling(composed, measured, monkeypatch):
    Path("novelty.py").write_text(UNHEARD)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    words = ("trainer=grpo", "reward=length", "trainer.args.max_completion_length=16")
    cfg = composed(*words, "trainer._target_=novelty.Novel", "allow=[novelty]")
    training = Training(Experiment.read(cfg), Rows([32] * 8), measured(cfg), gpu=False)
    assert training.small.sampled == 8
    assert training.phases["sampling"] > 2 * 4 * 2 * 16 * 8 * (32 + 16) * 4


@pytest.mark.slow
def test_figures_that_could_not_be_measured_are_unknown():
    lines = "\n".join(format_forecasts([counted(configured())]))
    assert "unknown      activations" in lines
    assert "not measured" in lines


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "keys_of_model",
    [
        {"model_type": "mixtral", "num_local_experts": 4},
        {
            "model_type": "qwen3_moe",
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
    ],
    ids=lambda keys: keys["model_type"],
)
def test_experts_are_measured_whatever_their_code_asks_of_its_data(
    keys_of_model, composed, measured
):
    words = [
        f"model.{name}={value}"
        for name, value in (
            {"model_type": keys_of_model["model_type"]} | ARCHITECTURE | keys_of_model
        ).items()
    ]
    cfg = composed("trainer=sft", model=words)
    training = Training(Experiment.read(cfg), Rows([32] * 8), measured(cfg), gpu=False)
    assert training.phases["update"] >= training.gradients == training.held["weights"]
    assert training.operations_per_step > 0


@pytest.mark.parametrize(
    ("cfg", "rows", "steps"),
    [
        (configured(), 100, 39),  # 13 batches of 8, three times
        (configured(num_train_epochs=1, gradient_accumulation_steps=2), 100, 7),
        (configured(max_steps=5), None, 5),
        (configured(), None, None),
        (configured("runner.ppo.PPOTrainer", "runner.ppo.PPOConfig"), 500, 186),
        (configured("trl.GRPOTrainer", "trl.GRPOConfig", num_generations=4), 9, 12),
    ],
)
def test_steps_are_counted_as_the_trainer_does(cfg, rows, steps):
    assert steps_of(Experiment.read(cfg), Rows([10], total=rows)) == steps


def test_a_cycle_of_generation_and_its_rows():
    args = {"_target_": "trl.GRPOConfig", "steps_per_generation": 4, "num_iterations": 2}
    assert cycle_of(args) == 8
    assert rows_per_step(args | {"num_generations": 4}) == 1


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_reported_with_a_fix():
    lines = "\n".join(
        format_forecasts([counted(configured(), memory=1_000_000, speed=1e9, how="measured")])
    )
    assert "warning" in lines
    assert "more than the available memory" in lines
    assert "of them trained" in lines
    assert "39 of" in lines
    roomy = "\n".join(format_forecasts([counted(configured(), memory=10**12)]))
    assert "warning" not in roomy


@pytest.mark.parametrize(
    ("rows", "fix"), [(8, "per_device_train_batch_size=4"), (1, "rows of 500 tokens")]
)
def test_one_row_at_a_time_cannot_be_fewer(rows, fix):
    args = {"_target_": "trl.SFTConfig", "per_device_train_batch_size": rows}
    needs = {
        "held": {"weights": 1},
        "phases": {"update": 90},
        "gradients": 1,
        "peak": 92,
        "recompute": True,
    }
    training = SimpleNamespace(
        **needs, args=args, width=1000, experiment=Experiment(), parts=Shards(3)
    )
    (line,) = Forecast(training, Device("a GPU", True, memory=95)).warning()
    assert fix in line


@pytest.mark.slow
def test_a_model_of_an_earlier_stage_has_the_architecture_that_the_stage_began_with(tmp_path):
    cfg = configured()
    cfg["model"] = {
        "_target_": "runner.model.load.load_model",
        "path": "outputs/run-sft/x/model",
        "dtype": "float32",
    }
    Source(architecture=ARCHITECTURE).config().save_pretrained(tmp_path)
    cfg = linked(cfg, {"outputs/run-sft/x/model": str(tmp_path)})
    assert Training(Experiment.read(cfg), Rows([8]), None, gpu=False).policy.count == WEIGHTS


PARTS = ("weights", "gradients", "optimizer")
LARGE = {
    **{
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
    },
    **{
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": "false",
    },
}


@pytest.mark.slow
def test_eight_billion_weights_on_a_card(composed, tmp_path):
    """Gigabytes at 1,109 tokens, within a tenth of a count of every tensor."""
    settings = [f"model.{name}={value}" for name, value in LARGE.items()]
    cfg, adapted = (
        composed("trainer=sft", "trainer.args.per_device_train_batch_size=1", *peft, model=settings)
        for peft in ((), ("peft=lora",))
    )
    bf16 = {"model": cfg["model"] | {"dtype": "bfloat16"}}
    cases = ((cfg | bf16, 64.3), (adapted | bf16, 17.3), (adapted | bf16 | {"quant": DOUBLE}, 7.1))
    small = {}
    for case, expected in cases:
        kind = case["peft"] is None
        if kind not in small:
            place = tmp_path / f"{len(small)}"
            reduced = reduce(case, place / "small", Clones(place / "models")).cfg
            small[kind], why = measure_small(reduced, True, place / "measured")
            assert not why
        training = Training(Experiment.read(case), Rows([1109]), small[kind], gpu=True)
        assert training.peak / 1e9 == pytest.approx(expected, rel=0.1)


@pytest.mark.grid(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "processes", "split"),
    [
        ("none", 8, {}),
        ("zero1", 8, {"optimizer": 8}),
        ("zero2", 8, {"optimizer": 8, "gradients": 8}),
        ("fsdp2", 8, dict.fromkeys(PARTS, 8)),
        ("hsdp", 4, dict.fromkeys(PARTS, 2)),
        ("fsdp2_offload", 2, dict.fromkeys(PARTS, 0)),
        ("zero2_offload", 2, {"optimizer": 0, "gradients": 0}),
        ("zero3_offload", 2, dict.fromkeys(PARTS, 0)),
    ],
)
def test_a_strategy_splits_what_each_process_holds(composed, strategy, processes, split):
    settings = [f"model.{name}={value}" for name, value in LARGE.items()]
    words = ("trainer=sft", f"strategy={strategy}", f"launcher.num_processes={processes}")
    trainings = [
        Training(Experiment.read(composed(*command, model=settings)), Rows([9]), None, gpu=True)
        for command in (["trainer=sft"], words)
    ]
    unsplit, parts = (training.held | {"gradients": training.gradients} for training in trainings)
    for name in PARTS:
        share = split.get(name, 1)
        assert parts.get(name, 0) == (unsplit[name] // share if share else 0)
    warned = "\n".join(Forecast(trainings[1], Device("a GPU", True, memory=40 * 10**9)).warning())
    assert bool(warned) == (trainings[1].peak > 36e9)
    assert ("strategy=fsdp2 launcher.num_processes=8" in warned) == bool(
        warned and trainings[1].parts.stage < 3
    )


def measure(words):
    """Print the memory of a case with an allocator that returns freed blocks at once."""
    sys.path.append(str(BENCHMARK))
    from forecast import measured

    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 65536)
    print(measured(words[0]))


@pytest.mark.dear("a wide model is trained to measure its memory")
@pytest.mark.slow
def test_the_forecast_is_near_what_is_measured(runner, monkeypatch):
    """The quickest case of the benchmark; all of them: python tests/benchmark/forecast.py"""
    monkeypatch.syspath_prepend(BENCHMARK)
    from forecast import forecast

    measured = int(runner("sft wide", door="test_estimate:measure").stdout.split()[-1])
    assert forecast("sft wide") == pytest.approx(measured, rel=0.25)
