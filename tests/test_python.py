"""The runner called from Python.

A short run, from a thread, in a folder whose runner.py would hide ours.
"""

import contextlib
import io
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading

import pytest

import runner
from runner.command import _python
from runner.config.working_folder import add_working_folder
from runner.errors import ConfigError, DataError, EnvironmentFault, FolderError, RunnerError
from runner.io.files import PACKAGE
from runner.launch.compose.stages import compose_runs
from runner.run import open_run

QUICK = (
    "trainer=sft",
    "trainer.args.max_steps=2",
    "dataset.limit.train=32",
    "dataset.limit.eval=8",
    "metric=none",
)
OWN = """
from transformers import TrainerCallback
class Say(TrainerCallback):
    def on_step_end(self, *_, **__):
        print('mine')
"""
# A program beside a runner.py, whose workers are started anew and are given its sys.path.
START = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from runner.config.working_folder import add_working_folder
if __name__ == '__main__':
    add_working_folder()
    print(ProcessPoolExecutor(1, get_context('spawn')).submit(add_working_folder).result())
"""


def state_of_process():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    streams = sys.stdout, sys.stderr, sys.excepthook, logging.root.level, *logging.root.handlers
    return (
        handlers,
        streams,
        dict(os.environ),
        sys.argv[:],
        sys.path[:],
        os.getcwd(),
        random.getstate(),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The finished run, its words, its output, and the state of this process before and after."""
    folder = tmp_path_factory.mktemp("python")
    before = os.getcwd()
    (folder / "runner.py").write_text("raise AssertionError('it hides the package')")
    (folder / "mine.py").write_text(OWN)
    words = (*QUICK, "allow=[mine]", "callback.say._target_=mine.Say")
    output = io.StringIO()
    result = {}

    def call():
        result["run"] = runner.train(*words)

    os.chdir(folder)
    try:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
            patch.syspath_prepend("")
            states = [state_of_process()]
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            states.append(state_of_process())
        yield result["run"], words, output.getvalue(), states
    finally:
        os.chdir(before)


@pytest.mark.dear("a Python of its own, which finds the package beside a runner.py, trains")
@pytest.mark.slow
def test_a_training_is_a_finished_run_and_leaves_the_process_unchanged(trained):
    run, _, output, (before, after) = trained
    assert run.state == "finished"
    assert before == after
    assert [line["step"] for line in run.metrics] == [0, 2]
    assert run.metrics[-1]["loss"] > 0
    assert run.scores["before"].keys() == run.scores["after"].keys() >= {"eval_loss"}
    assert output.count("mine\n") == 2
    assert "finished  2 steps" in output


@pytest.mark.slow
def test_a_finished_run_comes_back_at_once(trained, monkeypatch, capsys):
    run, words, *_ = trained
    monkeypatch.setattr(_python, "_call", None)
    assert runner.train(*words).folder == run.folder
    assert "nothing was changed" in capsys.readouterr().out


@pytest.mark.slow
def test_the_runs_of_a_folder_are_found_and_their_models_load(trained):
    run, words, *_ = trained
    for place in ("outputs", run.folder.parent, run.folder):
        assert [run_found.folder for run_found in runner.runs(place)] == [run.folder]
    (listed,) = runner.runs()
    assert repr(listed) == f"<{listed}: finished 2/2>"
    tokenizer = listed.tokenizer()
    model = listed.model()
    ids = tokenizer("3 1 2", return_tensors="pt").to(model.device)
    assert model.generate(**ids, max_new_tokens=3).shape[1] > ids["input_ids"].shape[1]
    assert runner.compose(*words) == dict(run.cfg)
    with pytest.raises(FolderError, match="no such folder"):
        runner.runs("nowhere")


def test_faults_are_raised_all_at_once():
    with pytest.raises(ConfigError) as caught:
        runner.train("trainer=dpo", "trainer.args.lerning_rate=1", "trainer.args.max_steps=many")
    assert {fault.where for fault in caught.value.faults} == {
        "trainer.args.lerning_rate",
        "trainer.args.max_steps",
    }
    for words in (
        ("-m", "seed=0"),
        ("evaluate", "seed=1"),
        ("--debug",),
        ("seed=0,1",),
        ("sweep=search",),
    ):
        with pytest.raises(ConfigError, match="python -m runner"):
            runner.train(*words)
    for call in (runner.train, runner.compose):
        with pytest.raises(ConfigError, match=rf'runner\.{call.__name__}\("trainer=dpo"\)'):
            call("seed=1", trainer="dpo", words=1)
    for word, fix in (
        (["seed=1"], '"seed=1"'),
        (None, '"seed=1"'),
        ("seed=1 name=x", '"seed=1", "name=x"'),
    ):
        with pytest.raises(ConfigError, match=rf"runner\.compose\({fix}\)"):
            runner.compose(word)
    with pytest.raises(ConfigError, match="nowhere"):
        runner.compose("seed=1", config_dir="nowhere")


@pytest.mark.slow
def test_the_error_of_the_training_is_raised_with_its_faults(tmp_path):
    words = (*QUICK, f"output_root={tmp_path}")
    (composed,) = compose_runs(words)
    folder = open_run(composed.cfg, composed.overrides).folder
    (folder / "metrics.jsonl").write_text("garbage\n\n")
    with pytest.raises(FolderError) as caught, contextlib.redirect_stdout(io.StringIO()) as output:
        runner.train(*words)
    (fault,) = caught.value.faults
    assert fault.found == "line 1, 2 cannot be read"
    assert fault.fix.startswith(f"rm {folder}/metrics.jsonl")
    assert caught.value.code == 4
    assert str(caught.value) in output.getvalue()


@pytest.mark.slow
def test_a_command_refused_before_there_is_a_run_raises_its_error(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\nno json\n')
    with pytest.raises(DataError) as caught, contextlib.redirect_stdout(io.StringIO()) as output:
        runner.train(
            "trainer=sft",
            "dataset=local",
            f"dataset.path={tmp_path}/rows.jsonl",
            f"output_root={tmp_path}/outputs",
        )
    assert caught.value.code == 2
    assert str(caught.value) in output.getvalue()
    assert caught.value.faults[0].where.endswith("rows.jsonl:2")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_without_a_run_the_last_words_of_a_command_are_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        _python, "python_words", lambda _: [sys.executable, "-c", "import sys; sys.exit('killed')"]
    )
    with pytest.raises(RunnerError, match="killed") as caught:
        runner.train(*QUICK, f"output_root={tmp_path}")
    assert (type(caught.value), caught.value.code) == (RunnerError, 1)
    monkeypatch.setattr(_python, "python_words", lambda _: ["sh", "-c", "kill -9 $$"])
    with pytest.raises(EnvironmentFault, match="was killed by SIGKILL"):
        runner.train(*QUICK, f"output_root={tmp_path}")


SAVING = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: print('saved') or sys.exit(130))
print('ready', flush=True)
signal.pause()
"""


def test_a_stop_lets_the_step_be_saved_before_it_is_raised(tmp_path, monkeypatch):
    class Stopped(io.StringIO):
        def write(self, text):
            super().write(text)
            if text == "ready\n":
                raise KeyboardInterrupt

    monkeypatch.setattr(_python, "python_words", lambda _: [sys.executable, "-c", SAVING])
    with pytest.raises(KeyboardInterrupt), contextlib.redirect_stdout(Stopped()) as output:
        runner.train(*QUICK, f"output_root={tmp_path}")
    assert output.getvalue() == "ready\nsaved\n"


def test_importing_it_imports_nothing():
    code = (
        "import sys; before = {*sys.modules}; import runner; "
        "names = {name.split('.')[0] for name in sys.modules}; "
    )
    code += "print(names - before - sys.stdlib_module_names, dir(runner))"
    done = subprocess.run([sys.executable, "-Pc", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("{'runner'} ")
    for name in runner.__all__:
        assert f"'{name}'" in done.stdout
    assert (PACKAGE / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        runner.tarin  # noqa: B018


@pytest.mark.slow
def test_a_runner_py_in_the_working_folder_hides_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != ""])
    add_working_folder()
    assert sys.path[0] == str(tmp_path)
    del sys.path[0]
    (tmp_path / "runner.py").write_text("raise SystemExit('it hides the package')")
    add_working_folder()
    assert sys.path[-1] == str(tmp_path)
    (tmp_path / "start.py").write_text(START)
    words = [sys.executable, "-P", "start.py"]
    path = {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | path)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


@pytest.mark.slow
def test_the_program_of_the_readme_says_what_a_run_has(trained, monkeypatch, capsys):
    run = trained[0]
    (code,) = re.findall(
        r"```python\n(.*?)```", (PACKAGE.parent / "README.md").read_text(), re.DOTALL
    )
    monkeypatch.setattr(runner, "train", lambda *words: run if runner.compose(*words) else None)
    exec(code.replace("outputs/dpo-tiny-toy", str(run.folder.parent)), {})
    assert str(run.folder) in capsys.readouterr().out
