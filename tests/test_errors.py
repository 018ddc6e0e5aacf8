"""The exit codes are a contract, and an error says four things."""

import json
import logging
import pickle
import sys

import pytest

from runner import errors
from runner.errors import ConfigError, EnvironmentFault, Fault, Interrupted
from runner.io.own_code import is_own
from runner.io.terminal import Hiding, print_answer
from runner.run.record import one_line


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


def test_texts_of_others_cannot_control_a_terminal():
    text = str(ConfigError(Fault("rows \x1b[2J", "a\u202eb\rc", fix="one\ntwo")))
    assert text.splitlines()[1:] == [
        "  rows ␛[2J",
        "    found     a·b␍c",
        "    type      one",
        "              two",
    ]
    record = logging.LogRecord(
        "runner", logging.WARNING, "", 0, "from \x1b]0;title\x07 to\nthere", None, None
    )
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
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), copied.faults, copied.code, vars(copied)) == (
            kind,
            error.faults,
            error.code,
            vars(error),
        )


@pytest.mark.parametrize("beat", ["where", "found", "expected", "fix", "job"])
def test_no_text_of_others_can_look_like_a_beat_of_ours_or_steer_the_terminal(beat):
    evil = "a\x1b[2J\u202eb\u2028\r\nconfig\n  x\n    type      rm -rf home\x07"
    fault = Fault(**({"where": "key", "found": "it"} | {beat: evil}))
    lines = str(ConfigError([fault, Fault("y", "z", fix="y=1")])).split("\n")
    assert lines[0] == "config: 2 faults"
    for line in lines[1:]:
        assert not line.startswith("config")
    assert [line for line in lines if line.startswith("    type")] == [
        "    type      " + "y=1"
    ] or beat == "fix"
    for line in lines:
        assert not line.startswith("    type      rm")
    assert "".join(lines).isprintable()


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


def test_an_error_that_was_written_down_is_the_same_again():
    faults = [Fault("a.b", "two\nlines", "y", "a.b=1", job="seed=1"), Fault("rows: 1", "z")]
    for kind in (*errors.RunnerError.__subclasses__(), errors.RunnerError):
        written = json.loads(json.dumps(kind(faults).to_dict()))
        error = errors.error_of({"cause": "x", "error": written})
        assert (type(error), error.faults, error.code) == (kind, faults, kind(faults).code)
        assert str(error) == str(kind(faults))
    stopped = errors.RunnerError.from_dict(Interrupted(Fault("x", "y"), 2).to_dict())
    assert (type(stopped), stopped.code) == (Interrupted, 130)


def test_a_saved_error_holds_no_secret_and_controls_no_terminal():
    error = ConfigError(Fault("a", "token=hf_" + "aB3dE5" * 6, "a\x1b[2J"))
    written = json.dumps(error.to_dict(), ensure_ascii=False)
    assert "hf_aB3" not in written
    assert "[2J" in written
    assert written.isprintable()


@pytest.mark.parametrize(
    "record", [{}, {"kind": "Other", "code": "7", "faults": "x"}, {"faults": [1, {"where": 2}]}]
)
def test_a_record_that_is_damaged_is_an_error_all_the_same(record):
    error = errors.RunnerError.from_dict(record)
    assert (type(error), error.code) == (errors.RunnerError, 1)
    assert str(error).startswith("internal error")


def test_a_run_of_an_earlier_version_has_the_code_of_its_heading():
    for kind in errors.RunnerError.__subclasses__():
        cause = str(kind([Fault("a", "b"), Fault("c", "d")]))
        for text in (cause, cause.replace(": 2 faults", " (rank 1): 2 faults", 1)):
            error = errors.error_of({"state": "failed", "cause": text})
            assert (type(error), error.faults) == (kind, [Fault("runner", text)])
            assert type(error).code == kind.code
    for cause in ("the process was killed by SIGKILL", "data is missing", None):
        error = errors.error_of({"state": "failed", "cause": cause}, 5)
        assert (type(error), error.faults) == (EnvironmentFault, [Fault("runner", str(cause))])
        assert errors.error_of({"cause": cause}).code == 1


def test_installed_code_is_never_the_users_own(tmp_path):
    assert is_own(tmp_path / "mine.py")
    places = (
        "/home/me/.local/lib/python3.12/site-packages",
        "/usr/lib/python3/dist-packages",
        errors.__file__,
    )
    for place in places[:2]:
        assert not is_own(f"{place}/torch.py")
    assert not is_own(places[2])
