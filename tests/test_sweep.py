"""Sweeps: the plan before the first job, isolated jobs, and the same command for the rest."""

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from runner import __main__ as door
from runner.config import composition
from runner.config.composition import compose_unresolved
from runner.config.experiment import Experiment, LauncherPart
from runner.config.menu import read_menu
from runner.config.override import force
from runner.errors import ConfigError
from runner.io.files import MENU, read_json
from runner.io.terminal import COLOUR
from runner.launch import pool, processes, run_log, slurm, start_runs, warming, worker
from runner.launch.compose import sweep_axes
from runner.launch.compose.grid import compose_jobs
from runner.launch.compose.sweep_axes import MAX_JOBS, axes
from runner.launch.plan import Plan, state_of, tasks_of
from runner.launch.pool_settings import Settings, confine, settings_of
from runner.launch.processes import fork, visible_devices
from runner.launch.progress import LiveProgress
from runner.run import Run, held, locked, open_run
from runner.run.key import canonical_text
from runner.run.record import one_line

QUICK = (
    "dataset.limit.train=16",
    "dataset.limit.eval=2",
    "metric=none",
    "trainer.args.max_steps=1",
)


def said(capsys, *words, code=0):
    """The output of the command on both streams."""
    assert door.main(list(words)) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def jobs(*words):
    return compose_jobs(words)


# --- What there is to do ------------------------------------------------------------------------


def test_the_first_job_of_a_long_range_does_not_list_it():
    assert sweep_axes.first_of(["hydra/sweeper=optuna", "seed=range(0,4294967295)"]) == ["seed=0"]


@pytest.mark.slow
def test_what_is_swept_names_a_run_first_as_it_was_typed(capsys):
    typed = ("trainer.args.logging_steps=9", "seed=0,1", "trainer=dpo", "learning_rate=1e-4,5e-5")
    words = (*typed, "peft=lora", "peft.r=16,32", "name=a")
    labels = []
    for line in said(capsys, "-m", *words, "--dry-run").splitlines():
        if line.startswith("new "):
            labels.append(line.split("/")[2])
    assert [label.rpartition("-")[0] for label in labels[:3]] == [
        "seed-0+learning_rate-1e-4+peft.r-16+logging_steps-9+trainer-dpo+peft-lora",
        "seed-0+learning_rate-1e-4+peft.r-32+logging_steps-9+trainer-dpo+peft-lora",
        "seed-0+learning_rate-5e-5+peft.r-16+logging_steps-9+trainer-dpo+peft-lora",
    ]
    command = jobs(*words)[0][0].command
    assert command[:4] == ["seed=0", "learning_rate=1e-4", "peft.r=16", typed[0]]
    # The order of words matters where one holds a mapping around another.
    mapping = jobs("trainer.args={max_steps:3}", "trainer.args.max_steps=4,5", "name=a")[0][0]
    assert mapping.cfg["trainer"]["args"]["max_steps"] == 4
    assert mapping.command[-2:] == ["trainer.args.max_steps=4", "name=a"]


@pytest.mark.slow
def test_a_sweep_over_models_or_rows_of_ones_own_has_one_name(tmp_path, capsys):
    for file in ("a.jsonl", "b.jsonl", "c.jsonl"):
        Path(file).write_text('{"prompt": "1", "completion": "2"}\n' * 8)
    words = ("-m", "dataset=a.jsonl,b.jsonl", "seed=0,1")
    text = said(capsys, *words, "--dry-run")
    assert "4 runs in outputs/sft-tiny-local: dataset.path 2 x seed 2" in text
    assert "outputs/sft-tiny-local/dataset-b.jsonl+seed-1-" in text
    # Runs that are there under a name of their own are not left behind, where one name fits all.
    single = said(capsys, "dataset=a.jsonl", "--dry-run").splitlines()[-1]
    assert "outputs/sft-tiny-a/default-" in single
    Path(single.split()[1]).mkdir(parents=True)
    assert "runs in outputs/sft-tiny-a: seed 2" in said(
        capsys, "-m", "dataset=a.jsonl", "seed=0,1", "--dry-run"
    )


@pytest.mark.slow
def test_the_plan_counts_runs_by_what_is_left_to_do(tmp_path, capsys):
    words = ("trainer=sft", "seed=0,1,2,3,4", "name=sweep")
    tasks = tasks_of(jobs(*words))
    runs = [open_run(task.composed.cfg, task.composed.overrides) for task in tasks[:4]]
    for run, state in zip(runs, ("finished", "interrupted", "failed", "running"), strict=True):
        run.set_status(state, step=3, max_steps=9)
    plan = Plan(tasks, {"seed": 5})
    assert str(plan) == (
        "sweep     5 runs in outputs/sweep: seed 5\n"
        "          1 new, 2 to continue, 1 failed, to try again, 1 finished"
    )
    with locked(runs[3]):
        assert "1 running elsewhere" in str(Plan(tasks, {"seed": 5}))
        assert state_of(runs[3].folder) == "running"
    assert [line.split()[0] for line in plan.lines()] == [
        "finished",
        "interrupted",
        "failed",
        "interrupted",
        "new",
    ]
    text = said(capsys, "-m", *words, "--dry-run")
    assert text.startswith(str(plan))
    assert len(text.splitlines()) == 8


@pytest.mark.slow
def test_jobs_share_the_stages_below_what_is_swept():
    tasks = tasks_of(jobs("experiment=toy_rlhf", "ppo.kl_coef=0.1,0.2"))
    assert [task.composed.stage for task in tasks] == ["sft", "reward_model", "ppo", "ppo"]
    assert [len(task.after) for task in tasks] == [0, 1, 1, 1]
    assert tasks[2].after == tasks[3].after == (tasks[1].folder,)


def test_a_run_of_a_sweep_records_the_command_that_makes_it_alone(tmp_path):
    (job,) = jobs("trainer=dpo", "kl_coef=0.2", "name=a")[0]
    run = open_run(job.cfg, job.overrides, job.command)
    assert read_json(run.folder / "manifest.json")["command"] == [
        *("python", "-m", "runner", "trainer=dpo", "kl_coef=0.2", "name=a")
    ]


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("seed=0,1,1",), "the same run"),
        (("seed=range(0,0)",), "no values"),
        (("seed=range(0,1000)", "trainer.args.max_steps=range(1,1001)"), "1,000,000 jobs"),
        (("learning_rte=1e-5,1e-6",), "learning_rate"),
        (("trainer=sft,dop",), "trainer=dpo"),
        (("seed=0,1", "name=a/b"), "plain folder name"),
        (("seed=0,1", f"name={'a' * 300}"), "plain folder name"),
        (("learning_rate=interval(0,1)",), "optuna"),
        (("launcher.jobs=1,2",), "the same run"),
        (("tolerate.kl=true,false",), "type      tolerate.kl=True\n"),
        (("seed=0,1", "launcher.jobs=0"), "launcher.jobs"),
        (("seed=0,1", "launcher.timeout_seconds=-1"), "launcher.timeout_seconds"),
        (("sweep=no_such",), "kl_lr, "),
        (("seed=choice()",), "command line"),
        (("seed=range(0,inf)",), "without an end"),
        (("learning_rate=range(0,1,nan)",), "without an end"),
        (("seed=range(0,5,false)",), "a step of 0"),
        ((f"seed=range(0,{'9' * 400})",), "too large"),
        (("seed=shuffle(range(0,1000000000))",), "1,000,000,000 values to shuffle"),
        (("trainer=glob(*)",), "not glob()"),
        (tuple(f"trainer.args.k{number}=range(0,1e300)" for number in range(20)), "more jobs than"),
    ],
)
def test_a_sweep_that_cannot_work_starts_nothing(tmp_path, capsys, words, expected):
    assert expected in said(capsys, "-m", *words, code=2)
    assert not (tmp_path / "outputs").exists()


def test_a_million_jobs_are_counted_and_not_composed():
    with pytest.raises(ConfigError, match="1,000,000"):
        axes(["a=range(0,1000)", "b=range(0,1000)"])
    assert axes([f"a=range(0,{MAX_JOBS})"]) == {"a": MAX_JOBS}


@pytest.mark.slow
def test_a_sweep_in_a_file_needs_no_flag_and_has_replaceable_axes(capsys):
    text = said(capsys, "sweep=kl_lr", "trainer=dpo", "--dry-run")
    assert "kl_coef 3 x learning_rate 2" in text
    text = said(capsys, "sweep=kl_lr", "trainer=dpo", "kl_coef=0.5,0.7", "seed=0,1", "--dry-run")
    assert (
        "kl_coef 2 x learning_rate 2 x seed 2" in text
        or "learning_rate 2 x kl_coef 2 x seed 2" in text
    )
    assert "kl_coef-0.7" in text
    assert "kl_coef-0.01" not in text
    text = said(capsys, "sweep=seeds", "experiment=toy_sft", "--dry-run")
    assert "3 runs in outputs/toy-sft: seed 3" in text


@pytest.mark.slow
def test_jobs_that_differ_in_values_only_are_composed_by_hydra_once(monkeypatch):
    composition._compose_choices.cache_clear()
    jobs("trainer=dpo", "kl_coef=0.1,0.2,0.3", "learning_rate=1e-6,1e-5")
    assert composition._compose_choices.cache_info().misses == 1
    jobs("trainer=dpo", "kl_coef=0.1,0.2,0.3", "learning_rate=1e-6,1e-5", "~trainer.args.max_steps")
    assert composition._compose_choices.cache_info().misses == 2


@pytest.mark.slow
def test_a_fault_of_all_jobs_is_one_whatever_is_swept():
    with pytest.raises(ConfigError) as error:
        jobs("trainer=sft", "seed=1,2,3", "trainer.args.max_stepz=2")
    assert [(fault.fix, fault.job) for fault in error.value.faults] == [
        ("trainer.args.max_steps=2", "")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("trainer=dpo", "kl_coef=0.3", "trainer.args.beta=0.7", "model.dtype=bfloat16"),
        (
            "experiment=toy_grpo",
            "+callback.mine={_target_: a.B, x: [1, 2]}",
            "reward.length.weight=2",
        ),
        ("dataset=local", "dataset.path=a.jsonl", "dataset.columns={prompt: q}", "name='a b'"),
        ("peft=lora", "peft.r=4", "~quant", "seed=3"),
        ("trainer.args.seed=1", "~trainer.args.max_steps", "seed=3"),
        ("trainer.args.seed=1", "~trainer.args", "trainer.args.max_steps=3", "seed=3"),
    ],
)
def test_values_laid_on_top_are_what_hydra_makes_of_them(words):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    ours, _ = compose_unresolved(words)
    with initialize_config_dir(str(MENU), version_base="1.3", job_name="runner"):
        theirs = compose("config", force(words, read_menu()), return_hydra_config=True)
    plain = [OmegaConf.to_container(cfg, resolve=False) for cfg in (ours, theirs)]
    for cfg in plain:
        del cfg["hydra"]
    assert plain[0] == plain[1]


# --- Processes ----------------------------------------------------------------------------------


class Recorder:
    """A show that records the events."""

    def __init__(self):
        self.ends = {}
        self.most = 0

    def started(self, task):
        pass

    def ended(self, task, state, cause="", seconds=None):
        self.ends[task.composed.cfg["seed"]] = (state, cause)

    def tick(self, live, waiting):
        self.most = max(self.most, len(live))

    def close(self):
        pass


@pytest.fixture
def train_all(monkeypatch):
    """The pool with a stand-in for the training: a function of the run, in a real process."""

    def call(launch, *words, **settings):
        monkeypatch.setattr(pool, "warm_up", lambda runs: None)
        monkeypatch.setattr(pool, "launch", lambda run, debug: launch(run))
        recorder = Recorder()
        tasks = tasks_of(jobs(*words, "name=sweep"))
        codes, signals = pool.Pool(tasks, Settings(**settings), recorder).run()
        return list(codes.values()), recorder, signals

    return call


def finish(run):
    run.set_status("finished")
    return 0


def misbehave(run):
    """Harm the process as a run may, by its seed."""
    run.set_status("running")
    seed = run.cfg["seed"]
    if seed == 1:
        raise RuntimeError("raised")
    if seed == 2:
        sys.exit(0)
    if seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 4:
        import ctypes

        ctypes.string_at(0)
    if seed == 5:
        time.sleep(600)
    if seed == 6:
        os._exit(0)
    return finish(run)


@pytest.mark.slow
def test_a_job_that_harms_its_process_affects_no_other(train_all):
    codes, recorder, _ = train_all(
        misbehave, "trainer=sft", "seed=range(0,8)", jobs=2, timeout_seconds=6.0
    )
    assert Counter(codes) == {0: 2, 1: 3, 5: 3}  # killed by a signal, or for its time
    assert Counter(state for state, _ in recorder.ends.values()) == {"finished": 2, "failed": 6}
    causes = {seed: cause for seed, (_, cause) in recorder.ends.items()}
    assert "exit code 1" in causes[1]
    assert "exit code" in causes[2]
    assert "SIGKILL" in causes[3]
    assert "SIGSEGV" in causes[4]
    assert "launcher.timeout_seconds" in causes[5]
    assert "exit code 0" in causes[6]
    assert recorder.most == 2
    failed = [Run(path.parent) for path in Path("outputs/sweep").glob("*/status.json")]
    assert Counter(run.status()["state"] for run in failed) == {"finished": 2, "failed": 6}


@pytest.mark.slow
def test_output_of_a_job_is_in_its_log_without_secrets(train_all, capfd, monkeypatch):
    monkeypatch.setenv(
        "DEPLOY_KEY", "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7b1x\n-----END"
    )

    def unread():
        """The number of bytes that the process which writes the log has not read yet."""
        return int.from_bytes(fcntl.ioctl(1, termios.FIONREAD, bytes(4)), sys.byteorder)

    def talk(run):
        print("out")
        with run_log.logging_to(run.log):
            worker.log.warning("once")
        print("err", file=sys.stderr)
        os.system("echo from another program; env")
        os.write(1, b"half of hf_aQ7zK3aQ7z")
        os.write(1, b"K3aQ7zK3aQ7zK3\nMIIEowIBAAKCAQEA7b1x\n")
        for part in (b"x" * 65529 + b" ", b"hf_aQ7zK3a", b"Q7zK3aQ7zK3aQ7zK3", b"\n"):
            os.write(1, part)
            while unread():
                time.sleep(0.001)
        return finish(run)

    train_all(talk, "trainer=sft", "seed=0,1")
    logs = [path.read_text() for path in Path("outputs/sweep").glob("*/log.txt")]
    for log in logs:
        assert "MIIE" not in log
        assert "hf_" not in log
    for log in logs:
        assert "half of <secret>" in log
    assert len(logs) == 2
    for log in logs:
        assert {"out", "err", "from another program"} <= set(log.splitlines())
    assert [log.count("once") for log in logs] == [1, 1]
    assert "err" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_that_another_process_holds_is_waited_for_and_not_trained_twice(train_all, tmp_path):
    held_run = open_run(
        *next((job.cfg, job.overrides) for (job,) in jobs("trainer=sft", "seed=0", "name=sweep"))
    )
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom runner.run import Run, locked\n"
        "run = Run(Path(sys.argv[1]))\n"
        "with locked(run):\n    run.set_status('running')\n    print('held', flush=True)\n"
        "    while not Path(sys.argv[3]).read_text():\n        time.sleep(0.02)\n"
        "    run.set_status(sys.argv[2])\n"
    )
    for state, trained in (("finished", [1]), ("interrupted", [0, 1]), ("failed", [1])):
        for run in Path("outputs/sweep").glob("*"):
            Run(run).set_status("created")
        # It holds the first run until the second one trains, which begins after the sweep has
        # looked at the first.
        (tmp_path / "trained").write_text("")
        words = (str(held_run.folder), state, str(tmp_path / "trained"))
        holder = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE)
        holder.stdout.readline()
        assert held(held_run)

        def mark(run):
            with open(tmp_path / "trained", "a") as file:
                file.write(f"{run.cfg['seed']}\n")
            return finish(run)

        codes, recorder, _ = train_all(mark, "trainer=sft", "seed=0,1", jobs=2)
        holder.communicate()
        assert sorted(map(int, (tmp_path / "trained").read_text().split())) == trained, state
        assert recorder.ends[0][0] == ("failed" if state == "failed" else "finished")
        assert codes.count(0) == 2 - (state == "failed")


@pytest.mark.slow
def test_runs_that_build_on_a_failed_one_do_not_start(train_all):
    def fail(run):
        run.set_status("failed", cause="no luck")
        return 3

    codes, _, _ = train_all(fail, "experiment=toy_rlhf", "ppo.kl_coef=0.1,0.2")
    assert codes == [3, 3, 3, 3]
    folders = [path.parent.parent.name for path in Path("outputs").glob("*/*/config.yaml")]
    assert len(folders) == 1


@pytest.mark.slow
def test_a_signal_is_handed_on_and_nothing_more_starts(train_all):
    def wait(run):
        run.set_status("running")
        signal.signal(signal.SIGTERM, lambda *_: (run.set_status("interrupted"), os._exit(143)))
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)

    codes, recorder, signals = train_all(wait, "trainer=sft", "seed=0,1,2")
    assert signals == [signal.SIGTERM]
    assert codes == [143]
    assert recorder.ends[0][0] == "interrupted"


@pytest.mark.slow
def test_threads_of_a_forked_process_that_compute_first_find_their_pool():
    """Without a renewed pool 7 of 10 such processes end with "Invalid thread pool!"."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    import torch

    weights = [torch.ones(200_000) for _ in range(8)]

    def convert():
        together = threading.Barrier(len(weights))
        with ThreadPoolExecutor(len(weights)) as threads:
            list(threads.map(lambda weight: (together.wait(), weight.to(torch.float64)), weights))
        return 0

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    ended = [os.waitstatus_to_exitcode(os.waitpid(fork(convert), 0)[1]) for _ in range(8)]
    torch.set_num_threads(threads)
    assert ended == [0] * 8


@pytest.mark.slow
def test_a_child_of_a_dead_driver_saves_its_step(tmp_path):
    script = (
        "import os, signal, sys, time\n"
        "from runner.io.server_process import set_parent_death_signal\n"
        "def end(*_):\n    open(sys.argv[1], 'w').write('saved')\n    os._exit(0)\n"
        "parent, child = os.getpid(), os.fork()\n"
        "if child == 0:\n"
        "    signal.signal(signal.SIGTERM, end)\n"
        "    set_parent_death_signal(parent)\n    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "x")], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    deadline = time.monotonic() + 120
    while not (tmp_path / "x").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.communicate()
    assert (tmp_path / "x").exists()


CLUSTER = """
from runner.errors import EnvironmentFault, Fault, FolderError
from runner.launch.plan import state_of
from runner.run import Run

def cluster(folder, *, partition, num_processes=1, debug=False):
    if partition == "none":
        raise EnvironmentFault(Fault("launcher.partition", "no such partition"))
    if partition == "taken":
        raise FolderError(Fault("launcher.partition", "held by nobody that can be found"))
    Run(folder).set_status("queued", queued={"cluster": 7})
    print(state_of(folder), num_processes, Run(folder).status()["queued"])
    Run(folder).set_status("finished")
    return 0
"""


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [(), ("-m", "seed=0,1"), ("launcher.timeout_seconds=60",)], ids=["one", "sweep", "late"]
)
def test_another_launcher_needs_its_file_and_its_function(tmp_path, monkeypatch, capfd, kind):
    (tmp_path / "mine.py").write_text(CLUSTER)
    (tmp_path / "conf" / "launcher").mkdir(parents=True)
    keys = "num_processes: 8\njobs: 2\ntimeout_seconds: null\ndevices: []\n"
    (tmp_path / "conf" / "launcher" / "cluster.yaml").write_text(
        f"_target_: mine.cluster\npartition: none\n{keys}"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(pool, "warm_up", lambda runs: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    words = [
        *kind,
        "--config-dir",
        "conf",
        "launcher=cluster",
        "allow=[mine]",
        "trainer=sft",
        "trainer.args.fsdp=true",
    ]
    assert door.main([*words, "launcher.partition=taken"]) == 4
    assert door.main(words) == 5
    assert door.main([*words, "launcher.partition=long"]) == 0
    shown = capfd.readouterr()
    told = (
        shown.out
        + shown.err
        + "".join(path.read_text() for path in Path("outputs").glob("*/*/log.txt"))
    )
    assert "no such partition" in told
    assert "queued 8 {'cluster': 7}" in told
    assert "Traceback" not in told


# --- Devices, threads, progress -----------------------------------------------------------------


def test_each_of_several_jobs_sees_its_own_device_and_its_share_of_the_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert visible_devices() == ["4", "5", "GPU-7"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    settings = settings_of(LauncherPart(jobs=3))
    import torch

    threads = torch.get_num_threads()
    environments = []
    for slot in range(3):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-7")
        confine(slot, settings, Experiment())
        environments.append((os.environ["CUDA_VISIBLE_DEVICES"], torch.get_num_threads()))
    torch.set_num_threads(threads)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environments == [("4", 2), ("5", 2), ("GPU-7", 2)]
    confine(0, settings_of(LauncherPart(jobs=1, devices=[3, 1])), Experiment())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert "OMP_NUM_THREADS" not in os.environ
    assert settings_of(LauncherPart(jobs=2, devices=[3, 1])).devices == ["3", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    confine(0, settings_of(LauncherPart(jobs=2, devices=[])), Experiment())
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert torch.get_num_threads() == threads
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices() == []


@pytest.mark.slow
def test_a_single_process_uses_one_device_and_reports_the_others(monkeypatch, capsys):
    environments = []
    monkeypatch.setattr(
        start_runs,
        "launch",
        lambda *_: environments.append(os.environ["CUDA_VISIBLE_DEVICES"]) or 0,
    )
    note = "note      2 GPUs here, 1 used (cuda:0); launcher.num_processes=2 uses both"
    for words, shown in (
        ([], "6"),
        (["launcher.num_processes=2"], "6,7"),
        (["launcher.devices=[7]"], "7"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
        assert (note in said(capsys, "trainer=sft", *words)) == (shown == "6")
        assert environments.pop() == shown
    run = next(Path("outputs").glob("*/*/config.yaml")).parent
    monkeypatch.setattr(
        "runner.command.train.train",
        lambda *_: environments.append(os.environ["CUDA_VISIBLE_DEVICES"]),
    )
    for rank, shown in (({}, "6"), ({"LOCAL_RANK": "1"}, "6,7")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
        for name, value in rank.items():
            monkeypatch.setenv(name, value)
        assert worker.work(run) == 0
        assert environments.pop() == shown


@pytest.mark.slow
def test_each_job_has_a_device_for_each_of_its_processes(monkeypatch, capsys):
    words = ("trainer=sft", "seed=0,1", "launcher.num_processes=2", "name=sweep")
    runs = list(itertools.chain(*jobs(*words)))
    settings = settings_of(LauncherPart(jobs=2, devices=range(5)), runs)
    environments = []
    for slot in range(2):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
        confine(slot, settings, runs[slot].experiment)
        environments.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert environments == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    printed = said(capsys, "-m", *words, "launcher.jobs=2", code=2)
    assert "2 x 2 processes" in printed
    assert "3 devices" in printed
    assert "launcher.jobs=1" in printed
    assert "launcher.num_processes=3" in said(
        capsys, "trainer=sft", "launcher.num_processes=4", code=2
    )
    assert not Path("outputs").exists()


class Terminal:
    """A terminal that keeps every picture."""

    def __init__(self, tty):
        self.tty = tty
        self.text = ""

    def isatty(self):
        return self.tty

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_is_a_picture_on_a_terminal_and_events_in_a_log(monkeypatch):
    tasks = tasks_of(jobs("trainer=sft", "seed=0,1,2", "name=sweep"))
    run = open_run(tasks[0].composed.cfg, tasks[0].composed.overrides)
    run.set_status("running", step=3, max_steps=9)
    run.metrics.write_text('{"step": 1, "loss": 1}\n{"step": 3, "loss": 0.5}\n{"step": 4, "lo')
    for tty in (True, False):
        out = Terminal(tty)
        show = LiveProgress(Plan(tasks, {"seed": 3}), 2, out)
        show.started(tasks[0])
        show.ended(tasks[1], "finished", seconds=10)
        show.next = 0
        show.tick([(tasks[0], 4.0)], waiting=1)
        show.ended(
            tasks[2],
            "failed",
            "data\n  dataset\n    found     0 rows\n    type      more",
            seconds=2,
        )
        text = COLOUR.sub("", out.text)
        assert "progress  1 of 3 finished, 1 running, about 8 s left" in text
        assert "finished  seed-1  10 s\n" in text
        assert "failed    seed-2  dataset: 0 rows\n" in text
        assert ("\x1b[32mfinished" in out.text) == ("\x1b[31mfailed" in out.text) == tty
        assert ("step 3/9  loss 0.5" in out.text) == tty == ("\x1b[" in out.text)
        assert ("start     seed-0" in out.text) != tty
    assert one_line("", heading=False) == "no cause was recorded"


# --- The public command -------------------------------------------------------------------------

CHAOS = """
import os, signal, sys
from transformers import TrainerCallback


class Chaos(TrainerCallback):
    def __init__(self, job: int):
        self.job = job

    def on_step_begin(self, args, state, control, **kwargs):
        if os.path.exists("healed"):
            return
        if self.job == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.job == 2:
            sys.exit(0)
"""


@pytest.mark.slow
def test_a_sweep_in_chaos_finishes_the_healthy_jobs_and_then_exactly_the_others(runner):
    (runner.folder / "chaos.py").write_text(CHAOS)
    chaos = (
        "allow=[chaos]",
        "callback.chaos._target_=chaos.Chaos",
        "callback.chaos.job=range(0,3)",
    )
    words = ("-m", *chaos, *QUICK, "launcher.jobs=2", "name=chaos")
    done = runner(*words, code=5)
    assert "1 of 3 runs finished" in done.stdout
    printed = {
        line.split()[1]: line
        for line in done.stdout.splitlines()
        if line.startswith("failed    chaos.job-")
    }
    wanted = {1: "SIGKILL", 2: "sys.exit(0)"}
    for job, why in wanted.items():
        assert why in printed[f"chaos.job-{job}"]
    assert len(printed) == 2
    (runner.folder / "healed").touch()
    again = runner(*words)
    assert "3 of 3 runs finished" in again.stdout
    assert "2 failed, to try again, 1 finished" in again.stdout
    starts = Counter(
        read_json(folder / "manifest.json")["starts"] for folder in runner.runs("chaos")
    )
    assert starts == {1: 1, 2: 2}


@pytest.mark.dear("two trainings, begun up to three times")
@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_running_loses_nothing_and_doubles_nothing(runner):
    steps = (
        "trainer.args.max_steps=4",
        "trainer.args.save_steps=2",
        "trainer.args.logging_steps=1",
    )
    words = ("-m", "seed=0,1", *QUICK[:3], *steps, "launcher.jobs=2", "name=kill")
    # Killed when the first checkpoint is there, and when the first model is.
    for sign in ("checkpoints/*/seal.json", "model/config.json"):
        driver = runner.start(*words)
        while not list(runner.folder.glob(f"outputs/kill/*/{sign}")):
            assert not driver.ended()
            time.sleep(0.02)
        driver.send(signal.SIGKILL)
        assert driver.wait().returncode == -signal.SIGKILL
        deadline = time.monotonic() + 120
        while any(held(Run(folder)) for folder in runner.runs("kill")):
            assert time.monotonic() < deadline, (
                "a run is still held 120 s after its driver was killed"
            )
            time.sleep(0.1)
    assert "2 of 2 runs finished" in runner(*words).stdout
    for folder in runner.runs("kill"):
        lines = [
            json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        assert lines == list(range(5))


@pytest.mark.slow
def test_two_sweeps_that_share_jobs_share_the_work(runner):
    words = ("-m", *QUICK, "name=shared")
    first = "seed=0,1"
    two = "seed=1,0,2"
    drivers = [runner.start(*words, first), runner.start(*words, two)]
    ends = [driver.wait() for driver in drivers]
    assert [end.returncode for end in ends] == [0, 0], ends
    assert "2 of 2 runs finished" in ends[0].stdout
    assert "3 of 3 runs finished" in ends[1].stdout
    starts = [read_json(folder / "manifest.json")["starts"] for folder in runner.runs("shared")]
    assert starts == [1] * 3


@pytest.mark.dear("three trainings, and a search that looks for them again")
@pytest.mark.slow
@pytest.mark.skipif(
    not find_spec("hydra_plugins.hydra_optuna_sweeper"), reason="needs the extra optuna"
)
def test_a_search_by_optuna_survives_failures_and_goes_on_from_the_trials_there_are(runner):
    short = (*QUICK[:3], "trainer.args.max_steps=1", "name=search", "objective=eval_loss")
    axes = (
        "kl_coef=interval(0.1,0.5)",
        "learning_rate=choice(1e-4,1e-3)",
        "trainer.args.max_length=choice(8,512)",
    )
    words = (
        "-m",
        "trainer=dpo",
        "hydra/sweeper=optuna",
        *short,
        *axes,
        "hydra.sweeper.sampler.seed=1",
    )
    words = (
        *words,
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.direction=minimize",
        "hydra.sweeper.max_failure_rate=1",
    )
    first = runner(*words, "hydra.sweeper.n_trials=2", code=2)
    states = Counter(Run(folder).status()["state"] for folder in runner.runs("search"))
    assert states["finished"]
    assert states["failed"]
    assert first.stdout.count("failed    outputs") == states["failed"]
    assert f"{states['finished']} of {states.total()} runs finished" in first.stdout
    again = runner(*words, "hydra.sweeper.n_trials=3", code=2)
    assert again.stdout.count("nothing was changed") >= states["finished"]
    assert len(runner.runs("search")) > states.total()


@pytest.mark.slow
@pytest.mark.skipif(
    not find_spec("hydra_plugins.hydra_joblib_launcher"), reason="needs the extra joblib"
)
@pytest.mark.dear("three trainings")
@pytest.mark.grid(1)
@pytest.mark.parametrize("at_once", [1, 2])
def test_hydras_joblib_launcher_trains_runs_like_ours(runner, at_once):
    words = (
        "-m",
        "trainer.args.max_length=8,512,1024",
        *QUICK,
        "name=joblib",
        "hydra/launcher=joblib",
        f"hydra.launcher.n_jobs={at_once}",
    )
    # The job that fails keeps none of the others from its turn.
    done = runner(*words, code=2)
    assert "report    outputs/joblib" in done.stdout
    assert done.stdout.endswith("2 of 3 runs finished\n")
    states = sorted(Run(folder).status()["state"] for folder in runner.runs("joblib"))
    assert states == ["failed", "finished", "finished"]
    assert "2 finished" in runner(*words, "--dry-run").stdout


def test_children_get_their_grace_period_before_they_are_killed():
    for launcher in (
        {},
        {"timeout_seconds": 5},
        {"grace_seconds": 400, "num_processes": 2},
        {"num_processes": 4},
        {"num_processes": 2, "num_machines": 3},
    ):
        part = LauncherPart.read(launcher)
        inner = processes.grace_of(part)
        outer = processes.patience_with(part)
        assert outer - inner >= (processes.MARGIN if launcher.get("num_processes") else 0)
    assert slurm.Slurm().signal_seconds > processes.grace_of(LauncherPart()) + processes.MARGIN


def test_a_signal_without_a_name_is_reported_by_number():
    assert processes.describe_exit(-35) == "was killed by signal 35"


def test_a_tokenizer_that_is_elsewhere_or_brings_code_is_left_to_the_runs(monkeypatch):
    built = []
    monkeypatch.setattr(warming, "build", built.append)
    warming._try_template.cache_clear()
    node = {"_target_": warming.LOADER, "path": "runner://model/tiny"}
    others = [node | {"trust_remote_code": True}, node | {"path": "org/name"}, {"path": "a"}]
    for tokenizer in (*others, node, node):
        warming._try_template(canonical_text(tokenizer))
    warming._try_template.cache_clear()
    assert built == [node]
