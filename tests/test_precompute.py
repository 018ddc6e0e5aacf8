"""A precomputed reference is reused by the runs that may use it, and by no other.

It changes no weight.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.io.files import files_of, shipped
from runner.run import Run
from runner.run.history import read_metrics

pytestmark = pytest.mark.slow
QUICK = ("dataset=toy_sort", "dataset.limit.eval=8", "metric=none", "learning_rate=1e-3")
QUICK += ("trainer.args.max_steps=3", "trainer.args.logging_steps=1")
# each of which three steps read
ROWS = {"dpo": "dataset.limit.train=60", "kto": "dataset.limit.train=12"}
COMPUTED = "Computing reference log probs for train dataset"
NEVER = "trainer.args.precompute_ref_log_probs=false"


def weights(runner, name):
    """The hash of each run's weights, by its beta."""
    runs = [Run(folder) for folder in runner.runs(name)]
    return {
        run.cfg["trainer"]["args"]["beta"]: files_of(run.model)["model.safetensors"] for run in runs
    }


def computed(runner, name):
    """The number of runs that computed the reference of the training rows themselves."""
    logs = [(folder / "log.txt").read_text() for folder in runner.runs(name)]
    return sum(COMPUTED in log for log in logs)


@pytest.mark.grid(1)
@pytest.mark.parametrize("trainer", ["kto", "dpo"])
def test_a_sweep_computes_the_reference_once_and_each_run_is_what_it_is_alone(runner, trainer):
    words = (f"trainer={trainer}", *QUICK, ROWS[trainer])
    runner("-m", *words, "trainer.args.max_length=90", "kl_coef=0.1,0.3", "name=sweep")
    assert computed(runner, "sweep") == 1
    # What the log-probabilities depend on is part of the key; no row is as long as either length.
    alone = runner(*words, "trainer.args.max_length=80", "kl_coef=0.1", "name=alone")
    assert COMPUTED in alone.stderr
    assert weights(runner, "alone").items() <= weights(runner, "sweep").items()
    assert len(set(weights(runner, "sweep").values())) == 2
    if trainer == "dpo":
        separate = runner(*words, "trainer.args.max_length=90", "kl_coef=0.1", "name=each", NEVER)
        assert COMPUTED not in separate.stderr
        for name, how in (("alone", "once"), ("each", "in each step")):
            assert Run(runner.runs(name)[0]).manifest()["reference"] == how
        losses = []
        for name in ("alone", "each"):
            lines = read_metrics(Run(runner.runs(name)[0]).metrics)
            losses.append([line["loss"] for line in lines if line["step"]])
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
        assert len(losses[0]) == 3
        # A run with fewer rows reuses their cached values, and none if
        # something else matters.
        for name, length in (("kept", 90), ("other", 91)):
            short = runner(
                *words,
                f"trainer.args.max_length={length}",
                "trainer.args.max_steps=1",
                f"name={name}",
            )
            assert COMPUTED not in short.stderr
            how = "once" if name == "kept" else "in each step"
            assert Run(runner.runs(name)[0]).manifest()["reference"] == how
        runner.forget_cache()
        runner("reproduce", "kept")
        assert Run(runner.runs("kept-again")[0]).manifest()["reference"] == "once"


@pytest.mark.parametrize(
    ("first", "second"), [(None, None), ("in each step", None), (None, "in each step")]
)
def test_a_resumed_run_without_precompute_does_not_use_the_cache(
    tmp_path, monkeypatch, first, second
):
    from datasets import Dataset
    from trl import DPOConfig

    from runner.config.experiment import Experiment
    from runner.training import precompute

    def having(reference):
        cfg = {
            "collator": None,
            "model": {"path": "x"},
            "peft": None,
            "quant": None,
            "trainer": {"_target_": "x", "form": "preference", "head": "lm", "args": {}},
        }
        return SimpleNamespace(
            experiment=Experiment.read(cfg), manifest=lambda: {"reference": reference}
        )

    rows = Dataset.from_dict({"prompt": ["x"] * 60})
    args = DPOConfig(
        str(tmp_path), max_steps=1, use_cpu=True, bf16=False, activation_checkpointing=False
    )
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(
        precompute, "other_run", lambda experiment: having(second) if second else None
    )
    precompute.precompute_by_default(having(first), args, rows, None)
    assert not args.precompute_ref_log_probs
    precompute.note_of(having(first).experiment, args, rows, None).touch()
    precompute.precompute_by_default(having(first), args, rows, None)
    assert args.precompute_ref_log_probs == (first is second is None)


def test_precomputing_with_lengths_gives_what_trl_alone_gives(tmp_path):
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    from runner.training.precompute import drop_long, share_rows

    def build(ours):
        # A cache of its own: another run's may hold the numbers of other kernels.
        source = {
            "data_files": shipped("runner://dataset/toy_sort/train.jsonl"),
            "cache_dir": str(tmp_path / "cache"),
        }
        rows = load_dataset("json", **source, split="train[:64]")
        model = AutoModelForCausalLM.from_pretrained(
            shipped("runner://model/tiny"), dtype="float32"
        )
        tokenizer = AutoTokenizer.from_pretrained(shipped("runner://model/tiny"))
        cpu = {
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
            "disable_tqdm": True,
        }
        args = DPOConfig(
            str(tmp_path),
            max_steps=3,
            max_length=26,
            precompute_ref_log_probs=True,
            learning_rate=1e-3,
            **cpu,
        )
        offered = {"args": args, "train_dataset": rows, "eval_dataset": None, "data_collator": None}
        offered |= {"processing_class": tokenizer, "model": model}
        if not ours:
            trainer = DPOTrainer(**offered)
        else:
            rows_of_process = share_rows(offered, "pairs")
            args.max_length = None
            trainer = DPOTrainer(**rows_of_process)
            args.max_length = 26
            drop_long(trainer)
        assert trainer.args.max_length == 26
        trainer.train()
        return trainer

    ours = build(True)
    theirs = build(False)
    assert len(ours.train_dataset) == len(theirs.train_dataset)
    state = theirs.model.state_dict()
    for name, weight in ours.model.state_dict().items():
        assert weight.equal(state[name])


ON_CPU = {"use_cpu": True, "bf16": False, "activation_checkpointing": False}


def test_demonstrations_are_cut_and_dropped_as_trl_alone_does(tmp_path):
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from runner.training.precompute import drop_long, share_rows

    def turns(role, count):
        return [{"role": role, "content": "7 " * count}]

    lengths = [(2, 3), (40, 3), (3, 40), (8, 8), (20, 1)]  # of a prompt and its answer
    rows = Dataset.from_list(
        [
            {"prompt": turns("user", asked), "completion": turns("assistant", said)}
            for asked, said in lengths
        ]
    )
    model = shipped("runner://model/tiny")
    tokenizer = AutoTokenizer.from_pretrained(model)

    def prepared(ours, max_length):
        args = SFTConfig(str(tmp_path), max_length=max_length, **ON_CPU)
        offered = {"args": args, "train_dataset": rows, "eval_dataset": {"some": rows}}
        offered |= {"processing_class": tokenizer, "model": model}
        if not ours:
            trainer = SFTTrainer(**offered)
        else:
            rows_of_process = share_rows(offered, "tokens")
            args.max_length = None
            trainer = SFTTrainer(**rows_of_process)
            args.max_length = max_length
            assert drop_long(trainer)
        return [trainer.train_dataset, trainer.eval_dataset["some"]]

    for max_length, count in ((24, 3), (200, 5)):
        for our_rows, trl_rows in zip(
            prepared(True, max_length), prepared(False, max_length), strict=True
        ):
            assert our_rows.to_list() == trl_rows.to_list()
            assert our_rows.features == trl_rows.features
            assert len(our_rows) == count


@pytest.mark.parametrize(
    "settings",
    [
        {"packing": True},
        {"shuffle_dataset": True},
        {"truncation_mode": "keep_end"},
        {"dataset_kwargs": {"skip_prepare_dataset": True}},
        {"max_length": None},
    ],
)
def test_demonstrations_that_are_not_cut_last_are_left_to_trl(tmp_path, settings):
    from datasets import Dataset
    from trl import SFTConfig

    from runner.training.precompute import share_rows

    args = SFTConfig(str(tmp_path), max_length=24, **ON_CPU)
    for name, value in settings.items():
        setattr(args, name, value)
    rows = Dataset.from_dict({"text": ["x"]})
    assert share_rows({"args": args, "train_dataset": rows, "eval_dataset": None}, "tokens") is None


@pytest.mark.grid(1)
@pytest.mark.parametrize("trainer", ["dpo", "reward"])
def test_another_run_finds_all_rows_prepared_also_where_an_equal_tokenizer_lies_elsewhere(
    runner, tmp_path, trainer
):
    words = (
        f"trainer={trainer}",
        *QUICK,
        "dataset.limit.train=41",
        "trainer.args.max_length=90",
        "name=again",
    )
    home = Path(runner.warm.environment["HF_HOME"])
    of_others = set(home.rglob("*.arrow"))
    runner(*words)
    before = set(home.rglob("*.arrow"))
    shutil.copytree(shipped("runner://model/tiny"), tmp_path / "tokenizer")
    runner(*words, f"model.tokenizer.path={tmp_path / 'tokenizer'}", "learning_rate=1e-4")
    assert before
    assert set(home.rglob("*.arrow")) == before
    if trainer == "dpo":
        assert before > of_others
        # the rest is the source's
        prepared = {path for path in before - of_others if path.name.startswith("cache-")}
        assert prepared
        for path in prepared:
            path.write_bytes(path.read_bytes()[:-100])
        assert "damaged; it is made again" in runner(*words, "learning_rate=3e-4").stderr
        assert set(home.rglob("*.arrow")) == before


def test_a_reference_is_computed_again_where_the_code_of_the_model_has_changed(runner):
    lab = runner.folder / "mylab"
    lab.mkdir()
    (lab / "nets.py").write_text(
        "from runner.model.load import load_model\n"
        "from .scale import SCALE\n"
        "def scaled(module, args, output):\n"
        "    output.last_hidden_state = output.last_hidden_state * SCALE\n"
        "    return output\n"
        "def load(tokenizer, **settings):\n"
        "    model = load_model(tokenizer=tokenizer, **settings)\n"
        "    model.get_decoder().register_forward_hook(scaled)\n"
        "    return model\n"
    )
    model_words = (
        "model._target_=mylab.nets.load",
        "allow=[mylab]",
        "trainer.args.precompute_ref_log_probs=true",
    )
    for name, scale in (("first", "1.0"), ("second", "0.25")):
        (lab / "scale.py").write_text(f"SCALE = {scale}\n")
        runner(
            "trainer=dpo",
            *QUICK,
            "dataset.limit.train=60",
            "trainer.args.max_steps=1",
            *model_words,
            f"name={name}",
        )
        line = read_metrics(Run(runner.runs(name)[0]).metrics)[1]
        assert line["loss"] == pytest.approx(0.6931, abs=1e-3)  # the model is its own reference yet
