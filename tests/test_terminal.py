"""The terminal shows a bar that fits, colours unless refused; its text is in the log."""

import fcntl
import logging
import os
import pty
import re
import shlex
import shutil
import struct
import sys
import termios

import pytest

from runner.__main__ import main
from runner.command._closing import next_command
from runner.io import terminal
from runner.io.files import shipped
from runner.io.terminal import Copied
from runner.launch.compose.stages import compose_runs
from runner.launch.run_log import logging_to
from runner.run import open_run
from runner.run.record import read_run

FEW = (
    "trainer.args.max_steps=2",
    "trainer.args.logging_steps=1",
    "trainer.args.per_device_train_batch_size=8",
)
FEW += ("dataset.limit.train=64", "dataset.limit.eval=8")


@pytest.fixture
def look(tmp_path, monkeypatch):
    """The command's output on a terminal of 80 columns, and its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    from trl import SFTTrainer  # noqa: F401  once, and not in each child

    def call(*words):
        child, terminal = pty.fork()
        if not child:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            code = 1
            try:
                sys.stdout = os.fdopen(1, "w")
                sys.stderr = os.fdopen(2, "w")
                code = main(list(words))
                sys.stdout.flush()
            finally:
                os._exit(code)
        shown = b""
        try:
            while received := os.read(terminal, 1 << 16):
                shown += received
        except OSError:  # the terminal is closed
            pass
        os.close(terminal)
        return shown.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(
            os.waitpid(child, 0)[1]
        )

    return call


def test_progress_in_a_file_is_a_line_now_and_then_and_none_of_what_is_quick(monkeypatch, capsys):
    with terminal.progress_bar("predicting", 3, "answer") as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0)
    with terminal.progress_bar("predicting", 2, "answer") as bar:
        bar.update(1), bar.update(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("predicting: 0/2")
    assert lines[-1].startswith("predicting: 2/2, 00:00 left")
    assert "\r" not in "".join(lines)


@pytest.mark.slow
def test_a_terminal_shows_a_bar_with_the_loss_and_the_time_that_is_left(look, tmp_path):
    shown, code = look("trainer=sft", *FEW, "objective=eval_loss")
    bars = [frame for frame in re.split(r"[\r\n]", shown) if frame.startswith("training")]
    last = re.compile(r"training: 100%.* 2/2 \[\d\d:\d\d<00:00, .*(step/s|s/step), loss \d\.\d+\]$")
    assert code == 0
    assert any(map(last.fullmatch, bars))
    assert max(map(len, bars)) <= 80
    assert "\nstep " not in shown
    assert "\x1b[32mfinished\x1b[0m  2 steps in " in shown
    assert re.search(
        r"^\x1b\[3[12]m  eval_loss  +[\d.]+ +[\d.]+ +[-+][\d.e-]+( worse)?\x1b\[0m$",
        shown,
        re.MULTILINE,
    )
    [log] = tmp_path.glob("outputs/*/*/log.txt")
    text = log.read_text()
    assert "step      2/2  loss " in text
    assert ": finished  2 steps in " in text
    assert not {"\x1b", "␛"} & set(text)


@pytest.mark.slow
def test_the_heading_of_an_error_is_red_unless_colours_are_refused(look, monkeypatch):
    shown, code = look("trainer=dpoo")
    assert code == 2
    assert shown.startswith("\x1b[31mconfig\x1b[0m\n  trainer\n")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert look("trainer=dpoo") == (shown.replace("\x1b[31m", "").replace("\x1b[0m", ""), 2)


def finished(*words):
    """A finished run with these words, whose model is the shipped one with another head, or an
    adapter for it.
    """
    (composed,) = compose_runs([*words, "name=mine", "dataset.limit.train=100"])
    run = open_run(composed.cfg, composed.overrides, composed.command, composed.choices)
    tiny = "runner://model/tiny"
    shutil.copytree(shipped(tiny), run.model)
    if composed.cfg["trainer"]["head"] == "score":
        from transformers import AutoModelForSequenceClassification

        AutoModelForSequenceClassification.from_pretrained(
            shipped(tiny), num_labels=1
        ).save_pretrained(run.model)
    elif composed.cfg["peft"]:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(run.model)
        get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])
        ).save_pretrained(run.model)
    run.set_status("finished", step=2)
    return read_run(run.folder)


PAIRS = ("dataset=local", "dataset.path=runner://dataset/toy_sort")
ANSWERS = """
class Answers:
    def rows(self, count, seed, held_out):
        prompt = [{"role": "user", "content": "1 + 0"}]
        return [{"prompt": prompt, "reference": "1"}] * count

    def make(self):
        return self
"""
MINE = (
    "environment=own",
    "environment._target_=answers_of_test.Answers",
    "allow=[answers_of_test]",
)
MODEL = "model.path=MODEL"


@pytest.mark.grid(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "then"),
    [
        (["trainer=sft"], ["trainer=dpo", "dataset.limit.train=100", MODEL]),
        (
            ["trainer=sft", "dataset=toy_demonstrations"],
            ["trainer=grpo", "dataset=toy_demonstrations", "dataset.limit.train=100", MODEL],
        ),
        (
            [
                "trainer=sft",
                "dataset=toy_reviews",
                "peft=lora",
                "peft.r=4",
                "quant=4bit",
                "template=chatml",
                "seed=1",
            ],
            [
                "trainer=dpo",
                "dataset=toy_reviews",
                "peft=lora",
                "peft.r=4",
                "quant=4bit",
                "template=chatml",
                "dataset.limit.train=100",
                MODEL,
            ],
        ),
        (["trainer=sft", *PAIRS], ["predict", "RUN", "set=train"]),
        (
            [
                "trainer=sft",
                *PAIRS,
                "dataset.form=preference",
                "model.path=runner://model/tiny",
                "model.dtype=bfloat16",
            ],
            [
                "trainer=dpo",
                *PAIRS,
                "dataset.form=preference",
                "model.dtype=bfloat16",
                "dataset.limit.train=100",
                MODEL,
            ],
        ),
        (
            ["experiment=toy_dpo", "trainer.args.max_steps=2"],
            ["trainer=grpo", "model=tiny", "dataset=toy_sort", "dataset.limit.train=100", MODEL],
        ),
        (
            ["trainer=sft", *MINE, "dataset.form=prompt_completion", "seed=1"],
            ["trainer=grpo", *MINE, "dataset.limit.train=100", MODEL],
        ),
        (["trainer=grpo", *MINE], ["predict", "RUN", "set=train", MINE[-1]]),
        (
            ["trainer=sft", "model=new", "model.num_hidden_layers=1"],
            ["predict", "RUN", "set=train"],
        ),
        (
            ["trainer=reward", *PAIRS, "peft=lora"],
            [
                "trainer=ppo",
                *PAIRS,
                "peft=lora",
                "dataset.limit.train=100",
                "reward=model",
                f"reward.{MODEL}",
            ],
        ),
        (["trainer=ppo", "dataset=toy_reviews"], ["predict", "RUN", "set=train"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_the_command_that_follows_keeps_what_was_chosen_and_works(
    tmp_path, monkeypatch, capsys, words, then
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "answers_of_test.py").write_text(ANSWERS)
    run = finished(*words)
    command = next_command(run)
    expected = [word.replace("MODEL", f"{run}/model").replace("RUN", str(run)) for word in then]
    assert shlex.split(command)[3:] == expected
    if "predict" not in then:
        assert main([*expected, "--dry-run"]) == 0, capsys.readouterr().err


def test_no_next_step_is_offered_for_a_model_that_ended_worse(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = finished("trainer=sft")
    assert "trainer=dpo" in next_command(run)
    run.run.set_status(
        "finished", cause="the model ended worse than it began: eval_loss 0.1 -> 0.9"
    )
    assert shlex.split(next_command(read_run(run.folder)))[3:] == [
        "predict",
        str(run),
        "set=train",
    ]


@pytest.mark.parametrize("trainer", ["grpo", "rloo", "ppo", "online_dpo"])
def test_an_online_trainer_is_followed_by_a_look_at_its_answers(tmp_path, monkeypatch, trainer):
    monkeypatch.chdir(tmp_path)
    run = finished(f"trainer={trainer}", "dataset=toy_sort", "reward=sorted_digits")
    for cause in (None, "the model ended worse than it began: eval_reward 0.8 -> -0.5"):
        run.run.set_status("finished", cause=cause)
        command = shlex.split(next_command(read_run(run.folder)))
        assert command[3:] == ["predict", str(run), "set=train"]


def test_a_reader_who_has_seen_enough_ends_no_run():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        output = Copied(stream)
        print("one", file=output, flush=True)
        print("two", file=output, flush=True)


def test_a_log_has_no_line_for_each_request_to_the_hub(tmp_path):
    with logging_to(tmp_path / "log.txt"):
        for client in ("httpx", "httpx2._client"):
            logging.getLogger(client).info("HTTP Request: HEAD https://huggingface.co/api 200")
        logging.getLogger("httpx").warning("it answers slowly")
        logging.getLogger("httpxample").info("one of a library with another name")
    log = (tmp_path / "log.txt").read_text()
    assert "HTTP Request" not in log
    assert "it answers slowly" in log
    assert "one of a library" in log
