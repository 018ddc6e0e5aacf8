"""A library's complaint about a typed value becomes a fault of its key, and no other complaint
does.
"""

import errno

import pytest
from laid import COMMAND, lay_run, write

from runner.errors import find_process_limit
from runner.run import Run
from runner.run.blame import find_refused_keys

ARGS = {
    "_target_": "trl.SFTConfig",
    "optim_target_modules": "foo",
    "torch_compile_backend": "odd",
    "max_steps": 5,
}


@pytest.fixture
def run(tmp_path):
    folder = lay_run(
        tmp_path / "outputs" / "name" / "run", trainer={"_target_": "trl.SFTTrainer", "args": ARGS}
    )

    def typed(*words):
        write(folder / "manifest.json", {"command": [*COMMAND, *words]})
        return Run(folder)

    return typed


def error_of_a_library(text: str) -> Exception:
    """An exception whose innermost line is that of an installed package."""
    from packaging.version import Version

    try:
        Version(text)
    except ValueError as error:
        error.args = (text,)
        return error
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("text", "typed", "where"),
    [
        (
            "`optim_target_modules` fits nothing",
            ["trainer.args.optim_target_modules=foo"],
            "optim_target_modules",
        ),
        (
            "'ODD' is not a valid DynamoBackend",
            ["trainer.args.torch_compile_backend=odd"],
            "torch_compile_backend",
        ),
        # a file may hold it
        ("'ODD' is not a valid DynamoBackend", ["experiment=mine"], "torch_compile_backend"),
        ("'ODD' is not a valid DynamoBackend", ["seed=1"], None),
        ("shapes do not match", ["trainer.args.torch_compile_backend=odd"], None),
        ("max steps are odd", ["trainer.args.torch_compile_backend=odd"], None),
    ],
)
def test_a_message_blames_the_typed_key_that_it_names(run, text, typed, where):
    refused_keys = find_refused_keys(run(*typed), error_of_a_library(text))
    assert (refused_keys.faults[0].where if refused_keys else None) == (
        where and f"trainer.args.{where}"
    )
    assert not refused_keys or (
        refused_keys.code == 2 and refused_keys.faults[0].fix == f"leave trainer.args.{where} out"
    )


def test_an_internal_error_blames_no_key(run):
    try:
        Run(run("x=1").folder / "none").cfg  # noqa: B018
    except Exception as error:
        error.args = ("'odd'",)
        assert find_refused_keys(run("trainer.args.torch_compile_backend=odd"), error) is None


def test_a_part_built_of_some_keys_blames_those_that_were_typed(run):
    words = ["trainer.args.max_steps=5", "trainer.args.optim_target_modules=foo", "seed=1"]
    several = find_refused_keys(run(*words), KeyError("nothing to be found here"), ["trainer.args"])
    assert several.faults[0].where == "trainer.args"
    assert "trainer.args.max_steps" in several.faults[0].fix
    refused = find_refused_keys(run(*words[:1]), KeyError("nothing"), ["trainer.args"])
    assert refused.faults[0].where == "trainer.args.max_steps"
    assert find_refused_keys(run(*words), KeyError("nothing"), ["peft"]) is None


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (
            "trainer.args.torch_compile=true trainer.args.torch_compile_backend=odd",
            "torch_compile_backend",
        ),
        (
            (
                "peft._target_=peft.IA3Config "
                "peft.feedforward_modules=[down_proj] peft.target_modules=[q_proj]"
            ),
            "modules",
        ),
    ],
)
@pytest.mark.slow
def test_a_library_that_refuses_a_typed_value_ends_the_run_with_its_key(runner, words, where):
    done = runner(*words.split(), "dataset.limit.train=16", "trainer.args.max_steps=1", code=2)
    assert where in done.stderr.splitlines()[1]
    assert "leave " in done.stderr


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
        MemoryError(),
    ],
)
def test_a_process_refused_by_the_system_is_the_environments_fault(error):
    fault = find_process_limit(error)
    assert fault.where == "system"
    assert "ulimit -v" in fault.fix
    assert find_process_limit(RuntimeError("odd")) is None
    assert find_process_limit(OSError(2, "none")) is None
