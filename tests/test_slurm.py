"""``launcher=slurm`` submits each run once.

On a stand-in for its commands, and once on Slurm itself.
"""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.command import cancel
from runner.io.files import read_json
from runner.launch import queue, slurm
from runner.run.find import find_folders
from runner.run.record import read_run

sys.path.append(str(Path(__file__).parent / "fault"))

import slurm as real

STAND_IN = Path(__file__).parent / "slurm_stand_in"
GOLDEN = Path(__file__).parent / "golden" / "slurm.sh"
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
WORDS = ("metric=none", "launcher=slurm", "launcher.gpus_per_node=0")


class Cluster:
    """The stand-in with its queue, and the command in this process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "bin" / "worker"
        for name in ("bin", "queue"):
            (folder / name).mkdir()
        for name in (*COMMANDS, "worker"):
            source = STAND_IN / ("worker.py" if name == "worker" else "commands.py")
            (folder / "bin" / name).write_text(f"#!{sys.executable} -SE\n{source.read_text()}")
            (folder / "bin" / name).chmod(0o755)

    def __call__(self, *words: str) -> int:
        return main([*self.words(*words)])

    def words(self, *words: str) -> list[str]:
        """Those of the command, for runs called one unless they say otherwise."""
        named = any(word.startswith("name=") for word in words)
        return [*WORDS, f"launcher.python={self.python}", *words, *(() if named else ("name=one",))]

    def start(self, *words: str, **settings) -> subprocess.Popen:
        """Start the command in a process of its own that hears SIGHUP even if the tests run under
        nohup.
        """
        command = [sys.executable, "-m", "runner", *self.words(*words)]
        heard = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=heard, **settings
        )

    @property
    def calls(self) -> list[str]:
        """The words of each sbatch that took a job."""
        path = self.folder / "queue" / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def mode(self, text: str) -> None:
        (self.folder / "queue" / "mode").write_text(text)

    @property
    def jobs(self) -> list[str]:
        """The jobs in the queue."""
        return [path.name for path in (self.folder / "queue").glob("*_*") if not path.suffix]


def until(is_so, command: subprocess.Popen | None = None) -> None:
    """Wait for something that the cluster or a command does, as long as the command lives."""
    deadline = time.monotonic() + 600
    while not is_so():
        assert command is None or command.poll() is None, "the command has ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_STAND_IN", str(tmp_path / "queue"))
    monkeypatch.setattr(queue, "PAUSE", 0.1)
    monkeypatch.setattr(queue, "POLL", 0.1)
    cluster = Cluster(tmp_path)
    yield cluster
    subprocess.run(["scancel", *cluster.jobs], check=True)
    until(lambda: not cluster.jobs)


def runs_of(name: str = "one") -> list:
    return [read_run(folder) for folder in find_folders(Path("outputs", name))]


def states(name: str = "one") -> list[str]:
    return [run.state for run in runs_of(name)]


@pytest.mark.slow
def test_the_script_is_shown_as_it_would_be_submitted_without_slurm(
    tmp_path, monkeypatch, capsys, pytestconfig
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    keys = {
        "time": "1-12",
        "partition": "gpu",
        "num_processes": 8,
        "jobs": 2,
        "cpus_per_task": 32,
        "mem": "200G",
    }
    keys |= {
        "setup": "[module load cuda, source venv/bin/activate]",
        "parameters": "{exclusive: true, overcommit: false, comment: a b}",
    }
    words = [f"launcher.{key}={value}" for key, value in keys.items()]
    staged = [
        "experiment=toy_rlhf",
        "sft.seed=0,1",
        "ppo.seed=0,1",
        "launcher=slurm",
        "launcher.python=python",
    ]
    assert main(["-m", *staged, *words, "--dry-run"]) == 0
    shown = capsys.readouterr().out.partition("\n\n")[2]
    shown = re.sub(r"\.[0-9a-f]{8}\b", ".<digest>", shown)  # of the working folder, too
    if pytestconfig.getoption("golden"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text()
    assert not Path("outputs").exists()
    subprocess.run(["/bin/bash", "-n"], input=shown, text=True, check=True)


@pytest.mark.slow
def test_a_run_is_submitted_once_and_its_command_shows_progress(cluster, capsys):
    cluster.mode("held")
    assert cluster() == 0
    (run,) = runs_of()
    assert run.status["state"] == "queued"
    assert run.status["queued"] == {"slurm": "1_0"}
    stdout = capsys.readouterr().out
    assert "squeue --job=1" in stdout
    assert "python -m runner cancel outputs/one" in stdout
    assert cluster() == 0
    assert f"queued    {run}: 1_0 PENDING (Priority)" in capsys.readouterr().out
    subprocess.run(["scancel", "1_0"], check=True)  # by hand
    cluster.mode("")
    assert cluster() == 0
    assert len(cluster.calls) == 2
    stdout = capsys.readouterr().out
    assert f"gone      {run}" in stdout
    assert "squeue --job=2" in stdout
    until(lambda: not cluster.jobs)
    assert cluster() == 0
    assert "finished" in capsys.readouterr().out
    assert len(cluster.calls) == 2
    assert not [
        path
        for path in Path("outputs/one").iterdir()
        if path.name not in (".queue", run.folder.name)
    ]
    run.run.set_status("queued", queued={"another": "7"})
    assert cluster() == 0 and len(cluster.calls) == 2  # it is in the queue of another cluster
    run.run.set_status("queued", queued="7")
    assert main(["cancel", "outputs/one"]) == 0
    assert "no job" in capsys.readouterr().out
    assert cluster() == 4
    assert "status.json: it cannot be read" in capsys.readouterr().out
    assert len(cluster.calls) == 2


@pytest.mark.slow
def test_only_some_of_many_runs_are_listed_and_folders_are_quoted(cluster, capsys, monkeypatch):
    monkeypatch.setattr(queue, "MAX_LINES", 2)
    monkeypatch.setattr(cancel, "MAX_LINES", 2)
    cluster.mode("held")
    words = ("-m", "seed=range(5)", "name=a b")
    assert cluster(*words) == 0
    assert cluster(*words) == 0
    printed = capsys.readouterr().out
    assert printed.count("queued    outputs") == 2
    assert "and 3 more" in printed
    assert "runner cancel 'outputs/a b'\n" in printed
    assert main(["cancel", "outputs/a b"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("cancelled outputs") == 2
    assert "and 3 more" in printed
    assert not cluster.jobs


@pytest.mark.slow
def test_a_sweep_is_an_array_and_what_failed_is_submitted_again(cluster, capsys):
    Path("codes").write_text("2 0")
    assert cluster("-m", "seed=0,1,2", "launcher.jobs=2") == 0
    assert len(cluster.calls) == 1
    until(lambda: not cluster.jobs)
    assert states() == ["failed"] * 3
    assert cluster("-m", "seed=1,2,3", "launcher.wait=true") == 2
    stdout = capsys.readouterr().out
    assert stdout.count("a fault of its own; it is submitted again") == 2
    assert "finished  seed-1" in stdout
    assert "failed    seed-3  trainer: a fault of its own" in stdout
    assert "2 of 3 runs finished" in stdout
    assert "page" in stdout
    assert cluster("-m", "seed=0,1,2", "launcher.wait=true") == 0
    assert len(cluster.calls) == 3
    assert cluster("-m", "seed=0,1,2") == 0
    assert len(cluster.calls) == 3


@pytest.mark.slow
def test_a_stage_waits_for_the_one_before_and_does_not_begin_where_that_has_failed(cluster, capsys):
    words = ("-m", "experiment=toy_rlhf", "sft.seed=0,1", "name=three")
    Path("codes-three-sft").write_text("2 0")
    assert cluster(*words, "launcher.wait=true") == 2
    assert [line.rpartition("/")[0] for line in cluster.calls] == [
        "--parsable outputs/three-sft/.queue",
        "--parsable --dependency=aftercorr:1 outputs/three-reward_model/.queue",
        "--parsable --dependency=aftercorr:2 outputs/three-ppo/.queue",
    ]
    stdout = capsys.readouterr().out
    assert stdout.count("not begun") == 4
    assert "0 of 2 staged runs finished" in stdout
    assert states("three-ppo") == ["interrupted"] * 2
    assert cluster(*words, "launcher.wait=true") == 0
    assert states("three-ppo") == states("three-sft") == ["finished"] * 2


@pytest.mark.slow
def test_a_job_goes_back_into_the_queue_until_it_has_ended_but_no_more_often_than_it_may(cluster):
    Path("codes").write_text("143 140 143 0")
    assert cluster("launcher.max_requeues=1", "launcher.wait=true") == 143
    (run,) = runs_of()
    assert run.status["calls"] == 2
    assert cluster("launcher.wait=true") == 0
    assert read_json(run.folder / "status.json")["calls"] == 4
    assert len(cluster.calls) == 2


@pytest.mark.slow
def test_a_submission_that_ends_badly_is_looked_for_before_it_is_repeated(
    cluster, capsys, monkeypatch
):
    cluster.mode("held late")
    assert cluster() == 5
    assert "Socket timed out" in capsys.readouterr().err
    assert cluster() == 0
    assert len(cluster.calls) == 1
    assert "1_0 PENDING" in capsys.readouterr().out
    cluster.mode("held mute")
    assert cluster("seed=1") == 5
    assert "no job number in the answer" in capsys.readouterr().err
    assert sorted(states()) == ["created", "queued"]
    # a run of the same name is not mistaken for the one above
    with monkeypatch.context() as elsewhere:
        Path("elsewhere").mkdir()
        elsewhere.chdir("elsewhere")
        assert cluster() == 5
        assert states() == ["created"]
    cluster.mode("held garbled")
    assert cluster() == 5
    assert "today the cluster is closed" in capsys.readouterr().err
    cluster.mode("held hangs")
    monkeypatch.setattr(slurm, "LIMIT", 0.5)
    assert cluster() == 5
    assert "no answer in 0.5 s" in capsys.readouterr().err
    assert len(cluster.calls) == 1


@pytest.mark.slow
def test_ctrl_c_cuts_off_no_submission(cluster):
    cluster.mode("held waits")
    started = cluster.start(start_new_session=True)
    until(lambda: Path("outputs/one").exists() and "queued" in states(), started)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal sends it, to the whole group
    Path("queue/go").touch()
    started.communicate()
    assert started.returncode == 130
    assert cluster.jobs == ["1_0"]
    (run,) = runs_of()
    assert run.status["queued"] == {"slurm": "1_0"}


@pytest.mark.slow
def test_two_commands_and_one_that_is_killed_submit_nothing_twice(cluster, capsys):
    cluster.mode("held slow")
    both = [cluster.start(), cluster.start()]
    assert [bool(process.communicate()[0]) + process.returncode for process in both] == [1, 1]
    assert len(cluster.calls) == 1
    cluster.mode("held slow kills")
    killed = cluster.start("seed=1")
    assert not killed.communicate()[0]
    assert killed.returncode == -signal.SIGKILL
    cluster.mode("held slow")
    Path("queue/asked").unlink()
    killed = cluster.start("seed=2")
    until(Path("queue/asked").exists, killed)
    killed.kill()  # before sbatch has answered, which keeps the lock
    killed.communicate()
    assert cluster("-m", "seed=1,2") == 0
    assert len(cluster.calls) == 3
    stdout = capsys.readouterr().out
    assert "2_0 PENDING" in stdout
    assert "3_0 PENDING" in stdout


@pytest.mark.slow
def test_queued_and_running_jobs_can_be_cancelled(cluster, capsys):
    cluster.mode("held")
    assert cluster("-m", "seed=0,1") == 0
    assert main(["cancel", "outputs/one"]) == 0
    assert capsys.readouterr().out.count("cancelled ") == 2
    assert states() == ["interrupted"] * 2
    assert not cluster.jobs
    assert main(["cancel", "one"]) == 0
    assert capsys.readouterr().out.count("no job ") == 2
    cluster.mode("")
    Path("codes").write_text("sleep")
    waits = cluster.start("seed=2", "launcher.wait=true")
    until(lambda: "2_0" in cluster.jobs and "RUNNING" in Path("queue/2_0").read_text(), waits)
    waits.send_signal(signal.SIGINT)
    assert "cancelled 1" in waits.communicate()[0]
    assert waits.returncode == 130
    assert states() == ["interrupted"] * 3
    waits = cluster.start("seed=3", "launcher.wait=true")
    # soon it has begun
    until(lambda: "3_0" in cluster.jobs and {"queued", "running"} & set(states()), waits)
    waits.send_signal(signal.SIGHUP)  # the terminal is closed
    assert waits.communicate()
    assert waits.returncode == 143
    assert cluster.jobs == ["3_0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["launcher.partition=nope"], 5, "invalid partition specified: nope"),
        (["launcher.time=1h"], 2, "launcher.time=24:00:00"),
        (["launcher.time=2"], 2, "launcher.time=3"),
        (["launcher.parameters.array=3"], 2, "the runner sets this option itself"),
        (["launcher.parameters.clusters=west"], 2, "the runner sets this option itself"),
        (["launcher.signal_seconds=70000", "launcher.time=UNLIMITED"], 2, "at most 65535"),
        (["launcher.max_requeues=-1"], 2, "at least 0"),
        (["launcher.grace_seconds=300"], 2, "launcher.signal_seconds=315"),
        (["launcher.partion=gpu"], 2, "launcher.partition=gpu"),
        (
            ["launcher.devices=[1]", "launcher.timeout_seconds=60"],
            2,
            "leave launcher.timeout_seconds out",
        ),
        (["-m", "seed=0,1", "hydra/launcher=joblib"], 2, "launcher=local"),
    ],
)
def test_impossible_submissions_are_refused(words, code, message, cluster, capsys):
    assert cluster(*words) == code
    error = capsys.readouterr().err
    assert message in error
    assert "found" in error
    assert "type" in error
    assert not cluster.calls
    assert "queued" not in states() if Path("outputs/one").exists() else True


@pytest.mark.slow
def test_a_link_in_place_of_our_folder_or_another_command_that_submits_is_not_overridden(
    cluster, capsys, monkeypatch
):
    monkeypatch.setattr(queue, "PATIENCE", 0.2)
    with queue.locked_group(Path("outputs/one")):
        assert cluster() == 5
        assert "it submits nothing twice" in capsys.readouterr().err
    Path("elsewhere").mkdir()
    Path("outputs/one/.queue").rename("outputs/one/.was")
    Path("outputs/one/.queue").symlink_to(Path("elsewhere").absolute())
    assert cluster() == 4
    assert "a link to" in capsys.readouterr().err
    assert not cluster.calls
    assert not list(Path("elsewhere").iterdir())


@pytest.mark.slow
def test_lines_of_the_shell_in_a_file_need_a_launcher_that_was_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("experiment", "launcher"):
        Path("conf", folder).mkdir(parents=True)
    lines = 'setup: [touch here]\nqos: "a\'\\ntouch there #"\nparameters: {"b\\ntouch there": 1}\n'
    Path("conf/launcher/theirs.yaml").write_text(f"defaults: [slurm, _self_]\n{lines}")
    head = "# @package _global_\ndefaults: [override /launcher: slurm]\n"
    Path("conf/experiment/theirs.yaml").write_text(f"{head}launcher: {{setup: [touch here]}}\n")
    words = ["--config-dir=conf", "--dry-run"]
    for typed in ([], ["launcher=slurm"]):  # the experiment is not what was typed
        assert main([*words, "experiment=theirs", *typed]) == 2
        assert 'launcher.setup="[touch here]"  (if you trust' in capsys.readouterr().err
    assert main([*words, "experiment=theirs", "launcher.setup=[touch here]"]) == 0
    assert "\ntouch here\n" in capsys.readouterr().out
    assert main([*words, "launcher=theirs"]) == 0
    assert "\ntouch here\n" in (stdout := capsys.readouterr().out)
    assert "\ntouch there" not in stdout
    assert " touch there" in stdout


@pytest.mark.slow
def test_a_machine_without_slurm_says_so_at_once(cluster, capsys, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setenv("PATH", "/nowhere")
        assert cluster() == 5
    assert capsys.readouterr().err.count("is not installed here") == 3
    assert not Path("outputs").exists()


@pytest.mark.dear("a real Slurm, and three trainings")
@pytest.mark.grid(0)
@pytest.mark.slow
@pytest.mark.skipif(bool(real.lacking()), reason=real.lacking() or "there is one")
def test_slurm_itself_starts_a_run_again_that_it_has_put_back(runner):
    """All cases: ``python tests/fault/slurm.py``."""
    with real.running(runner.folder) as cluster:
        runner.environment |= cluster.environment
        cluster.command = lambda *words: runner(*words).stdout
        assert (
            real.put_back(cluster)
            == "saved at its step, went on, and its bits are those of an undisturbed run"
        )
