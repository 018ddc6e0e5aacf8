"""Training by the public command: every trainer takes real steps, and a run is idempotent."""

import itertools
import json
import math
import re
import sys
from pathlib import Path

import pytest
from needs import ON_CPU, TRAINERS, needed
from PIL import Image

from runner.io.files import files_of, read_json, write_json
from runner.run.history import read_metrics
from runner.run.seal import SEAL

sys.path.append(str(Path(__file__).parent / "fault"))

from equal import differences

GOLDEN = Path(__file__).parent / "golden"
QUICK = (
    "trainer.args.max_steps=3",
    "trainer.args.logging_steps=1",
    "trainer.args.per_device_train_batch_size=8",
)
FIRST = ("dpo", "grpo", "ppo", "sft")  # of the trainers
# Other processors round otherwise; a changed loss, mask, seed or row order is far outside of this.
TOLERANCE = 5e-3


def few_rows(*words: str) -> tuple[str, ...]:
    return (*words, "dataset.limit.train=200", "dataset.limit.eval=16")


@pytest.mark.grid(4)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", [*FIRST, *(name for name in ON_CPU if name not in FIRST)])
def test_losses_of_every_trainer_equal_the_golden_file(train, trainer, request, tmp_path):
    """The losses equal the golden ones, and losses and weights those of a plain TRL script."""
    words = needed(trainer)
    if "teacher_model" in TRAINERS[trainer]:
        teacher = few_rows("trainer=sft", "learning_rate=1e-2", "tolerate.ended_worse=true", *QUICK)
        taught = train(*teacher, name="teacher")
        words = needed(trainer, taught.run.model)
    if "sampler" in TRAINERS[trainer]:
        words += ("trainer.sampler=transformers",)  # as in the script
    done = train(
        *few_rows(f"trainer={trainer}", "learning_rate=1e-3", "metric=none", *QUICK, *words)
    )
    assert (done.code, done.state()) == (0, "finished")
    figures = [(line["loss"], line["grad_norm"]) for line in done.lines if line["step"]]
    assert len(figures) == 3
    assert all(map(math.isfinite, itertools.chain(*figures)))
    for _, norm in figures:
        assert norm > 0
    path = GOLDEN / f"{trainer}.txt"
    if request.config.getoption("--golden"):
        lines = [f"{n} {loss:.6f} {norm:.6f}\n" for n, (loss, norm) in enumerate(figures, 1)]
        path.write_text("".join(lines))
    golden = [tuple(map(float, line.split()[1:])) for line in path.read_text().splitlines()]
    for now, then in zip(figures, golden, strict=True):
        assert now == pytest.approx(then, rel=TOLERANCE, abs=TOLERANCE)
    # tests/fault/equal.py takes the others too
    if re.fullmatch(r"trl\.\w+", done.run.cfg["trainer"]["_target_"]):
        assert differences(done.run, tmp_path / "plain") == []


@pytest.mark.slow
def test_a_run_leaves_what_the_design_promises(train, capsys):
    done = train(*few_rows("trainer=dpo", *QUICK), pictures=("loss", "learning_rate", "reward"))
    folder = done.run.folder
    told = capsys.readouterr()
    log = done.run.log.read_text()
    lines = told.out.splitlines()
    assert [line for line in lines if line not in log] == []
    assert "\r" not in told.out + told.err
    assert "\nmodel     " in log
    steps = [line.split() for line in lines if line.startswith("step ")]
    assert [words[1] for words in steps] == ["0/3", "1/3", "2/3", "3/3"]
    assert steps[1][2:4] == [
        "loss",
        "0.6931",
    ]
    assert steps[0][2] == "eval_loss"
    rows = [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]
    before = next(row for row in rows if row["step"] == 0)
    after = next(row for row in rows if row["step"] == 3)
    asked = lines.index(f"sample    {before['prompt'][0]['content']}")
    assert lines[asked + 1] == f"  before  {before['completion']}"
    assert before["prompt"] == after["prompt"]
    assert lines[asked + 2] == f"  after   {after['completion']}"
    assert told.out.count("\nsample    ") == 3
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.yaml",
        "status.json",
        "manifest.json",
        "metrics.jsonl",
        "log.txt",
        "checkpoints",
        "model",
    }
    assert names >= {"plots", "scores.json"}
    assert done.scores["before"].keys() == done.scores["after"].keys() >= {"eval_loss"}
    status = read_json(folder / "status.json")
    assert (status["state"], status["step"], status["max_steps"], status["cause"]) == (
        "finished",
        3,
        3,
        None,
    )
    manifest = read_json(folder / "manifest.json")
    assert manifest["versions"]["trl"]
    assert {**manifest["files"], SEAL: ""} == {
        **files_of(done.run.model),
        SEAL: "",
    }
    assert manifest["data"]["train"]["rows"] == 200
    assert manifest["model"]["parameters"] > 100_000
    progress = {
        "step",
        "max_steps",
        "percentage",
        "epoch",
        "loss",
        "learning_rate",
        "elapsed_seconds",
        "remaining_seconds",
    }
    trained = [line for line in done.lines if line["step"]]
    assert [line["step"] for line in trained] == [1, 2, 3]
    for line in trained:
        assert progress <= set(line)
    assert trained[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)
    assert (trained[-1]["percentage"], trained[-1]["remaining_seconds"]) == (100.0, 0.0)
    drawn = {"eval_exact.png", "loss.png", "learning_rate.png", "reward.png"}
    assert {path.name for path in (folder / "plots").iterdir()} == drawn
    assert not list(done.run.model.glob("*.bin"))


@pytest.mark.slow
def test_a_finished_run_loads_elsewhere_and_the_same_command_changes_no_byte(train, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    words = few_rows("trainer=sft", *QUICK)
    done = train(*words)
    model = AutoModelForCausalLM.from_pretrained(done.run.model)
    tokenizer = AutoTokenizer.from_pretrained(done.run.model)
    assert tokenizer.chat_template
    assert model.config.vocab_size >= len(tokenizer)
    # which the training does without
    assert json.loads((done.run.model / "config.json").read_text())["use_cache"]
    for line in done.run.metrics.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(done.run.folder)
    }
    again = train(*words)
    assert again.code == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(again.run.folder)
    } == before


@pytest.mark.slow
def test_several_held_out_sets_keep_their_names(train):
    done = train(
        *few_rows(
            "trainer=dpo", *QUICK, "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3"
        ),
        "dataset.split.eval={one: 'eval[:8]', two: 'eval[8:16]'}",
    )
    last = done.lines[-1]
    for name in ("one", "two"):
        assert f"eval_{name}_loss" in last
        assert f"eval_{name}_rewards/margins" in last
    assert "eval_rewards/margins" not in last
    assert {"eval_one_rewards/margins", "eval_two_rewards/margins"} <= set(done.scores["after"])


@pytest.mark.slow
def test_evaluation_does_not_change_an_online_run(train):
    words = ("trainer=grpo", *QUICK, "dataset.limit.train=200", "dataset.limit.eval=4")
    evaluated = train(
        *words, "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1", name="with"
    )
    assert weights(evaluated.run.model) == weights(train(*words, name="without").run.model)


@pytest.mark.slow
def test_fewer_rows_than_one_step_needs_is_an_error_and_not_zero_steps(train, capsys):
    done = train(
        "trainer=grpo", *QUICK, "dataset.limit.train=1", "trainer.args.generation_batch_size=64"
    )
    assert done.code == 2
    assert "1 training rows" in capsys.readouterr().err
    assert done.state() == "failed"


@pytest.mark.slow
def test_a_loss_that_only_grows_stops_the_run(train, capsys):
    # 1 makes a loss of 100 from 0.1 on any CPU; far above it the weights overflow, at a step that
    # rounding decides.
    words = few_rows(
        "trainer=sft", "learning_rate=1", "trainer.args.max_grad_norm=0", "metric=none"
    )
    done = train(*words, "trainer.args.max_steps=20", "trainer.args.logging_steps=1")
    assert (done.code, done.state()) == (3, "failed")
    assert not done.run.model.exists()
    assert "a loss that falls" in capsys.readouterr().err


@pytest.mark.slow
def test_other_rows_under_the_same_name_are_not_trained_on(train, tmp_path, capsys):
    def write(*digits):
        rows = [{"prompt": f"{digit}", "completion": f" {digit}"} for digit in digits * 8]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    words = ("trainer=sft", "dataset=local", f"dataset.path={tmp_path / 'rows.jsonl'}", *QUICK)
    write(1, 2)
    run = train(*words).run
    run.set_status("interrupted")
    write(3, 4)
    assert train(*words).code == 4
    assert "the inputs that the run began with" in capsys.readouterr().err


@pytest.mark.slow
def test_a_resume_with_another_tokenizer_is_refused(train, capsys):
    words = few_rows("trainer=sft", *QUICK)
    run = train(*words).run
    changed = run.manifest() | {"tokenizer": {"fingerprint": "of another one"}}
    write_json(run.folder / "manifest.json", changed)
    run.set_status("interrupted")
    assert train(*words).code == 4
    stderr = capsys.readouterr().err
    assert "tokenizer.fingerprint" in stderr
    assert "as the checkpoints were trained on" in stderr


def test_a_constructors_refusal_is_a_fault_of_the_configuration(train, capsys):
    assert (
        train(
            *few_rows("trainer=sft", "trainer.args.bf16=true", "trainer.args.fp16=true", *QUICK)
        ).code
        == 2
    )
    assert "trainer.args" in capsys.readouterr().err


@pytest.mark.slow
def test_a_finished_but_unsaved_training_takes_no_more_steps(train):
    words = few_rows("trainer=sft", *QUICK)
    done = train(*words)
    final = weights(done.run.model)
    done.run.set_status("running")
    for path in _files(done.run.model):
        path.unlink()
    again = train(*words)
    assert (again.code, again.run.status()["step"]) == (0, 3)
    assert weights(again.run.model) == final


COLLATOR = "trl.trainer.sft_trainer.DataCollatorForLanguageModeling"


@pytest.mark.grid(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("trainer=sft", "dataset=mixture"),
        ("trainer=dpo", "peft=lora", "quant=4bit"),
        ("trainer=grpo", "peft=lora", "kl_coef=0.1", "dataset=toy_reviews"),
        ("trainer=sft", f"collator._target_={COLLATOR}"),
        ("trainer=sft", "dataset.streaming=true"),
        ("trainer=sft", "dataset.system='Answer with digits.'"),
        ("trainer=kto", "quant=8bit", "peft=lora"),
        ("trainer=rloo", "reward=[exact_match,length]"),
        ("trainer=sft", "model=new", "model.tokenizer.path=runner://model/tiny"),
        ("trainer=rloo", "model=new", "reward=length"),  # whose reference TRL loads from a path
    ],
    ids=" ".join,
)
def test_parts_go_together(train, words):
    done = train(*few_rows(*words, "metric=none", *QUICK))
    assert (done.code, done.state()) == (0, "finished")
    assert any(line["grad_norm"] > 0 for line in done.lines if line["step"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")
def test_activations_are_recomputed_under_the_old_name_of_the_field(train, monkeypatch):
    from transformers import modeling_utils

    real = modeling_utils.checkpoint
    calls = []
    monkeypatch.setattr(
        modeling_utils, "checkpoint", lambda *args, **how: calls.append(1) or real(*args, **how)
    )
    assert train(*few_rows("trainer=sft", *QUICK, "metric=none")).code == 0
    assert calls == []
    assert (
        train(
            *few_rows(
                "trainer=sft", *QUICK, "metric=none", "trainer.args.gradient_checkpointing=true"
            )
        ).code
        == 0
    )
    assert calls


@pytest.mark.slow
def test_a_tracker_gets_its_files_in_the_run_folder(train):
    done = train(*few_rows("trainer=sft", "tracker=tensorboard", *QUICK))
    assert list((done.run.folder / "tensorboard").rglob("events.out.tfevents.*"))


@pytest.mark.slow
def test_early_stopping_keeps_the_best_checkpoint_and_saves_it(train):
    words = few_rows(
        "trainer=sft",
        "learning_rate=3e-3",
        *("callback=early_stopping", "callback.early_stopping.early_stopping_patience=1"),
        *(
            "trainer.args.metric_for_best_model=eval_loss",
            "trainer.args.load_best_model_at_end=true",
        ),
        *("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2"),
        *(
            "trainer.args.save_strategy=steps",
            "trainer.args.save_steps=2",
            "trainer.args.logging_steps=1",
        ),
        *("trainer.args.max_steps=200", "trainer.args.per_device_train_batch_size=2"),
        "metric=none",
    )
    done = train(*words)
    assert (done.code, done.state()) == (0, "finished")
    losses = {
        line["step"]: line["eval_loss"]
        for line in done.lines
        if "eval_loss" in line and line["step"]
    }
    assert max(losses) < 200, "it learns in a few steps and then gets worse"
    assert done.scores["after"]["eval_loss"] == pytest.approx(min(losses.values()), rel=1e-5)
    best = min(losses, key=losses.get)
    assert weights(done.run.checkpoints / f"checkpoint-{best}") == weights(done.run.model)
    assert {path.name for path in done.run.checkpoints.glob("checkpoint-*")} == {
        f"checkpoint-{step}" for step in (best, max(losses))
    }


@pytest.mark.slow
def test_a_model_that_a_run_left_is_the_start_of_the_next(train):
    first = train(*few_rows("trainer=sft", "peft=lora", "learning_rate=1e-2", *QUICK), name="first")
    second = train(*few_rows("trainer=dpo", f"model.path={first.run.model}", *QUICK), name="second")
    assert second.code == 0
    assert second.scores["before"]["eval_exact"] == pytest.approx(
        first.scores["after"]["eval_exact"], abs=0.02
    )


def weights(folder: Path) -> dict[str, str]:
    """The hashes of a model's weight files."""
    return {
        name: digest for name, digest in files_of(folder).items() if name.endswith(".safetensors")
    }


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`compute_loss_func` is deprecated:FutureWarning")
def test_a_loss_from_the_users_folder_is_the_one_trained(train, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_loss.py").write_text(
        "def scaled(outputs, labels, num_items_in_batch=None, scale=1.0):\n"
        "    return outputs.logits.mean() * 0 + scale\n"
    )
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "scaled.yaml").write_text("_target_: my_loss.scaled\nscale: 7.0\n")
    words = ("loss=scaled", "--config-dir", str(tmp_path), "allow=[my_loss]", "metric=none")
    words += ("tolerate.zero_gradient=true",)
    done = train(*few_rows("trainer=sft", *words, *QUICK))
    assert [line["loss"] for line in done.lines if line["step"]] == [7.0] * 3


MINE = """
import torch
import trl

class Part:
    def __init__(self, size, inner=None):
        self.size, self.inner = size, inner

class Words(Part):
    def __init__(self, tokenizer, size=0):
        super().__init__(len(tokenizer))

class Mine(trl.SFTTrainer):
    def __init__(self, *args, parts=(), table=None, **kwargs):
        super().__init__(*args, **kwargs)
        [[one], words], deep = parts, table["deep"]["er"]
        self.sizes = {"one": one.size, "inner": one.inner[1].size, "words": words.size}
        self.sizes["partial"] = deep(size=5).size

    def log(self, logs, *args, **kwargs):
        sizes = {name: float(size) for name, size in self.sizes.items()}
        super().log(logs | sizes, *args, **kwargs)

class Stepper(torch.optim.SGD):
    def __init__(self, params, lr=0.1, parts=()):
        super().__init__(params, lr=lr * sum(part.size for part in parts))
"""


@pytest.mark.slow
def test_a_trainer_with_kwargs_is_served_and_nested_nodes_are_built(train, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(MINE)
    part = (
        "{_target_: mine.Part, size: 2, inner: [{_target_: "
        "mine.Words}, {_target_: mine.Part, size: 3}]}"
    )
    words = (
        "trainer._target_=mine.Mine",
        f"trainer.parts=[[{part}],{{_target_: mine.Words}}]",
        "trainer.table={deep: {er: {_target_: mine.Part, _partial_: true}}}",
        *(
            "optimizer._target_=mine.Stepper",
            "optimizer.lr=0.5",
            "optimizer.parts=[{_target_: mine.Part, size: 2}]",
        ),
    )
    done = train(
        *few_rows("trainer=sft", *words, *QUICK),
        "allow=[mine]",
        "trainer.args.lr_scheduler_type=constant",
    )
    assert done.code == 0
    first = next(line for line in done.lines if line["step"] == 1)
    assert [first[name] for name in ("one", "inner", "partial", "learning_rate")] == [2, 3, 5, 1]
    assert first["words"] > 10


@pytest.mark.slow
def test_the_margin_of_pairs_reaches_the_loss_of_a_reward_model(runner, tmp_path):
    rows = "".join(f"{number}+1=, {number + 1}, {number},40.5\n" for number in range(10, 18))
    (tmp_path / "rows.csv").write_text("prompt,chosen,rejected,margin\n" + rows)
    words = (
        "model=tiny",
        "dataset=local",
        "dataset.path=rows.csv",
        "trainer.args.max_steps=1",
        "metric=none",
    )
    runner("trainer=reward", *words, "trainer.args.logging_steps=1", "name=far")
    (folder,) = runner.runs("far")
    # near the margin, before anything is learned
    assert 35 < read_metrics(folder / "metrics.jsonl")[0]["loss"] < 46
    done = runner("trainer=dpo", *words, "name=unread")
    assert "`margin` is not used" in done.stdout + done.stderr


@pytest.mark.slow
def test_pictures_beside_text_are_refused_but_the_text_alone_may_train(runner, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "1+1=", "completion": " 2", "images": ["a.png"]}\n' * 8
    )
    words = (
        "trainer=sft",
        "dataset=local",
        "dataset.path=rows.jsonl",
        "trainer.args.max_steps=1",
        "metric=none",
    )
    refused = runner(*words, code=2).stderr
    assert "rows with images, for " in refused
    assert not list(tmp_path.glob("outputs/*/*/config.yaml"))
    runner(*words, re.search(r"dataset\.without=[^\s']+", refused)[0], "name=text")
    assert len(runner.runs("text")) == 1


OWN = """
import os, sys, torch
from transformers import TrainerCallback

class Raises(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        raise ValueError("mine is broken")

class Leaves(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        sys.exit(3)

class Takes(TrainerCallback):
    def on_step_end(self, args):
        pass

def optimizer(params):
    raise ValueError("mine is broken")

class Mute(BaseException):
    def __str__(self):
        return 3

class Anything(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        raise Mute

class Answers(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        return "done"

class Spoils(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        state.log_history = None

class Careless(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        torch.set_grad_enabled(False)
        os.chdir("/")
        sys.stdout.close()
        sys.stderr.close()
        os.close(state.global_step)
"""


@pytest.mark.grid(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "phrases"),
    [
        (
            ["+callback.m._target_=own_code.Raises"],
            ("callback.m", "ValueError: mine is broken", "own_code.py:7"),
        ),
        (["+callback.m._target_=own_code.Leaves"], ("callback.m", "sys.exit(3)", "own_code.py:11")),
        (
            ["+callback.m._target_=own_code.Takes"],
            ("callback.m", "an unexpected keyword", "Takes.on_step_end"),
        ),
        (
            ["optimizer._target_=own_code.optimizer"],
            ("optimizer", "ValueError: mine is broken", "own_code.py:18"),
        ),
        (
            ["+callback.m._target_=own_code.Anything"],
            ("callback.m", "Mute: its message raises", "own_code.py:26"),
        ),
        (
            ["+callback.m._target_=own_code.Answers"],
            ("callback.m", "on_step_end returned str", "return control"),
        ),
        (
            ["+callback.m._target_=own_code.Spoils"],
            ("callback.m", "AttributeError", "without callback.m"),
        ),
    ],
)
def test_an_exception_of_user_code_is_reported_with_its_line(
    train, tmp_path, monkeypatch, capfd, words, phrases
):
    (tmp_path / "own_code.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = train(
        *words,
        "allow=[own_code]",
        "trainer.args.max_steps=1",
        "dataset.limit.train=16",
        "metric=none",
    )
    assert (done.code, done.state()) == (2, "failed")
    told = capfd.readouterr().err
    cause = done.run.status()["cause"]
    for phrase in phrases:
        assert phrase in told
        assert phrase in cause


@pytest.mark.slow
def test_a_callback_that_closes_the_output_and_switches_autograd_off_harms_no_step(
    runner, tmp_path
):
    (tmp_path / "own_code.py").write_text(OWN)
    words = (
        "trainer.args.max_steps=2",
        "trainer.args.per_device_train_batch_size=2",
        "metric=none",
    )
    done = runner(*words, "callback.m._target_=own_code.Careless", "allow=[own_code]", "name=run")
    assert "model.path=outputs/run" in (runner.runs("run")[0] / "log.txt").read_text()
    assert "Traceback" not in done.stderr
