"""A precomputed reference is found again by runs that may use it, and by no other; and it changes no weight."""

import pytest

from runner.io.files import files_of
from runner.run import Run

pytestmark = pytest.mark.slow
QUICK = (
    "dataset=toy_sort",
    "dataset.limit.train=48",
    "dataset.limit.eval=8",
    "metric=none",
    "trainer.args.max_steps=3",
)
COMPUTED = "Computing reference log probs for train dataset"
ONCE = "trainer.args.precompute_ref_log_probs=true"


def weights(runner, name, **found):
    """The hash of each run's weights, by the values of its config that are asked for."""
    runs = [Run(folder) for folder in runner.runs(name)]
    return {
        (run.cfg["trainer"]["args"]["beta"], run.cfg["trainer"]["args"]["max_length"]): files_of(run.model)[
            "model.safetensors"
        ]
        for run in runs
    }


def computed(runner, name):
    """How many runs had to compute the reference of the training rows themselves."""
    logs = [(folder / "log.txt").read_text() for folder in runner.runs(name)]
    return sum(COMPUTED in log for log in logs)


@pytest.mark.parametrize("trainer", ["kto"])
def test_a_sweep_computes_the_reference_once_and_each_run_is_what_it_is_alone(runner, trainer):
    words = (f"trainer={trainer}", *QUICK, ONCE)
    # What the log-probabilities depend on is part of the key.
    runner("-m", *words, "trainer.args.max_length=60,90", "kl_coef=0.1,0.3", "learning_rate=1e-3", "name=sweep")
    assert computed(runner, "sweep") == 2
    runner.forget_cache()
    alone = runner(*words, "trainer.args.max_length=90", "kl_coef=0.1", "learning_rate=1e-3", "name=alone")
    assert COMPUTED in alone.stderr
    assert weights(runner, "alone").items() <= weights(runner, "sweep").items()
    assert len(set(weights(runner, "sweep").values())) == 2  # one for each kl_coef: no row is as long as either length


def test_precomputing_with_lengths_gives_what_trl_alone_gives(tmp_path):
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    from runner.io.files import shipped
    from runner.training.precompute import drop_filled, share_reference

    def build(ours):
        # A cache of its own: another run's may hold the numbers of other kernels.
        source = {"data_files": shipped("runner://dataset/toy_sort/train.jsonl"), "cache_dir": str(tmp_path / "cache")}
        rows = load_dataset("json", **source, split="train[:64]")
        model = AutoModelForCausalLM.from_pretrained(shipped("runner://model/tiny"), dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(shipped("runner://model/tiny"))
        cpu = {"use_cpu": True, "bf16": False, "activation_checkpointing": False, "disable_tqdm": True}
        args = DPOConfig(
            str(tmp_path), max_steps=3, max_length=26, precompute_ref_log_probs=True, learning_rate=1e-3, **cpu
        )
        offered = {"args": args, "train_dataset": rows, "eval_dataset": None, "data_collator": None}
        offered |= {"processing_class": tokenizer, "model": model}
        if not ours:
            trainer = DPOTrainer(**offered)
        else:
            given, args.max_length = share_reference(offered, "pairs"), None
            trainer = DPOTrainer(**given)
            args.max_length = 26
            drop_filled(trainer)
        assert trainer.args.max_length == 26
        trainer.train()
        return trainer

    ours, theirs = build(True), build(False)
    assert len(ours.train_dataset) == len(theirs.train_dataset)
    state = theirs.model.state_dict()
    assert all(weight.equal(state[name]) for name, weight in ours.model.state_dict().items())
