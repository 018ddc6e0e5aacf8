"""The queue on Ray: submissions, what is left for later, reports of an end.

And Ray itself, if installed.

All of it with Ray itself: ``tests/fault/ray_cluster.py``.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.__main__ import main
from runner.config.composition import compose
from runner.errors import ConfigError, EnvironmentFault
from runner.launch import ray as queue
from runner.launch.queue import Place
from runner.run import Run, open_run

SHORT = (
    "trainer=sft",
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
    "metric=none",
    "trainer.args.max_steps=2",
)
LACKING = "ray is not installed (pip install 'ray>=2.40,<3')"


class StandIn(SimpleNamespace):
    """A stand-in for Ray: its nodes, and actors by name, each with the error that ended it."""

    def __init__(self, *nodes, installed=True):
        self.given = {}
        self.ends = {}
        self.exceptions = SimpleNamespace(RayError=RuntimeError)
        self.util = SimpleNamespace(
            list_named_actors=lambda: [name for name in self.given if name not in self.ends]
        )
        self.nodes = lambda: [{"Resources": node, "Alive": True} for node in nodes]
        self.is_initialized = lambda: installed

    def init(self, address, **settings):
        self.is_initialized = lambda: True

    def remote(self, **options):
        if options["max_restarts"] < -1:
            raise ValueError("max_restarts must be at least -1")

        def make(**settings):
            return SimpleNamespace(remote=lambda *words: self.made(**options | settings))

        return lambda actor: SimpleNamespace(options=make)

    def made(self, name, **arguments):
        self.given[name] = arguments
        return SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: name))

    def wait(self, ends, timeout):
        return [end for end in ends if end in self.ends], []

    def get(self, end):
        raise RuntimeError(self.ends[end])


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(queue, "ENDS", {})
    monkeypatch.setattr(sys, "stdout", sys.stdout)

    def be(*nodes, installed=True):
        stand_in = StandIn(*nodes, installed=installed)
        monkeypatch.setitem(sys.modules, "ray", stand_in)
        return stand_in

    return be


def tasks_in(folder: Path, *names: str, after: str = "") -> list:
    """Tasks of which the last waits for the others if ``after`` is set."""
    tasks = []
    for name in names:
        (folder / name).mkdir()
        (folder / name / "config.yaml").write_text("format: 1\n")
        tasks.append(
            SimpleNamespace(
                folder=folder / name, after=(folder / after,) if after not in ("", name) else ()
            )
        )
    return tasks


def test_a_run_waits_for_what_it_builds_on_and_for_its_turn(cluster, tmp_path, capsys):
    ray = cluster({"CPU": 4.0})
    noted = []
    tasks = tasks_in(tmp_path, "sft", "dpo", after="sft")
    queue.Ray().submit(tasks, {}, lambda task, ticket: noted.append(ticket))
    assert noted == [*ray.given] == [str(tmp_path / "sft")]
    assert "submitted 1 to Ray\n" in capsys.readouterr().out
    Run(tmp_path / "sft").set_status("finished")
    places = {tmp_path / "sft": Place(noted[0], "")}
    queue.Ray(jobs=1).submit(tasks[1:], places, lambda task, ticket: None)
    assert len(ray.given) == 1
    ray.ends[noted[0]] = "killed by `ray.kill`"
    queue.Ray(jobs=1, wait=False, num_processes=2).submit(
        tasks[1:], places, lambda task, ticket: None
    )
    options = ray.given[str(tmp_path / "dpo")]
    assert (options["lifetime"], options["num_cpus"], options["num_gpus"]) == ("detached", 2, 0)


def test_a_run_gets_a_gpu_for_each_process_if_there_are_gpus(cluster, tmp_path):
    ray = cluster({"CPU": 4.0}, {"CPU": 4.0, "GPU": 2.0})
    queue.Ray(num_processes=2, num_cpus=0.5).submit(
        tasks_in(tmp_path, "one"), {}, lambda task, ticket: None
    )
    [options] = ray.given.values()
    assert (
        options["lifetime"],
        options["num_cpus"],
        options["num_gpus"],
        options["max_restarts"],
    ) == (
        None,
        0.5,
        2,
        10,
    )


def test_resources_of_no_node_are_refused_here_and_noted_on_a_growing_cluster(
    cluster, tmp_path, capsys
):
    tasks = tasks_in(tmp_path, "one")
    noted = []
    wanted = queue.Ray(num_gpus=8, resources={"big_disk": 1})
    cluster({"CPU": 4.0, "GPU": 4.0}, {"CPU": 4.0, "GPU": 4.0}, installed=False)
    with pytest.raises(EnvironmentFault, match="needs GPU: 8, big_disk: 1"):
        wanted.submit(tasks, {}, lambda task, ticket: noted.append(ticket))
    assert not noted
    cluster({"CPU": 4.0})
    wanted.submit(tasks, {}, lambda task, ticket: noted.append(ticket))
    assert noted
    assert "where no node has GPU: 8, big_disk: 1 now" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="max_restarts must be at least -1"):
        queue.Ray(max_restarts=-2).submit(tasks, {}, lambda task, ticket: None)


def test_an_end_in_silence_is_recorded_and_one_that_was_asked_for_is_not(cluster, tmp_path):
    ray = cluster({"CPU": 4.0})
    tasks = tasks_in(tmp_path, "lost", "killed", "says")
    assert queue.Ray().look() == {}

    def note(task, ticket):
        Run(task.folder).set_status("queued")

    queue.Ray().submit(tasks, {}, note)
    assert [place.begun for place in queue.Ray().look().values()] == [False] * 3
    Run(tmp_path / "says").set_status("failed", cause="its own")
    ends = {
        "lost": "In its creation task:\nModuleNotFoundError: No module named 'runner'",
        "says": "died",
    }
    ray.ends |= {
        str(tmp_path / name): end
        for name, end in (ends | {"killed": "killed by `ray.kill`"}).items()
    }
    assert queue.Ray().look() == {}
    states = {task.folder.name: Run(task.folder).status() for task in tasks}
    assert [status["state"] for status in states.values()] == ["failed", "queued", "failed"]
    assert "No module named 'runner'" in states["lost"]["cause"]
    assert states["says"]["cause"] == "its own"


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("address", "typed", "is_asked"),
    [
        ("evil.example:6379", (), False),
        ("ray://evil.example:10001", (), False),
        ("evil.example://127.0.0.1", (), False),
        ("evil.example:6379", ("launcher.address=other.example:6379",), False),
        ("evil.example:6379", ("launcher.address=evil.example:6379",), True),
        ("127.0.0.1:6379", (), True),
        ("auto", (), True),
        (None, (), True),
    ],
)
def test_an_address_of_a_run_folder_is_reached_only_where_it_is_local_or_typed(
    address, typed, is_asked, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = []
    monkeypatch.setattr(queue.Ray, "check", lambda ray: asked.append(ray.address))
    monkeypatch.setattr(queue.Ray, "look", lambda ray: {})
    words_of_address = [] if address is None else [f"launcher.address='{address}'"]
    run = open_run(compose(["trainer=sft", "launcher=ray", *words_of_address]).cfg, [])
    assert main(["cancel", str(run), *typed]) == (0 if is_asked else 2)
    assert asked == ([address] if is_asked else [])
    if not is_asked:
        stderr = capsys.readouterr().err
        assert "launcher.address" in stderr
        assert f"launcher.address={address}" in stderr.replace("'", "")


@pytest.mark.slow
@pytest.mark.skipif(bool(find_spec("ray")), reason="ray is installed")
def test_without_ray_the_install_hint_and_the_dry_run_work(runner):
    words = (*SHORT, "launcher=ray", "name=one")
    assert "python -m runner.launch outputs/one/" in runner(*words, "--dry-run").stdout
    assert "pip install 'ray>=2.40,<3'  (the extra ray)" in runner(*words, code=5).stderr
    assert not runner.runs("one")
    assert "launcher.num_machines" in runner(*words, "launcher.num_machines=2", code=2).stderr


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ray"), reason=LACKING)
def test_ray_itself_trains_what_can_be_and_repeats_no_failure(runner):
    # 20 cuts the rows
    words = ("-m", *SHORT, "trainer.args.max_length=20,64", "launcher=ray", "name=two")
    said = runner(*words, code=2).stdout
    assert sorted(Run(run).status()["state"] for run in runner.runs("two")) == [
        "failed",
        "finished",
    ]
    assert "1 of 2 runs finished" in said
    assert "raylet" not in said
