"""A training in a notebook's cell, and the HTML of runs and of their table."""

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from laid import lay_run

import runner
from runner.command import _notebook, _python
from runner.command._notebook import Cell, find_cell
from runner.run import Run

LINES = [{"step": step, "loss": 1 / step, "remaining_seconds": 60.0} for step in (1, 2, 3)]


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, picture):
        self.shown.append(picture)


@pytest.fixture
def shown(monkeypatch):
    """What a stand-in for IPython's display is given, in the place of which it was shown."""
    pictures = []

    def display(picture, display_id):
        assert display_id
        pictures.append(picture)
        return Handle(pictures)

    ipython = ModuleType("IPython")
    events = SimpleNamespace(register=lambda *_: None)
    ipython.get_ipython = lambda: SimpleNamespace(kernel=None, events=events)
    ipython.version_info = (9, 0)  # which matplotlib asks for
    ipython.display = ModuleType("IPython.display")
    ipython.display.HTML = str
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return pictures


def test_there_is_a_cell_in_a_notebook_only(shown, monkeypatch):
    assert isinstance(find_cell([]), Cell)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: object())
    assert find_cell([]) is None  # IPython in a terminal
    monkeypatch.delitem(sys.modules, "IPython")
    assert find_cell([]) is None


@pytest.mark.slow
def test_lines_of_steps_are_drawn_and_others_are_printed(tmp_path, shown, monkeypatch, capsys):
    folder = lay_run(tmp_path / "mine" / "run", state="running", lines=LINES)
    monkeypatch.setattr(_notebook, "REFRESH_SECONDS", 3600)
    code = "print('run mine'); print('step 1/8 loss 1'); print('step 2/8 loss 2'); print('ends')"
    monkeypatch.setattr(_python, "python_words", lambda name: [sys.executable, "-c"])
    first = Run(tmp_path / "not begun yet")
    assert _python._call([code], Cell([Run(folder), first])) == (
        0,
        "run mine\nstep 1/8 loss 1\nstep 2/8 loss 2\nends\n",
    )
    assert capsys.readouterr().out == "run mine\nends\n"
    # One of the two lines, as they came at once, and the end.
    assert len(shown) == 2
    assert 'value="0.375"' in shown[0]
    assert "1:00 left" in shown[0]
    assert shown[0].count("<svg") == 1


def test_a_picture_that_fails_ends_nothing(tmp_path, shown, monkeypatch, capsys):
    folder = lay_run(tmp_path / "mine" / "run", state="running", lines=LINES)
    monkeypatch.setattr(_notebook, "to_cell_html", lambda run: 1 / 0)
    assert not Cell([Run(folder)]).takes("step 1/8")
    assert "no picture of the progress: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_shows_its_scores_and_curves_without_secrets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "not-to-be-seen-4711")
    lay_run(
        tmp_path / "outputs" / "mine" / "run",
        after={"eval_exact": 0.75, "eval_loss": 0.5},
        lines=[*LINES, {"step": 4, "loss": 0.1, "grad_norm": 2.0}],
        note="not-to-be-seen-4711",
    )
    (run,) = runner.runs()
    html = run._repr_html_()
    assert re.search(r"<td>eval_exact</td><td>0</td><td>0.75</td><td>\+0.75</td>", html)
    assert html.count("<figure") == html.count("<svg") == 2
    assert "<progress" not in html
    assert "4711" not in html
    ids = set(re.findall(r'\bid="([^"]+)"', html))
    assert ids
    assert not ids & set(re.findall(r'\bid="([^"]+)"', run._repr_html_()))


@pytest.mark.slow
def test_the_table_of_runs_has_a_row_for_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, score in ((0, 0.5), (1, 0.75)):
        folder = tmp_path / "outputs" / "mine" / f"seed-{seed}"
        lay_run(folder, after={"eval_exact": score}, seed=seed)
    runs = runner.runs("mine")
    table = runs.table()
    assert dict(zip(table["seed"], table["eval_exact"], strict=True)) == {0: 0.5, 1: 0.75}
    assert set(table["state"]) == {"finished"}
    assert runs._repr_html_().count("<tr") == 3
    assert len(type(runs)().table()) == 0


@pytest.mark.dear("a kernel of Jupyter's trains, which imports the libraries")
@pytest.mark.slow
def test_a_notebook_draws_a_training_and_its_run(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    words = ["trainer.args.max_steps=2", "dataset.limit.train=32", "dataset.limit.eval=8"]
    cells = ["import runner", f"run = runner.train(*{words}, 'metric=none', 'name=nb')", "run"]
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in cells]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    _, training, shown = (cell.outputs for cell in notebook.cells)
    pictures = [output for output in training if output.output_type == "display_data"]
    assert len(pictures) == 1
    assert "<svg" in pictures[0].data["text/html"]
    printed = "".join(output.get("text", "") for output in training)
    assert "finished  2 steps" in printed
    assert not re.search("^step ", printed, re.MULTILINE)
    assert "eval_loss" in shown[0].data["text/html"]
