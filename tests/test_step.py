"""Steps of ``dataset.map``.

Their effect on rows, the cache by content, and faults that name the row.
"""

import functools
import json

import pytest

from runner.__main__ import main
from runner.config.build import build
from runner.dataset.load import load_rows
from runner.dataset.loaded_rows import key_of_steps
from runner.dataset.mix import mix_rows
from runner.dataset.step import apply_steps, fill, list_steps
from runner.errors import DataError

ROWS = [{"number": number, "question": f"{number}?", "answer": f"{number}!"} for number in range(6)]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return str(tmp_path / "rows.jsonl")


def even(row):
    return row if row["number"] % 2 == 0 else None


def chat(row, ask="Q: "):
    return {
        "messages": [
            {"role": "user", "content": ask + row["question"]},
            {"role": "assistant", "content": row["answer"]},
        ]
    }


def test_one_step_several_and_named_ones():
    assert list_steps(None) == ()
    assert list_steps(even) == list_steps([even]) == list_steps({"a": even, "b": None}) == (even,)
    with pytest.raises(DataError, match="a function of a row"):
        list_steps([even, 3])


def test_a_row_that_is_left_out_goes_no_further():
    assert apply_steps(ROWS[1], [even, chat]) is None
    assert (
        apply_steps(ROWS[2], [even, functools.partial(chat, ask="")])["messages"][0]["content"]
        == "2?"
    )


def test_steps_come_before_the_form_is_found(path):
    rows, _ = load_rows(path, map=[even, chat], to="demonstration", shuffle=False)
    assert [row["messages"][0]["content"] for row in rows] == ["Q: 0?", "Q: 2?", "Q: 4?"]
    assert rows.column_names == ["messages"]


def test_a_stream_goes_through_the_steps_too(path):
    rows, _ = load_rows(path, map=[even, chat], to="demonstration", shuffle=False, streaming=True)
    assert len(list(rows)) == 3


def test_a_part_of_a_mixture_has_steps_of_its_own(path):
    parts = {
        "few": functools.partial(load_rows, path, map=even),
        "all": functools.partial(load_rows, path),
    }
    rows, _ = mix_rows(parts, to="demonstration")
    assert len(rows) == 9


def test_columns_that_a_step_makes_go_along_with_their_types(path):
    made = lambda row: row | {"hard": row["number"] / 2, "tags": ["a"]}  # noqa: E731
    rows, _ = load_rows(path, map=made, to="prompt", shuffle=False)
    assert rows[3]["hard"] == 1.5
    assert rows[3]["tags"] == ["a"]


def test_faults_name_the_file_and_the_row_and_the_line_of_code(path):
    def broken(row):
        return {"text": "ok"} if row["number"] != 4 else {"text": row["nothing"]}

    with pytest.raises(DataError) as error:
        load_rows(path, map=broken, to="demonstration", shuffle=False)
    fault = error.value.faults[1]
    assert fault.where == f"{path} train row 4, map"
    assert "KeyError: 'nothing'" in fault.found
    assert "test_step.py:" in fault.fix


def test_all_faults_are_reported_or_left_out(path):
    def only_zero(row):
        return {"text": "ok"} if row["number"] == 0 else 7

    with pytest.raises(DataError, match="5 of 6 rows are bad"):
        load_rows(path, map=only_zero, to="demonstration")
    assert len(load_rows(path, map=only_zero, to="demonstration", bad_rows="drop")[0]) == 1


def test_a_step_that_drops_all_rows_is_reported(path):
    with pytest.raises(DataError, match="every row is left out"):
        load_rows(path, map=lambda row: None, to="demonstration")
    with pytest.raises(DataError, match="row 5, map"):
        load_rows(path, map=lambda row: 1 / 0, to="demonstration")


def test_the_key_follows_code_and_settings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_steps_a.py").write_text("def step(row, by=1):\n    return row\n")
    (tmp_path / "my_steps_b.py").write_text("def step(row, by=1):\n    return dict(row)\n")
    from my_steps_a import step as first
    from my_steps_b import step as second

    keys = [
        key_of_steps([step])
        for step in (first, second, functools.partial(first, by=2), functools.partial(first, by=3))
    ]
    assert len({str(key) for key in keys}) == 4
    before = key_of_steps([first])
    (tmp_path / "my_steps_a.py").write_text("def step(row, by=1):\n    return None\n")
    assert key_of_steps([first]) != before


def test_all_rows_are_mapped_once_but_the_first_ones_at_each_start(path):
    mapped = []

    def counted(row):
        mapped.append(row["number"])
        return row

    for _ in range(2):
        load_rows(path, map=counted, to="demonstration")
    # The first row shows the form and the columns, and the first 10 what nobody reads.
    at_each_start = 2 + len(ROWS)
    assert len(mapped) == 2 * at_each_start + len(ROWS)


def test_a_function_of_a_row_is_not_called_when_it_is_built():
    step = build({"_target_": "runner.dataset.step.apply_steps", "steps": []})
    assert step(row={"a": 1}) == {"a": 1}


def test_a_text_is_written_around_columns_and_another_where_one_is_empty():
    step = build(
        {
            "_target_": "runner.dataset.step.render_text",
            "column": "prompt",
            "text": "{{q}} {braces} {{more}} {{unknown}}",
            "empty": {"more": "only {{q}}"},
        }
    )
    assert step(row={"q": "why?", "more": 2})["prompt"] == "why? {braces} 2 {{unknown}}"
    assert step(row={"q": "why?", "more": ""}) == {"q": "why?", "more": "", "prompt": "only why?"}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dataset.map._target_=os.system", "may not run"),
        ("dataset.map={a: {_target_: runner.dataset.step.apply_stepz}}", "apply_steps"),
        ("dataset.map={_target_: runner.dataset.step.apply_steps, stepz: []}", "steps"),
    ],
)
def test_a_fault_is_reported_before_anything_loads(capsys, word, message):
    assert main([word, "metric=none"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_steps_by_target(train, path, tmp_path, monkeypatch):
    (tmp_path / "my_rows.py").write_text(
        "def short(row, most):\n    return row if row['number'] < most else None\n"
        "def plain(row):\n    return {'prompt': "
        "row['question'], 'completion': ' ' + row['answer']}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [
        "dataset=local",
        f"dataset.path={path}",
        "allow=[my_rows]",
        "metric=none",
        "trainer.args.max_steps=2",
    ]
    steps = [
        "dataset.map.short._target_=my_rows.short",
        "dataset.map.short.most=4",
        "dataset.map.plain._target_=my_rows.plain",
    ]
    done = train(*words, *steps)
    assert done.code == 0
    facts = json.loads((done.run.folder / "manifest.json").read_text())
    assert facts["data"]["train"]["rows"] == 4


def test_names_are_filled_in_wherever_text_is_in_a_row():
    row = {
        "messages": [
            {"role": "user", "content": "{{NAME}}?"},
            {"role": "assistant", "content": "{{ NAME }}."},
        ],
        "n": 1,
    }
    filled = apply_steps(row, [functools.partial(fill, names={"NAME": "Ada"})])
    assert [turn["content"] for turn in filled["messages"]] == ["Ada?", "Ada."]
    assert filled["n"] == 1


@pytest.mark.slow
def test_an_edit_of_what_a_step_or_a_rule_of_weights_imports_is_seen(runner, path):
    """Also of a module beside their package, which one of them imports while it works."""
    lab = runner.folder / "mylab"
    lab.mkdir()
    (lab / "words.py").write_text("def ending(): return ' alpha'\n")
    (lab / "steps.py").write_text(
        "from .words import ending\n"
        "def tag(row): return {'prompt': row['question'], 'completion': row['answer'] + ending()}\n"
    )
    (runner.folder / "table.py").write_text("WEIGHT = 3\n")
    (lab / "rules.py").write_text(
        "def same(messages):\n    from table import WEIGHT\n"
        "    return [WEIGHT for turn in messages]\n"
    )
    step = (
        f"dataset={path}",
        "allow=[mylab]",
        "dataset.map._target_=mylab.steps.tag",
        "metric=none",
    )
    rule = ("weight._target_=mylab.rules.same", "trainer.args.max_steps=1")
    runner(*step, *rule, "name=first")
    assert " alpha" in runner("preview", *step).stdout
    (lab / "words.py").write_text("def ending(): return ' beta and more'\n")
    (runner.folder / "table.py").write_text("WEIGHT = -1\n")
    assert " beta and more" in runner("preview", *step).stdout
    done = runner(*step, *rule, "name=second", "trainer.args.learning_rate=1e-4", code=2)
    assert "found     -1" in done.stderr
