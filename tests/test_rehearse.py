"""Rehearsals of runs on small models: the parts played, the outcome, and nothing left behind."""

import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from runner.command._option import Option, options_of, split_options
from runner.config.resolution import Composed
from runner.errors import Interrupted
from runner.estimate import smoke
from runner.estimate.apart import run_apart
from runner.estimate.case import Case, Reduced, group_by_structure, model_of, structure_of
from runner.estimate.outcome import describe_case
from runner.estimate.reduce import Clones, reduce
from runner.io.files import write_json
from runner.launch.compose.stages import compose_runs
from runner.launch.signals import Stop, handle_signals
from runner.run import Run

FAULTY = """
from transformers import TrainerCallback

class AtSecondSave(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        if state.global_step > 1:
            raise ValueError("no clay")

class AtResume(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step:
            raise ValueError("no clay")
"""


# --- Which runs are alike -------------------------------------------------------------------------


def composed(**cfg):
    defaults = {
        "name": "run",
        "output_root": "outputs",
        "trainer": {"_target_": "own.Trainer", "args": {}},
    } | cfg
    return Composed(defaults, [f"seed={cfg.get('seed', 0)}"])


def test_runs_that_differ_in_numbers_are_played_once():
    def job(beta, steps):
        return [composed(trainer={"args": {"beta": beta, "max_steps": steps}})]

    jobs = [job(0.1, 5), job(0.1, 9), job(0.2, 5), job(0.2, 9)]
    cases = group_by_structure([*jobs, job(0.0, 5)])
    assert [len(case.runs) for case in cases] == [4, 1]


def test_runs_that_differ_in_batch_size_are_played_separately():
    small, large = ({"trainer": {"args": {"per_device_train_batch_size": size}}} for size in (4, 8))
    assert structure_of(small, {}) != structure_of(large, {})


def test_stages_are_compared_with_what_they_build_on():
    def job(rate):
        first = composed(seed=1, trainer={"args": {"learning_rate": rate}})
        return [first, composed(model={"path": model_of(first)}, trainer={"args": {"beta": 0.1}})]

    first, second = group_by_structure([job(1e-4), job(1e-5)])
    assert second.before is first
    assert (len(first.runs), len(second.runs)) == (2, 2)


# --- The part that failed -------------------------------------------------------------------------


def test_the_part_that_failed_is_read_from_the_files_of_the_run(tmp_path):
    case = Case(composed())
    case.small = Reduced({}, {})
    case.run = Run(tmp_path)
    case.code = 1

    def failed() -> str:
        return describe_case(case)[0].rpartition(": ")[2]

    assert failed() == "reading rows, after step 0"
    write_json(tmp_path / "rows.json", {"lines": ["8 rows looked at"]})
    assert failed() == "training, saving, after step 0"
    (case.run.checkpoints / "checkpoint-1").mkdir(parents=True)
    write_json(case.run.checkpoints / "checkpoint-1" / "seal.json", {})
    (tmp_path / "config.yaml").touch()
    case.run.set_status("failed", step=2)
    assert failed() == "resuming, scoring, after step 2"
    case.run.model.mkdir()
    assert failed() == "exporting, after step 2"


# --- Parts in processes of their own --------------------------------------------------------------


@pytest.fixture
def play(tmp_path, monkeypatch):
    """The results of unreduced jobs whose parts just end with these exit codes, in order."""

    def call(jobs, *codes):
        ends = iter(codes)
        monkeypatch.setattr(
            smoke, "reduce", lambda cfg, place, clones: Reduced(dict(cfg), dict(cfg))
        )
        monkeypatch.setattr(smoke, "run_apart", lambda *_: next(ends, 0))
        cases = group_by_structure(jobs)
        return cases, smoke.play(cases, tmp_path, debug=False)

    return call


def test_structures_that_coincide_when_reduced_have_their_own_folders(play, monkeypatch):
    few_workers = composed(
        trainer={"_target_": "own.Trainer", "args": {"dataloader_num_workers": 1}}
    )
    more_workers = composed(
        trainer={"_target_": "own.Trainer", "args": {"dataloader_num_workers": 2}}
    )
    results, code = play([[few_workers], [more_workers]])
    assert code == 0
    assert len({result.run.folder.parents[2] for result in results}) == 2


def test_a_stage_does_not_start_after_a_failed_one(play, capsys):
    first = composed(seed=1)
    jobs = [
        [first, composed(model={"path": model_of(first)})],
        [composed(reward={"_target_": "a.b"})],
    ]
    results, code = play(jobs, 0, -signal.SIGKILL)
    assert code == 5
    assert [result.code for result in results] == [5, 5, 0]
    out = capsys.readouterr().out
    assert "failed    run seed-1: reading rows" in out
    assert "not begun run" in out
    assert out.count("ok  ") == 1
    assert results[0].run.status()["cause"].startswith("the process was killed by SIGKILL")


@pytest.mark.slow
def test_a_part_writes_into_its_log_and_its_death_is_an_exit_code(tmp_path):
    def part():
        print("hello")
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_apart(part, tmp_path / "log.txt", tmp_path / "cache") == -signal.SIGKILL
    assert (tmp_path / "log.txt").read_text() == "hello\n"


@pytest.mark.slow
def test_a_signal_ends_the_part_that_is_played(tmp_path):
    def part():
        (tmp_path / "pid").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)

    with handle_signals(Stop()), pytest.raises(Interrupted):
        run_apart(part, tmp_path / "log.txt", tmp_path / "cache")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# --- The first rows -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_shortest_of_the_first_rows_are_kept(tmp_path, monkeypatch):
    from datasets import load_dataset

    from runner.dataset.head import write_head

    monkeypatch.chdir(tmp_path)
    lines = [f'{{"prompt": "{"a" * (50 - row)}", "completion": "b"}}' for row in range(40)]
    Path("rows.jsonl").write_text("\n".join(lines))
    node = {"path": "rows.jsonl", "split": {"train": "train[:30]", "eval": {"tail": "train[30:]"}}}
    head = write_head(node, tmp_path / "head", count=20, train=5, held_out=2)
    assert head.rows == 30
    assert head.split == {"train": "train", "eval": {"tail": "eval_0"}}
    full, short = (
        load_dataset("parquet", data_files=str(folder / "train.parquet"), split="train")["prompt"]
        for folder in (head.whole, head.short)
    )
    assert len(full) == 20
    assert list(short) == list(full)[-5:]


@pytest.mark.slow
def test_a_run_in_small_tells_no_tracker_and_has_a_narrow_model(tmp_path):
    model = ("model=new", "model.hidden_size=768", "model.num_hidden_layers=6")
    (run,) = compose_runs(["trainer=sft", "metric=none", "tracker=wandb", *model])
    small = reduce(run.cfg, tmp_path, Clones(tmp_path / "models"))
    assert run.cfg["tracker"]["report_to"] == "wandb"
    assert run.cfg["tracker"]["environment"]
    assert (small.cfg["tracker"]["report_to"], small.cfg["tracker"]["environment"]) == (
        "none",
        None,
    )
    (run,) = compose_runs(["trainer=ppo", "trainer.args.rollout_engine=vllm"])
    engine = reduce(run.cfg, tmp_path, Clones(tmp_path / "models"))
    assert engine.cfg["trainer"]["args"]["rollout_engine"] == "auto"
    assert "instead of vllm" in str(engine.notes)
    assert small.cfg["model"]["hidden_size"] < 768
    assert "made narrow and shallow" in " ".join(small.notes)


# --- Models in small ------------------------------------------------------------------------------


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keys", "heads", "kinds"),
    [
        (
            "qwen2",
            {"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896},
            (7, 1),
            None,
        ),
        ("mistral", {"num_attention_heads": 32, "num_key_value_heads": 8}, (8, 2), None),
        ("gemma3_text", {}, (4, 2), {"sliding_attention", "full_attention"}),
        ("gpt_neox", {}, (2, None), None),
        ("mixtral", {"num_local_experts": 8}, (8, 2), None),
        ("deepseek_v3", {}, (2, 2), None),
    ],
)
def test_config_keys_that_code_depends_on_stay_unchanged(kind, keys, heads, kinds):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from runner.model.small_config import shrink

    config = AutoConfig.for_model(kind, **keys)
    small = shrink(config)
    model = AutoModelForCausalLM.from_config(small, dtype=torch.float32)
    assert sum(weight.numel() for weight in model.parameters()) < 20_000_000
    assert (small.vocab_size, small.tie_word_embeddings) == (
        config.vocab_size,
        config.tie_word_embeddings,
    )
    assert (small.num_attention_heads, getattr(small, "num_key_value_heads", None)) == heads
    if kinds:
        assert set(small.layer_types) == kinds
    ids = torch.arange(1, 41).unsqueeze(0)  # past the sliding window
    model(input_ids=ids).logits.mean().backward()


# --- The whole command ----------------------------------------------------------------------------


def kept_folder(done) -> Path:
    return Path(re.search(r"^kept +(\S+)", done.stdout, re.MULTILINE)[1])


@pytest.mark.dear("two runs, each saved and resumed")
@pytest.mark.slow
def test_a_sweep_is_played_through_once_for_each_structure_and_nothing_is_left(runner):
    words = (
        "trainer=dpo,kto",
        "learning_rate=1e-6,3e-6",
        "batch=8",
        "metric=none",
        "peft=lora",
        "name=leaves-nothing",
    )
    done = runner("rehearse", "-m", *words, "memory=80", "tflops=200")
    assert "4 jobs, 2 of them to play" in done.stdout
    assert (
        done.stdout.count("for 2 runs that differ in numbers only")
        == done.stdout.count("forecast ")
        == 2
    )
    assert re.search(r"training, saving +checkpoint-1", done.stdout)
    assert "held-out scores, such as eval_loss" in done.stdout
    assert "as transformers loads it" in done.stdout
    assert (
        done.stdout.count(
            "speed=max would set train_sampling_strategy=group_by_length: little padding"
        )
        == 1
    )
    assert "80 GB" in done.stdout
    assert "a GPU at 200 TFLOP/s (as typed)" in done.stdout
    assert not [path for path in runner.folder.iterdir() if path.name != "hf"]
    assert not list(Path(tempfile.gettempdir()).glob("rehearsal-*/*/outputs/leaves-nothing"))
    assert max(map(len, done.stdout.splitlines())) <= 120


@pytest.mark.dear("three stages, each saved and resumed")
@pytest.mark.slow
def test_stages_continue_from_the_model_of_the_one_before(runner):
    done = runner(
        "rehearse",
        "experiment=toy_rlhf",
        "dataset.limit.train=16",
        "dataset.limit.eval=4",
        "trainer.args.per_device_train_batch_size=8",
        "metric=none",
    )
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ok ")] == [
        "toy-rlhf-sft",
        "toy-rlhf-reward_model",
        "toy-rlhf-ppo",
    ]
    assert "reward model" in done.stdout.split("forecast  toy-rlhf-ppo")[1]


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phase"),
    [("AtSecondSave", "after step 2"), ("AtResume", "after step 1")],
)
def test_failures_of_saving_and_resuming_are_found(runner, name, phase):
    (runner.folder / "faulty.py").write_text(FAULTY)
    words = (
        f"callback.mine._target_=faulty.{name}",
        "allow=[faulty]",
        "metric=none",
        "dataset.limit.train=64",
        "dataset.limit.eval=8",
    )
    done = runner("rehearse", "trainer=sft", *words, code=2)
    assert re.search(rf"^failed +\S+ .*: resuming, scoring, {phase}$", done.stdout, re.MULTILINE)
    assert "ValueError: no clay" in done.stderr
    assert "forecast" not in done.stdout
    folder = kept_folder(done)
    [log] = folder.rglob("log.txt")
    assert "no clay" in log.read_text()
    assert not (runner.folder / "outputs").exists()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_rows_that_a_training_would_refuse_are_refused(runner):
    done = runner("rehearse", "trainer=sft", "trainer.args.max_length=20", code=2)
    assert "tolerate.truncated=1" in done.stderr
    assert "reading rows" in done.stdout
    shutil.rmtree(kept_folder(done))


def test_words_of_the_rehearsal_and_of_the_training_are_separated():
    options = options_of("rehearse")
    assert split_options(["memory=80GB", "seed=1"], options, "rehearse") == (
        {"memory": 80},
        ["seed=1"],
        [],
    )
    *_, faults = split_options(["memory=much", "tflops=-1"], options, "rehearse")
    assert [fault.where for fault in faults] == ["memory", "tflops"]
    assert Option("float", unit="tflops?(/s)?").read("tflops", "300 TFLOP/s") == 300
    assert Option(words=("float32", "float16")).read("dtype", "fp16") == "float16"
    assert (Option().read("against", "base"), Option().read("against", "outputs/a")) == (
        "start",
        "outputs/a",
    )


def compute_and_fork(_):
    import torch

    from runner.estimate.apart import one_thread

    torch.set_num_threads(2)
    with one_thread():
        torch.rand(1 << 20).exp().sum()
        pid = os.fork()
        if not pid:
            torch.set_num_threads(2)
            torch.rand(1 << 20).exp().sum()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
def test_a_process_that_is_forked_for_a_smoke_run_may_use_several_threads(runner):
    """It would wait for ever for threads of its parent, which are not in it."""
    runner(door="test_rehearse:compute_and_fork")
