"""PPO as people type it: the commands of the README, the seeds, and words that cannot work."""

import pytest
from safetensors.torch import load_file

from runner.run import Run

pytestmark = pytest.mark.slow
SHORT = (
    "trainer.args.max_steps=2",
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
    "metric=none",
)
PPO = ("trainer=ppo", *SHORT, "trainer.args.response_length=8")


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "words",
    [
        ("peft=lora", "trainer.args.critic=model"),
        ("trainer.args.critic=head", "kl_coef=0"),
        ("peft=lora", "quant=4bit"),
        ("peft=lora", "trainer.args.activation_checkpointing=true"),
        ("dataset.streaming=true", "trainer.args.num_generations=2"),
        (
            "dataset=toy_reviews",
            "trainer.args.score_normalization=whiten",
            "trainer.args.score_clip=3",
        ),
    ],
    ids=" ".join,
)
def test_a_combination_trains_and_loads_elsewhere(train, words):
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    done = train(*PPO, *words)
    assert (done.code, done.state()) == (0, "finished")
    first = next(line for line in done.lines if line["step"] == 1)
    assert abs(first.get("objective/kl", 0.0)) < 1e-3
    assert first["grad_norm"] > 0
    kind = AutoPeftModelForCausalLM if "peft=lora" in words else AutoModelForCausalLM
    assert kind.from_pretrained(done.run.model)
    assert (done.run.model / "value_model").is_dir()


def test_a_sweep_over_the_kl_coefficient(runner):
    done = runner("-m", *PPO, "kl_coef=0.01,0.05", "trainer.args.max_steps=1", "name=sweep")
    assert "2 of 2 runs finished" in done.stdout
    assert {Run(folder).cfg["trainer"]["args"]["kl_coef"] for folder in runner.runs("sweep")} == {
        0.01,
        0.05,
    }


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dataset.limit.train=8",), "at least the 32 of one update"),
        (("trainer.args.response_length=5000",), "prompts are too long"),
        (("trainer.args.critic=adapter",), "peft=lora"),
        (("trainer.args.kl_target=3", "kl_coef=0"), "above 0, with kl_target"),
        (("peft=prompt",), "an adapter inside the layers"),
        (("trainer.value_model.path=runner://model/tiny",), "which is not a model"),
    ],
)
def test_impossible_settings_are_reported_before_training(train, capsys, words, message):
    done = train("trainer=ppo", *words)
    assert done.code == 2
    assert message in capsys.readouterr().err
    assert not done.lines


def test_a_critic_begins_as_a_model_that_is_no_reward(train):
    scorer = train("trainer=reward", *SHORT, name="scorer")
    value_model = "trainer.value_model._target_=runner.reward.outcome.load_reward_model"
    # The name of the runs leads to the only one.
    done = train(*PPO, value_model, f"trainer.value_model.path={scorer.run.folder.parent}")
    assert done.state() == "finished"
    before, after = (
        load_file(path / "model.safetensors")
        for path in (scorer.run.model, done.run.model / "value_model")
    )
    moved = [(before[name] - after[name]).abs().max() for name in before]
    assert 0 < max(moved) < 0.01


def test_sft_model_path_is_where_the_policy_begins(train):
    taught = train("trainer=sft", *SHORT, name="taught")
    done = train(*PPO, f"trainer.args.sft_model_path={taught.run.model}")
    assert done.state() == "finished"
    assert str(taught.run.model) in (done.run.folder / "manifest.json").read_text()
