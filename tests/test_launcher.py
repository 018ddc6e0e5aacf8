"""Processes: several train as one, and what happens in one run of a sweep stays there."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import warm
from laid import lay_run
from warm import leave_with, world_of_two

from runner.errors import EnvironmentFault
from runner.launch.processes import python_words
from runner.run import Run

pytestmark = pytest.mark.slow
SAME = (
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
    "trainer.args.max_steps=4",
    "trainer.args.logging_steps=1",
    "metric=none",
)


def test_two_processes_train_as_one_with_the_same_global_batch(runner):
    """Our own processes and those of torchrun are the same run. For PPO: ``test_ppo_training``."""
    words = ("trainer=sft", "learning_rate=1e-3", *SAME)
    runner(*words, "trainer.args.per_device_train_batch_size=8", "name=one")
    words += ("batch=8", "name=two")
    torchrun = ("--standalone", "--nproc_per_node=2", "-m", "runner")
    runner(*torchrun, *words, door="torch.distributed.run:main")
    assert (
        f"{runner.runs('two')[0].name} already" in runner(*words, "launcher.num_processes=2").stdout
    )
    single, two = (read(runner, name) for name in ("one", "two"))
    assert two["manifest"]["hardware"]["processes"] == 2
    assert two["steps"] == pytest.approx(single["steps"], rel=1e-3)
    assert len(single["steps"]) == 8


def test_accelerate_launch_on_a_cpu_is_no_world_of_processes(runner):
    launch = ("--cpu", "--num_processes=2", "--num_machines=1", "-m", "runner")
    done = runner(
        *launch, "trainer=sft", *SAME, "name=world", door="test_launcher:accelerate_launch", code=1
    )
    assert "launcher.num_processes=2" in done.stderr
    assert not runner.runs("world")


def accelerate_launch(words):
    from accelerate.commands.launch import launch_command, launch_command_parser

    launch_command(launch_command_parser().parse_args(words))


def read(runner, name):
    from runner.io.files import read_json
    from runner.run.history import read_metrics

    run = Run(runner.runs(name)[0])
    lines = [line for line in read_metrics(run.metrics) if line["step"]]
    # The norms tell what the losses do not: whether the processes averaged their gradients.
    steps = [line["loss"] for line in lines] + [line["grad_norm"] for line in lines]
    return {"steps": steps, "manifest": read_json(run.folder / "manifest.json")}


def with_gpu_awake(words: list[str]) -> int:
    """Run the command as if an import had initialised the GPU; a file says what replaced it."""
    import torch

    from runner.__main__ import main

    is_initialized = torch.cuda.is_initialized

    def execv(python: str, replaced: list[str]) -> None:
        Path("words").write_text("\n".join(replaced))
        torch.cuda.is_initialized = is_initialized
        leave_with(lambda: be_python(replaced))

    torch.cuda.is_initialized = lambda: True
    os.execv = execv
    return main(words)


def be_python(words: list[str]) -> None:
    """Do what a Python with these words does, in this process."""
    pipes = {"c2pwrite": -1, "errwrite": -1}
    warm.be_python({"args": words, "env": None, "start_new_session": False, **pipes})


def test_a_python_of_its_own_finds_the_modules_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import also_mine, sys; print(__name__, sys.argv[1:])")
    (tmp_path / "also_mine.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    words = [*python_words("mine"), "a=1"]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True)
    assert done.stdout == "__main__ ['a=1']\n", done.stderr


def test_a_run_starts_its_own_python_if_a_fork_could_use_no_gpu(runner):
    words = ("trainer=sft", *SAME)
    runner("-m", *words, "seed=0", "name=fresh", "--debug", door="test_launcher:with_gpu_awake")
    [fresh] = runner.runs("fresh")
    assert (runner.folder / "words").read_text().splitlines()[-4:] == [
        str(fresh),
        "--trust",
        "--launch",
        "--debug",
    ]
    runner(*words, "name=forked")
    weights = [
        (run / "model" / "model.safetensors").read_bytes()
        for run in (fresh, runner.runs("forked")[0])
    ]
    assert weights[0] == weights[1]


def test_a_sweep_trains_each_run_in_its_own_folder_as_it_would_be_alone(runner):
    words = (
        "-m",
        "trainer=dpo",
        "kl_coef=0.05,0.1",
        "learning_rate=3e-6",
        *SAME,
        "trainer.args.max_steps=1",
        "name=sweep",
    )
    done = runner(*words)
    folders = runner.runs("sweep")
    assert len(folders) == 2
    assert "2 of 2 runs finished" in done.stdout
    assert {Run(folder).cfg["kl_coef"] for folder in folders} == {0.05, 0.1}
    for folder in folders:
        assert Run(folder).status()["state"] == "finished"
    for folder in folders:
        assert "kl_coef-0" in folder.name
        assert "learning_rate-" in folder.name
    again = runner(*words)
    assert "2 finished" in again.stdout
    assert "start" not in again.stdout
    runner(
        "trainer=dpo",
        "kl_coef=0.1",
        "learning_rate=3e-6",
        *SAME,
        "trainer.args.max_steps=1",
        "name=alone",
    )
    alone = Run(runner.runs("alone")[0])
    [twin] = [Run(folder) for folder in folders if folder.name[-10:] == alone.folder.name[-10:]]
    assert (alone.model / "model.safetensors").read_bytes() == (
        twin.model / "model.safetensors"
    ).read_bytes()


def test_one_failing_job_does_not_stop_the_others(runner):
    # 20 cuts the rows
    words = ("-m", "trainer=sft", "trainer.args.max_length=20,64", *SAME, "name=sweep")
    done = runner(*words, code=2)
    states = sorted(Run(folder).status()["state"] for folder in runner.runs("sweep"))
    assert states == ["failed", "finished"]
    assert "1 of 2 runs finished" in done.stdout


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        (("-m", "seed=1,2"), signal.SIGTERM, 143),
        (("launcher.num_processes=2",), signal.SIGINT, 130),  # which each process gets as well
    ],
    ids=["sweep", "processes"],
)
def test_a_stopped_command_saves_its_step_and_starts_no_other_run(runner, kind, number, code):
    words = (
        *kind,
        "trainer=sft",
        *SAME,
        "trainer.args.max_steps=500",
    )
    assert runner.stopped(*words, "name=sweep", name="sweep", number=number) == code
    [run] = map(Run, runner.runs("sweep"))
    log = run.log.read_text()
    assert f"run       {run.folder.relative_to(runner.folder)}\n" in log or "-m" in kind
    assert run.status()["state"] == "interrupted"
    assert log.count("asked to stop") == 1
    assert "Traceback" not in log


ONE_ENDS = """
import os, signal
from transformers import TrainerCallback
from runner import errors

class Ends(TrainerCallback):
    def __init__(self, how):
        self.how = how

    def on_step_end(self, args, state, control, **kwargs):
        if args.process_index == 1 and state.global_step == 2:
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            fault = errors.Fault("mine", "an end of its own", fix="nothing")
            raise getattr(errors, self.how)(fault)
"""


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("how", "code", "expected", "fresh"),
    [
        (
            "DataError",
            2,
            "data (rank 1)\n  mine\n    found     an end of its own\n    type      nothing",
            False,
        ),
        (
            "killed",
            5,
            "environment\n  processes\n    found     rank 1 was killed by SIGKILL",
            True,
        ),
    ],
)
def test_of_several_processes_the_one_that_failed_first_says_why(
    runner, how, code, expected, fresh
):
    """They run in a Python of their own that finds the user's modules, or forked as elsewhere."""
    (runner.folder / "mine.py").write_text(ONE_ENDS)
    callback_words = (
        "+callback.ends._target_=mine.Ends",
        f"+callback.ends.how={how}",
        "allow=[mine]",
    )
    done = runner(
        "trainer=sft",
        "launcher.num_processes=2",
        *SAME,
        *callback_words,
        "name=one",
        code=code,
        fresh=fresh,
    )
    run = Run(runner.runs("one")[0])
    assert run.status()["state"] == "failed"
    assert run.status()["cause"].startswith(expected)
    assert expected in done.stderr
    assert expected in run.log.read_text()
    assert "Traceback" not in done.stderr
    assert "Connection" not in done.stderr + run.status()["cause"]


ENDS_ONCE = """
import os, signal
from transformers import TrainerCallback

class Ends(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if args.process_index == 1 and state.global_step == 3 and os.path.exists("ends"):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.dear("six processes train")
def test_two_machines_train_as_two_processes_of_one(runner):
    """Two commands on this one, of which the second loses its process, and then the same again."""
    (runner.folder / "mine.py").write_text(ENDS_ONCE)
    words = (
        "trainer=sft",
        *SAME,
        "trainer.args.save_steps=2",
        "+callback.ends._target_=mine.Ends",
        "allow=[mine]",
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"launcher.rendezvous=127.0.0.1:{free.getsockname()[1]}"
    ends = runner.folder / "ends"
    ends.touch()
    for code in (5, 0):
        ranks = [f"launcher.machine_rank={rank}" for rank in (0, 1)]
        machines = ("launcher=accelerate", "launcher.num_machines=2", place, "name=two")
        started = [runner.start(*words, *machines, rank) for rank in ranks]
        done = [process.wait() for process in started]
        assert [result.returncode for result in done] == [code, code], "\n".join(
            result.stdout + result.stderr for result in done
        )
        two = Run(runner.runs("two")[0])
        if ends.exists():
            cause = "environment\n  processes\n    found     rank 1 on machine 1 ("
            assert two.status()["cause"].startswith(cause)
            assert "SIGKILL" in two.status()["cause"]
            for result in done:
                assert cause in result.stderr
                assert "Traceback" not in result.stderr
            ends.unlink()
    assert "resumes   from step 2" in done[0].stdout
    assert "step " not in done[1].stdout
    runner(*words, "launcher.num_processes=2", "name=one")
    single = Run(runner.runs("one")[0])
    assert single.folder.name == two.folder.name
    assert two.manifest()["hardware"]["processes"] == 2
    assert (single.model / "model.safetensors").read_bytes() == (
        two.model / "model.safetensors"
    ).read_bytes()


def test_all_processes_stop_if_one_is_asked_and_they_share_a_folder(runner):
    words = ("trainer=sft", *SAME, "trainer.args.max_steps=500", "name=two")
    started = runner.start_two(*words)
    while not (folders := runner.runs("two")) or Run(folders[0]).status()["step"] < 2:
        assert not started[0].ended()
        time.sleep(0.05)
    started[1].send(signal.SIGTERM)
    assert [process.wait().returncode for process in started] == [143, 143]
    status = Run(folders[0]).status()
    assert status["state"] == "interrupted"
    assert status["sealed"] == status["step"]
    roots = [["output_root=outputs"], ["output_root=elsewhere"]]
    starts = zip(roots, world_of_two(), strict=True)
    again = [
        runner.warm.start([*words, *root], runner.folder, runner.environment | world)
        for root, world in starts
    ]
    done = [process.wait() for process in again]
    assert [result.returncode for result in done] == [5, 5]
    assert "output_root=<a folder" in done[0].stderr


@pytest.mark.parametrize(
    ("rank", "place", "message"),
    [
        (0, "127.0.0.1:{}", "this port is already in use here"),
        (1, "127.0.0.1:{}", "what answers there is not a machine of a run"),
        (1, "127.0.0.1:1", "refused"),
        (1, "no.such.host.invalid:29500", "not known"),
    ],
)
def test_machines_that_cannot_meet_say_why(rank, place, message, tmp_path, monkeypatch):
    from runner.launch import accelerate

    folder = lay_run(tmp_path / "run", state="created")
    monkeypatch.setattr(accelerate, "HANDSHAKE", 1)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(EnvironmentFault, match=message),
    ):
        place = place.format(listener.getsockname()[1])
        settings = {"machine_rank": rank, "rendezvous": place, "rendezvous_seconds": 0.2}
        accelerate.accelerate(folder, num_machines=2, **settings)
