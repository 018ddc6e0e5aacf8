"""Environments that cannot be had are refused before a start, with what to type."""

import socket
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from runner.validate import environments
from runner.validate.context import ValidationContext
from runner.validate.risks import risks_of


@pytest.fixture
def faults_of_id(monkeypatch, tmp_path):
    """A function that gives the faults of an id, where verifiers and two packages are installed."""
    for name in ("verifiers", "opened_tasks", "hidden_tasks"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    packages = {
        "my-tasks": ["verifiers>=0.4"],
        "Math.Tasks": ["numpy", "verifiers"],
        "quantum": ["verifiers-core"],
        "trainer": ["verifiers<0.5,>=0.4; extra == 'verifiers'"],
        "numpy": None,
    }
    installed = [SimpleNamespace(name=name, requires=needs) for name, needs in packages.items()]
    monkeypatch.setattr(metadata, "distributions", lambda: installed)

    def faults(name):
        node = {"_target_": environments.VERIFIERS, "id": name}
        context = ValidationContext({"environment": node}, allow=["opened_tasks"])
        return list(environments.find_environment_id_faults(context))

    return faults


@pytest.mark.parametrize(
    "name",
    [
        "my-tasks",
        "my_tasks",
        "org/my-tasks@1.2",
        "opened-tasks",
        "opened_tasks.part",
        environments.SHIPPED,
    ],
)
def test_an_installed_or_an_opened_environment_passes(faults_of_id, name):
    assert faults_of_id(name) == []


@pytest.mark.parametrize(
    ("name", "found", "fix"),
    [
        ("trainer", "not installed", "pip install"),
        ("my-task", "not installed", "environment.id=my_tasks"),
        ("quantum", "not installed", "pip install"),
        ("hidden_tasks", "does not say", "'allow=[hidden_tasks]'"),
        ("hidden_tasks.part", "does not say", "'allow=[hidden_tasks]'"),
        ("runner.generate.toy", "not installed", f"environment.id={environments.SHIPPED}"),
        ("harbor", "a container", "environment=openenv"),
        ("nemo-gym", "uv", "environment=openenv"),
    ],
)
def test_another_environment_is_refused(faults_of_id, name, found, fix):
    (fault,) = faults_of_id(name)
    assert found in fault.found
    assert fix in fault.fix


def test_the_library_itself_is_asked_for_first(monkeypatch):
    monkeypatch.setattr(environments, "find_spec", lambda name: None)
    context = ValidationContext({"environment": {"_target_": environments.VERIFIERS, "id": "x"}})
    assert list(environments.find_environment_id_faults(context)) == []


def server_faults(**node):
    return list(
        environments.find_server_faults({"environment": {"_target_": environments.OPENENV, **node}})
    )


def test_a_server_that_cannot_be_had(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert server_faults(url=url) == []
    (fault,) = server_faults(url=url)
    assert "nothing answers" in fault.found
    # Another machine may see it where this one does not.
    assert server_faults(url="http://10.255.255.1:8000") == []
    (fault,) = server_faults()
    assert "no command" in fault.found
    (fault,) = server_faults(command="no-such-program --port PORT")
    assert fault.found == "no-such-program, which is no program"
    assert server_faults(command=[sys.executable, "server.py", "PORT"]) == []
    monkeypatch.setenv("PATH", "")
    assert server_faults(command="python server.py PORT") == []


@pytest.mark.parametrize(
    "key",
    [
        "environment.command",
        "environment.config.id",
        "environment.config.agent.harness.id",
        "environment.config.taskset.task.rewards.short.fn",
        "environment.config.user.client",
    ],
)
def test_what_runs_or_sends_something_must_be_typed(key):
    assert any(risk.is_risky("x") for risk in risks_of(key))
