"""Branches of scripts: those that the variables above them decide, and those that are asked for."""

import pytest

from runner.errors import ConfigError
from runner.importers.foreign_file import read_file
from runner.importers.shell_branches import decide

TRAINING = "trl sft --model_name_or_path a/b --dataset_name c/d --learning_rate $LR $PEFT\n"
TUNERS = """
if [ "$TUNER" = "lora" ]; then
  LR=1e-4
  PEFT="--use_peft --lora_r 8"
elif [ "$TUNER" = "freeze" ]; then
  LR=5e-5
else
  LR=1e-5
fi
"""
CASES = """
case "$TUNER" in
  lora|qlora)
    LR=1e-4
    PEFT="--use_peft --lora_r 8"
    ;;
  freeze) LR=5e-5 ;;
  *) LR=1e-5 ;;
esac
"""


@pytest.fixture
def keys_of(tmp_path):
    """The keys of a script, and what is said of its conditions."""

    def call(text: str, **options: str):
        path = tmp_path / "train.sh"
        path.write_text(text)
        return read_file(path, **options)

    return call


@pytest.mark.parametrize("script", [TUNERS, CASES])
@pytest.mark.parametrize(
    ("tuner", "rate", "rank"), [("lora", 1e-4, 8), ("freeze", 5e-5, None), ("full", 1e-5, None)]
)
def test_a_branch_is_told_by_the_variables_above_it(keys_of, script, tuner, rate, rank):
    for line in (f"TUNER={tuner}\n", f"TUNER=${{1:-{tuner}}}\n"):
        reading = keys_of(line + script + TRAINING)
        assert reading.keys["learning_rate"] == rate
        assert reading.keys.get("lora_r") == rank
        assert not reading.remarks


@pytest.mark.parametrize("script", [TUNERS, CASES])
def test_of_branches_that_nothing_decides_none_is_taken_unless_one_is_chosen(keys_of, script):
    reading = keys_of(f"LR=3e-4\n{script}{TRAINING}")
    assert reading.keys["learning_rate"] == 3e-4
    assert "lora_r" not in reading.keys
    (remark,) = reading.remarks.values()
    assert "none of its branches" in remark.why
    assert "branch=1" in remark.why
    chosen = keys_of(f"LR=3e-4\n{script}{TRAINING}", branch="1")
    assert chosen.keys["learning_rate"] == 1e-4
    assert chosen.keys["lora_r"] == 8
    assert keys_of(f"{script}{TRAINING}", branch="3").keys["learning_rate"] == 1e-5


def test_trainings_in_branches_that_nothing_decides_are_asked_for(keys_of):
    one = "trl sft --model_name_or_path a/b --dataset_name c/d --seed 1"
    other = "trl sft --model_name_or_path a/b --dataset_name c/d --seed 2"
    text = f"if [ $GPUS -gt 1 ]; then\n  {one}\nelse\n  {other}\nfi\n"
    with pytest.raises(ConfigError, match="branch=1"):
        keys_of(text)
    assert keys_of(text, branch="2").keys["seed"] == 2
    assert keys_of(f"GPUS=4\n{text}").keys["seed"] == 1


def test_branches_may_stand_in_branches_and_on_one_line(keys_of):
    text = (
        'A=x; B=2\nif [ "$A" = x ]; then if [[ $B -ge 2 && $A == x* ]]; then LR=1e-4; '
        "else LR=1e-5; fi; else LR=1e-6; fi\n"
    )
    training = TRAINING.replace(" $PEFT", "")
    assert keys_of(text + training).keys["learning_rate"] == 1e-4


def test_arguments_that_a_script_reads_do_not_replace_its_defaults(keys_of):
    text = (
        "LR=2e-5\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    --lr) LR=$2; shift 2;;\n"
        "    *) exit 1;;\n  esac\ndone\n"
    )
    training = TRAINING.replace(" $PEFT", "")
    assert keys_of(text + training).keys["learning_rate"] == 2e-5


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("[ -z $X ]", True),
        ("[ -n $X ]", False),
        ("[ -n text ]", True),
        ("[ -f file ]", None),
        ("[ $X = a ]", None),
        ("! [ a = a ]", False),
        ("[ a = b ] || true", True),
        ("[ a = b ] && [ $X = a ]", False),
        ("[ a != b ] && [ $X = a ]", None),
        ("[ 3 -lt 10 ]", True),
        ("[[ ${1} != slurm ]]", True),
        ("[[ $1 == slurm ]]", None),
        ("command", None),
    ],
)
def test_a_condition_is_decided_where_it_can_be(condition, answer):
    assert decide(condition.split()) is answer


def test_a_choice_that_is_no_number_is_refused(keys_of):
    with pytest.raises(ConfigError, match="the number of a branch"):
        keys_of(TRAINING, branch="first")
