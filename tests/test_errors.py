"""The exit codes are a contract, and an error says four things."""

import ast
import logging
import pickle
import sys
from pathlib import Path
from string import Formatter

import pytest

from runner import errors
from runner.errors import ConfigError, Fault, Interrupted
from runner.io.terminal import Hiding, print_answer
from runner.run.read import one_line
from runner.schema.text import read_tables


def test_exit_codes():
    codes = {kind.__name__: kind.code for kind in errors.RunnerError.__subclasses__()}
    assert codes == {
        "ConfigError": 2,
        "DataError": 2,
        "SickRun": 3,
        "FolderError": 4,
        "EnvironmentFault": 5,
        "Interrupted": 1,  # its code is the signal's, set when it is raised
    }
    assert errors.RunnerError.code == 1
    assert [Interrupted(Fault("x", "y"), number).code for number in (2, 15)] == [130, 143]


def test_all_faults_print_with_their_four_beats():
    text = str(ConfigError([Fault("a.b", "x", "y", "a.b=1"), Fault("c", "z")]))
    assert text.splitlines() == [
        "config: 2 faults",
        "  a.b",
        "    found     x",
        "    expected  y",
        "    type      a.b=1",
        "  c",
        "    found     z",
    ]


def test_what_others_have_written_cannot_steer_a_terminal():
    text = str(ConfigError(Fault("rows \x1b[2J", "a\u202eb\rc", fix="one\ntwo")))
    assert text.splitlines()[1:] == ["  rows ␛[2J", "    found     a·b␍c", "    type      one", "              two"]
    record = logging.LogRecord("runner", logging.WARNING, "", 0, "from \x1b]0;title\x07 to\nthere", None, None)
    assert Hiding().format(record) == "from ␛]0;title␇ to\nthere"
    assert one_line("gone\x1b[2J") == "gone␛[2J"


def test_an_answer_is_raw_in_a_pipe_and_visible_on_a_terminal(capsys, monkeypatch):
    print_answer("a\x1b[2J")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_answer("a\x1b[2J")
    assert capsys.readouterr().out == "a\x1b[2J\na␛[2J\n"


def test_an_error_that_another_process_raised_is_the_same_here():
    for kind in (*errors.RunnerError.__subclasses__(), errors.RunnerError):
        error = kind(Fault("a", "b"))
        here = pickle.loads(pickle.dumps(error))
        assert (type(here), here.faults, here.code, vars(here)) == (kind, error.faults, error.code, vars(error))


@pytest.mark.parametrize("beat", ["where", "found", "expected", "fix", "job"])
def test_no_text_of_others_can_look_like_a_beat_of_ours_or_steer_the_terminal(beat):
    evil = "a\x1b[2J\u202eb\u2028\r\nconfig\n  x\n    type      rm -rf home\x07"
    fault = Fault(**({"where": "key", "found": "it"} | {beat: evil}))
    lines = str(ConfigError([fault, Fault("y", "z", fix="y=1")])).split("\n")
    assert lines[0] == "config: 2 faults" and not any(line.startswith("config") for line in lines[1:])
    assert [line for line in lines if line.startswith("    type")] == ["    type      " + "y=1"] or beat == "fix"
    assert not any(line.startswith("    type      rm") for line in lines) and "".join(lines).isprintable()


def test_an_error_of_a_worker_of_a_loader_keeps_its_faults():
    from torch._utils import ExceptionWrapper

    for kind in (*errors.RunnerError.__subclasses__(), errors.RunnerError):
        try:
            raise kind([Fault("a.b", "two\nlines", "y", "a.b=1"), Fault("rows: 1", "z")])
        except errors.RunnerError as error:
            wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
            with pytest.raises(kind) as raised:
                wrapped.reraise()
            assert raised.value.faults == error.faults


def test_a_printed_error_is_read_again_with_its_faults():
    faults = [Fault("a.b", "two\nlines", "y", "a.b=1", job="seed=1"), Fault("rows: 1", "z")]
    for kind in (*errors.RunnerError.__subclasses__(), errors.RunnerError):
        error = errors.read_error(f"config\n  old\n    found     x\nstep 1\n{kind(faults)}\n", 7)
        assert (type(error), error.faults, error.code) == (kind, faults, 7)
    error = errors.read_error("one\ntwo\n", 5)
    assert (type(error), error.faults) == (errors.EnvironmentFault, [Fault("runner", "one\ntwo")])


def test_what_is_installed_is_nobody_s_own_wherever_it_lies(tmp_path):
    assert errors.is_own(tmp_path / "mine.py")
    places = ("/home/me/.local/lib/python3.12/site-packages", "/usr/lib/python3/dist-packages", errors.__file__)
    assert not any(errors.is_own(f"{place}/torch.py") for place in places[:2]) and not errors.is_own(places[2])


def test_each_fault_of_a_table_is_made_somewhere_and_given_all_that_its_beats_ask_for():
    room = Path(errors.__file__).parent
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(room.rglob("*.py"))}
    tables = {f"runner.{file.parent.name}.fault.fault": read_tables(str(file)) for file in room.glob("*/fault.yaml")}
    calls = []
    for file, tree in trees.items():
        module = ".".join(file.relative_to(room.parent).with_suffix("").parts)
        nodes = list(ast.walk(tree))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        bound = {"fault": f"{module}.fault"}
        bound |= {each.asname or each.name: f"{node.module}.{each.name}" for node in imports for each in node.names}
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            first, _, rest = ast.unparse(call.func).partition(".")
            if (first, rest) == ("fault", "") or (first in bound and rest == "fault"):
                calls.append((".".join(filter(None, (bound[first], rest))), call))
    made = set()
    for table, call in calls:
        name = ast.literal_eval(call.args[0])
        if table == "runner.errors.fault":  # which names the room as well
            named, _, name = name.partition(".")
            table = f"runner.{named}.fault.fault"
        fields = [field for beat in tables[table][name].values() for _, field, _, _ in Formatter().parse(beat)]
        asked = {field.partition(".")[0].partition("!")[0] for field in fields if field is not None}
        given = {each.arg for each in call.keywords}  # None is a mapping, of which this knows no names
        assert asked == given or (None in given and asked > given - {None}), f"{table}: {name}"
        made.add((table, name))
    assert made == {(table, name) for table, faults in tables.items() for name in faults}
