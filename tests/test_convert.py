"""Every raw form against every trainer form, by rows worked out by hand, and what is refused."""

import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config.composition import compose
from runner.dataset.convert import Conversion, RowRequest
from runner.dataset.detect import kept_columns, read_layout
from runner.dataset.form import FORMS, FORMS_FOR, RowLayout, fits
from runner.dataset.trainer_row import convert
from runner.errors import DataError
from runner.validate.mismatches import find_mismatches


def user(text):
    return {"role": "user", "content": text}


def bot(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def converted(row, to, system=None, form=None, **kwargs):
    """The rows made of one row, read as a source of such rows is."""
    layout = read_layout(row, row, form=form, given=kwargs, to=to)
    return convert(row, layout, to, system)


def faults(row, to, **how):
    with pytest.raises(DataError) as caught:
        converted(row, to, **how)
    return caught.value.faults


Q = [user("2+2?")]
A = [bot("4")]
B = [bot("5")]
LONG = [user("hi"), bot("hello"), user("2+2?")]
PAIR = {
    "demonstration": [{"prompt": Q, "completion": A}],
    "messages": [{"messages": Q + A}],
    "preference": [{"prompt": Q, "chosen": A, "rejected": B}],
    "unpaired": [
        {"prompt": Q, "completion": A, "label": True},
        {"prompt": Q, "completion": B, "label": False},
    ],
    "prompt": [{"prompt": Q, "reference": "4"}],
}  # the conversions of a pair of answers to Q

# A raw row, its form, and what it becomes in each trainer form that it can feed.
CELLS = {
    "text": ({"text": "2+2=4"}, "text", {"demonstration": [{"text": "2+2=4"}]}),
    "messages": (
        {"messages": Q + A},
        "messages",
        {
            "demonstration": [{"messages": Q + A}],
            "messages": [{"messages": Q + A}],
            "prompt": [{"prompt": Q, "reference": "4"}],
        },
    ),
    "several turns": (
        {"messages": [system("Count."), *LONG, *A]},
        "messages",
        {
            "demonstration": [{"messages": [system("Count."), *LONG, *A]}],
            "messages": [{"messages": [system("Count."), *LONG, *A]}],
            "prompt": [{"prompt": [system("Count."), *LONG], "reference": "4"}],
        },
    ),
    "sharegpt": (
        {
            "conversations": [
                {"from": "system", "value": "Count."},
                {"from": "human", "value": "2+2?"},
                {"from": "gpt", "value": "4"},
            ]
        },
        "messages",
        {
            "demonstration": [{"messages": [system("Count."), *Q, *A]}],
            "messages": [{"messages": [system("Count."), *Q, *A]}],
            "prompt": [{"prompt": [system("Count."), *Q], "reference": "4"}],
        },
    ),
    "a prompt beside messages": (
        {"prompt": "2+2?", "prompt_id": "x", "messages": Q + A},
        "messages",
        {
            "demonstration": [{"messages": Q + A}],
            "messages": [{"messages": Q + A}],
            "prompt": [{"prompt": Q, "reference": "4"}],
        },
    ),
    "prompt and completion": (
        {"prompt": "2+2=", "completion": " 4"},
        "prompt_completion",
        {
            "demonstration": [{"prompt": "2+2=", "completion": " 4"}],
            "messages": [{"messages": [user("2+2="), bot("4")]}],
            "prompt": [{"prompt": "2+2=", "reference": " 4"}],
        },
    ),
    "prompt and completion in turns": (
        {"prompt": Q, "completion": A},
        "prompt_completion",
        {
            "demonstration": [{"prompt": Q, "completion": A}],
            "messages": [{"messages": Q + A}],
            "prompt": [{"prompt": Q, "reference": "4"}],
        },
    ),
    "a text prompt with turns": (
        {"prompt": "2+2?", "completion": A},
        "prompt_completion",
        {
            "demonstration": [{"prompt": Q, "completion": A}],
            "messages": [{"messages": Q + A}],
            "prompt": [{"prompt": Q, "reference": "4"}],
        },
    ),
    "input and target": (
        {"kind": "Sum", "input": "2+2?", "target": "4"},
        "prompt_completion",
        {
            "demonstration": [{"prompt": Q, "completion": A}],
            "messages": [{"messages": Q + A}],
            "prompt": [{"prompt": Q, "reference": "4"}],
        },
    ),
    "instruction, input and output": (
        {"instruction": "Add.", "input": "2 2", "output": "4"},
        "prompt_completion",
        {
            "demonstration": [{"prompt": [user("Add.\n\n2 2")], "completion": A}],
            "messages": [{"messages": [user("Add.\n\n2 2"), *A]}],
            "prompt": [{"prompt": [user("Add.\n\n2 2")], "reference": "4"}],
        },
    ),
    "a pair": (
        {"prompt": "2+2=", "chosen": " 4", "rejected": " 5"},
        "preference",
        {
            "demonstration": [{"prompt": "2+2=", "completion": " 4"}],
            "messages": [{"messages": [user("2+2="), bot("4")]}],
            "preference": [{"prompt": "2+2=", "chosen": " 4", "rejected": " 5"}],
            "unpaired": [
                {"prompt": "2+2=", "completion": " 4", "label": True},
                {"prompt": "2+2=", "completion": " 5", "label": False},
            ],
            "prompt": [{"prompt": "2+2=", "reference": " 4"}],
        },
    ),
    "three answers": (
        {"prompt": "2+2=", "chosen": " 4", "rejected": " 5", "reference": " four"},
        "triple",
        {
            "demonstration": [{"prompt": "2+2=", "completion": " 4"}],
            "messages": [{"messages": [user("2+2="), bot("4")]}],
            "preference": [{"prompt": "2+2=", "chosen": " 4", "rejected": " 5"}],
            "triple": [{"prompt": "2+2=", "chosen": " 4", "rejected": " 5", "reference": " four"}],
            "unpaired": [
                {"prompt": "2+2=", "completion": " 4", "label": True},
                {"prompt": "2+2=", "completion": " 5", "label": False},
            ],
            "prompt": [{"prompt": "2+2=", "reference": " 4"}],
        },
    ),
    "three whole conversations": (
        {"chosen": LONG + A, "rejected": LONG + B, "reference": [*LONG, bot("four")]},
        "triple",
        {
            "demonstration": [{"prompt": LONG, "completion": A}],
            "messages": [{"messages": LONG + A}],
            "preference": [{"prompt": LONG, "chosen": A, "rejected": B}],
            "triple": [{"prompt": LONG, "chosen": A, "rejected": B, "reference": [bot("four")]}],
            "unpaired": [
                {"prompt": LONG, "completion": A, "label": True},
                {"prompt": LONG, "completion": B, "label": False},
            ],
            "prompt": [{"prompt": LONG, "reference": "4"}],
        },
    ),
    "tokens": (
        {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
        "tokens",
        {"demonstration": [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}]},
    ),
    "a pair of tokens": (
        {"chosen_ids": [5, 6], "rejected_ids": [5, 6, 7], "margin": 1},
        "token_pair",
        {"preference": [{"chosen_ids": [5, 6], "rejected_ids": [5, 6, 7], "margin": 1.0}]},
    ),
    "a pair of turns": (
        {"prompt": LONG, "chosen": A, "rejected": B},
        "preference",
        {
            "demonstration": [{"prompt": LONG, "completion": A}],
            "messages": [{"messages": LONG + A}],
            "preference": [{"prompt": LONG, "chosen": A, "rejected": B}],
            "unpaired": [
                {"prompt": LONG, "completion": A, "label": True},
                {"prompt": LONG, "completion": B, "label": False},
            ],
            "prompt": [{"prompt": LONG, "reference": "4"}],
        },
    ),
    "a text prompt beside a pair of whole conversations": (
        {"prompt": "2+2?", "chosen": Q + A, "rejected": Q + B},
        "preference",
        PAIR,
    ),
    "a judged answer": (
        {"prompt": "2+2=", "completion": " 4", "label": True},
        "unpaired",
        {
            "demonstration": [{"prompt": "2+2=", "completion": " 4"}],
            "messages": [{"messages": [user("2+2="), bot("4")]}],
            "unpaired": [{"prompt": "2+2=", "completion": " 4", "label": True}],
            "prompt": [{"prompt": "2+2=", "reference": " 4"}],
        },
    ),
    "an answer judged bad": (
        {"prompt": Q, "completion": B, "label": False},
        "unpaired",
        {
            "demonstration": [],
            "messages": [],
            "unpaired": [{"prompt": Q, "completion": B, "label": False}],
            "prompt": [{"prompt": Q, "reference": None}],
        },
    ),
    "a pair of single turns": (
        {"prompt": Q, "chosen": {"from": "gpt", "value": "4"}, "rejected": B[0]},
        "preference",
        PAIR,
    ),
    "a prompt": ({"prompt": "2+2="}, "prompt", {"prompt": [{"prompt": "2+2="}]}),
    "a prompt in turns": ({"prompt": LONG}, "prompt", {"prompt": [{"prompt": LONG}]}),
}


def answers(wanted):
    """The answers that metrics read: the judged ones, or those to imitate, from their last turn."""
    if "unpaired" in wanted:
        return {"answer": wanted["unpaired"]}
    rows = [dict(row) for row in wanted.get("demonstration", []) if "input_ids" not in row]
    for row in rows:
        if turns := row.pop("messages", None):
            row |= {"prompt": turns[:-1], "completion": turns[-1:]}
    return {"answer": [row | {"label": True} for row in rows]} if rows else {}


CELLS = {name: (row, form, wanted | answers(wanted)) for name, (row, form, wanted) in CELLS.items()}
TABLE = list(itertools.product(CELLS, FORMS_FOR))


@pytest.mark.quick(39)
@pytest.mark.parametrize(("name", "to"), TABLE)
def test_every_raw_form_in_every_trainer_form(name, to):
    row, form, wanted = CELLS[name]
    assert read_layout(row, row).form == form
    assert fits(form, to) == (to in wanted)
    if to in wanted:
        assert converted(row, to) == wanted[to]
    else:
        (fault,) = faults(row, to)
        assert fault.where in ("dataset.form", "dataset.columns")
        for other_form in FORMS_FOR[to]:
            assert other_form in fault.expected
        assert "dataset.columns." in fault.fix
        assert "=<column>" in fault.fix


def test_the_table_of_arrows():
    assert {form for _, form, _ in CELLS.values()} | {"judged"} == set(FORMS)
    assert FORMS_FOR["preference"] == ("triple", "preference", "token_pair")
    assert FORMS_FOR["demonstration"] == (
        *("triple", "preference", "unpaired", "messages", "prompt_completion", "text", "tokens"),
    )
    assert fits(None, "preference")
    assert fits("text", None)
    assert not fits("text", "prompt")


@pytest.mark.parametrize("form", [*FORMS, "promt", "stepwise"])
def test_a_trainer_takes_one_of_its_forms(form):
    advice = [fault.fix for fault in find_mismatches(compose([f"trainer.form={form}"]).cfg, {})]
    fixes = {
        "text": "demonstration",
        "prompt_completion": "demonstration",
        "promt": "prompt",
        "stepwise": "<one of them>",
    }
    fixes |= {"tokens": "demonstration", "token_pair": "preference", "judged": "unpaired"}
    # the rows of the toy are pairs
    dataset_words = ["dataset=local dataset.path=<file>"] if form == "triple" else []
    assert advice == ([f"trainer.form={fixes[form]}"] if form in fixes else dataset_words)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        *(("instruction", "output"), ("instruction", "response"), ("input", "output")),
        *(("question", "answer"), ("query", "response"), ("prompt", "response")),
    ],
)
def test_other_names_of_an_exchange(question, answer):
    row = {question: "2+2?", answer: "4", "id": 7}
    assert converted(row, "demonstration") == [{"prompt": Q, "completion": A}]


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"input_ids": [5, "6"]}, "input_ids"),
        ({"input_ids": [5, 6], "labels": [5]}, "input_ids"),
        ({"chosen_ids": [], "rejected_ids": [5]}, "chosen_ids"),
        ({"chosen": "a", "rejected": "b", "prompt": "c", "reference": " "}, "reference"),
    ],
)
def test_tokens_and_third_answers_that_cannot_be_meant(row, where):
    (fault,) = faults(
        row, {"input_ids": "demonstration", "chosen_ids": "preference"}.get(where, "triple")
    )
    assert fault.where == where


@pytest.mark.parametrize("blank", ["", None])
def test_an_instruction_without_input_has_nothing_below_it(blank):
    row = {"instruction": "2+2?", "input": blank, "output": "4"}
    assert converted(row, "demonstration") == [{"prompt": Q, "completion": A}]


BEFORE = [user("hi"), bot("hello")]


@pytest.mark.parametrize("given", [[["hi", "hello"]], BEFORE])
def test_the_turns_before_a_question_come_with_it(given):
    row = {"instruction": "2+2?", "input": "", "output": "4", "history": given}
    assert converted(row, "demonstration") == [{"prompt": LONG, "completion": A}]
    assert converted(row, "prompt") == [{"prompt": LONG, "reference": "4"}]
    pair = {"question": "2+2?", "chosen": "4", "rejected": "5", "history": given}
    assert converted(pair, "preference") == [{"prompt": LONG, "chosen": A, "rejected": B}]
    assert converted({"prompt": "2+2?", "history": given}, "prompt") == [{"prompt": LONG}]
    assert converted(row | {"history": None}, "demonstration") == [{"prompt": Q, "completion": A}]
    (bad,) = faults(row | {"history": ["hi"]}, "demonstration")
    assert bad.where == "history[0]"
    assert bad.fix == "dataset.without=[history]"


def test_a_column_that_only_happens_to_be_called_history_or_context_is_left_out(caplog):
    row = {"prompt": "2+2=", "completion": " 4", "history": "long ago", "context": "maths"}
    assert converted(row, "demonstration") == [{"prompt": "2+2=", "completion": " 4"}]
    assert "`history` is left out" in caplog.text
    assert "`context` is left out" in caplog.text
    (bad,) = faults(row, "demonstration", context="context")
    assert bad.where == "context"
    assert "dataset.columns.input" in bad.fix


@pytest.mark.parametrize(
    "answers", [{"text": ["4", "four"], "answer_start": [0, 1]}, ["4", "four"], "4"]
)
def test_context_before_a_question_is_part_of_it(answers):
    row = {"context": "Maths.", "question": "2+2?", "answers": answers, "title": "T"}
    assert converted(row, "demonstration") == [
        {"prompt": [user("2+2?\n\nMaths.")], "completion": A}
    ]
    pair = {"context": "Maths.", "question": "2+2?", "chosen": "4", "rejected": "5"}
    assert converted(pair, "preference")[0]["prompt"] == [user("2+2?\n\nMaths.")]
    orca = {"system_prompt": "Add.", "question": "2+2?", "response": "4"}
    assert converted(orca, "demonstration") == [
        {"prompt": [{"role": "system", "content": "Add."}, *Q], "completion": A}
    ]


def test_a_third_text_beside_a_pair_does_not_replace_its_question():
    row = {"question": "2+2?", "chosen": "4", "rejected": "5", "reference": "four"}
    assert converted(row, "preference") == [{"prompt": Q, "chosen": A, "rejected": B}]
    assert converted(row, "triple")[0]["prompt"] == Q


def test_a_label_beside_messages_counts_only_for_trainers_of_labels():
    assert converted({"conversations": LONG + B, "label": False}, "unpaired") == [
        {"prompt": LONG, "completion": B, "label": False}
    ]
    assert converted({"messages": Q + A, "label": 7}, "demonstration") == [{"messages": Q + A}]
    assert converted({"messages": Q + A, "label": 7}, "prompt") == [{"prompt": Q, "reference": "4"}]
    assert [fault.where for fault in faults({"messages": Q + A, "label": 7}, "unpaired")] == [
        "label"
    ]
    (row,) = converted({"messages": Q + A, "label": 7}, "answer")
    assert row["label"] is True
    assert converted({"messages": Q + B, "label": 0}, "answer")[0]["label"] is False


def test_calls_of_tools_in_text_are_turns_that_call_them():
    call = {"name": "add", "arguments": {"a": 2}}
    turns = [
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "4"},
    ]
    (row,) = converted(
        {"conversations": [{"from": "human", "value": "2+2?"}, *turns, *A]}, "demonstration"
    )
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": call}],
    }
    assert row["messages"] == [*Q, called, {"role": "tool", "content": "4"}, *A]
    (bad,) = faults({"conversations": [*Q, turns[0] | {"value": "add(2)"}, *A]}, "demonstration")
    assert bad.where.endswith("[1].content")
    assert "JSON" in bad.expected


@pytest.mark.parametrize("extra", [{}, {"id": "1", "type": "function"}])
def test_the_arguments_of_a_call_become_a_mapping(extra):
    """Arguments come as on the wire, alone, in the older form, as one text, or by another name."""
    call = {"name": "add", "arguments": {"a": 2}}
    wire = call | {"arguments": '{"a": 2}'}
    called = bot("") | {"tool_calls": [{"type": "function", "function": call} | extra]}
    spoken = {"role": "assistant", "content": None}
    for calls in (
        [{"function": wire} | extra],
        {"function": wire} | extra,
        json.dumps([{"function": wire} | extra]),
    ):
        (row,) = converted({"messages": [*Q, spoken | {"tool_calls": calls}, *A]}, "messages")
        assert row["messages"][1] == called
    (row,) = converted({"messages": [*Q, spoken | {"function_call": wire}, *A]}, "messages")
    assert row["messages"][1]["tool_calls"][0]["function"] == call
    (row,) = converted(
        {"messages": [*Q, spoken | {"tool_calls": [{"name": "add", "parameters": {"a": 2}}]}, *A]},
        "messages",
    )
    assert row["messages"][1]["tool_calls"][0]["function"] == call
    for odd in ('{"a": ', "[2]", "2", 7):
        (bad,) = faults(
            {"messages": [*Q, spoken | {"tool_calls": [call | {"arguments": odd}]}, *A]}, "messages"
        )
        assert bad.where == "messages[1].tool_calls[0].arguments"
        assert "a mapping" in bad.expected


def test_the_text_of_a_part_may_be_called_its_value():
    parts = [{"type": "text", "value": "2+"}, {"type": "text", "value": "2?"}]
    assert converted({"messages": [user(parts), *A]}, "demonstration") == [{"messages": Q + A}]
    assert [
        fault.where
        for fault in faults({"messages": [user([{"type": "sound", "value": "2?"}]), *A]}, "prompt")
    ]


def test_a_prompt_is_never_passed_over_for_another_name():
    row = {"prompt": Q, "question": "another", "answer": "4"}
    assert converted(row, "prompt") == [{"prompt": Q}]


def test_of_two_forms_the_one_that_fits_the_trainer_is_read():
    row = {"prompt": "2+2=", "text": "2+2=4"}
    assert converted(row, "prompt") == [{"prompt": "2+2="}]
    assert converted(row, "demonstration") == [{"text": "2+2=4"}]


# --- What the user says ---------------------------------------------------------------------------


def test_columns_given_by_role():
    row = {"q": "2+2=", "good": " 4", "bad": " 5", "id": 1}
    pair = {"prompt": "2+2=", "chosen": " 4", "rejected": " 5"}
    assert converted(row, "preference", prompt="q", chosen="good", rejected="bad") == [pair]


def test_input_and_target_make_turns_where_prompt_and_completion_keep_text():
    row = {"prompt": "2+2?", "completion": "4"}
    assert converted(row, "demonstration") == [{"prompt": "2+2?", "completion": "4"}]
    turns = converted(row, "demonstration", input="prompt", target="completion")
    assert turns == [{"prompt": Q, "completion": A}]


def test_given_columns_go_before_what_would_be_guessed():
    row = {"messages": LONG + B, "question": "2+2?", "answer": "4"}
    columns = {"input": "question", "target": "answer"}
    assert converted(row, "demonstration", **columns) == [{"prompt": Q, "completion": A}]
    row = {"question": "wrong", "answer": "wrong", "target": "4", "asked": "2+2?"}
    assert converted(row, "demonstration", input="asked") == [{"prompt": Q, "completion": A}]
    row = {"question": "2+2?", "answer": "wrong", "better": "4"}
    assert converted(row, "demonstration", target="better") == [{"prompt": Q, "completion": A}]
    row = {"prompt": "wrong", "better": "2+2="}
    assert converted(row, "prompt", prompt="better") == [{"prompt": "2+2="}]


def test_misspelt_roles_and_columns_all_at_once():
    row = {"question": "2+2?", "answer": "4"}
    where = {
        fault.where: fault for fault in faults(row, "demonstration", promt="x", input="questn")
    }
    assert where["dataset.columns"].fix == "dataset.columns.prompt=x"
    assert where["dataset.columns.input"].fix == "dataset.columns.input=question"
    (fault,) = faults(row, "demonstration", form="mesages")
    assert fault.fix == "messages"


def test_a_form_that_the_columns_do_not_have():
    (fault,) = faults({"prompt": "2+2="}, None, form="preference")
    assert "prompt" in fault.found
    assert "chosen with rejected" in fault.expected
    assert fault.fix.startswith("dataset.columns.chosen=<column> dataset.columns.rejected=<column>")


def test_columns_that_say_nothing():
    (fault,) = faults({"a": 1, "b": 2}, "demonstration")
    assert "a, b" in fault.found
    assert "dataset.columns.prompt=<column> dataset.columns.completion=<column>" in fault.fix


# --- System prompts -------------------------------------------------------------------------------


def test_a_system_prompt_opens_conversations_that_have_none():
    lead = [system("Be brief.")]
    row = {"messages": Q + A}
    assert converted(row, "messages", "Be brief.") == [{"messages": lead + Q + A}]
    row = {"prompt": Q, "chosen": A, "rejected": B}
    pair = {"prompt": lead + Q, "chosen": A, "rejected": B}
    assert converted(row, "preference", "Be brief.") == [pair]
    talk = {"messages": [system("Count."), *Q, *A]}
    assert converted(talk, "messages", "Be brief.") == [talk]


def test_a_system_column_goes_before_the_system_prompt():
    row = {"system": "Count.", "question": "2+2?", "chosen": "4", "rejected": "5"}
    pair = {"prompt": [system("Count."), *Q], "chosen": A, "rejected": B}
    assert converted(row, "preference", "Be brief.") == [pair]
    pair["prompt"][0] = system("Be brief.")
    assert converted(row | {"system": ""}, "preference", "Be brief.") == [pair]


def test_plain_text_has_no_place_for_a_system_prompt(caplog):
    row = {"prompt": "2+2=", "completion": " 4"}
    (fault,) = faults(row, "demonstration", system="Be brief.")
    assert "plain text" in fault.found
    assert "dataset.columns.input=<column>" in fault.fix
    made = converted(row, "demonstration", "Be brief.", input="prompt", target="completion")
    assert made[0]["prompt"] == [system("Be brief."), user("2+2=")]
    assert converted(row | {"system": "Count."}, "demonstration")[0]["prompt"] == "2+2="
    assert "`system` is left out" in caplog.text


def test_rows_of_tokens_have_no_place_for_a_system_prompt():
    (fault,) = faults({"input_ids": [1, 2]}, "demonstration", system="Be brief.")
    assert "tokens" in fault.found
    assert fault.fix.startswith("dataset.system=null")


# --- Where a pair begins to differ ----------------------------------------------------------------


def pair_of(row):
    (pair,) = converted(row, "preference")
    return pair["prompt"], pair["chosen"], pair["rejected"]


def test_conversations_are_cut_where_they_differ():
    first = [bot("a"), user("more"), *A]
    longer = [bot("b"), user("more"), *B]
    assert pair_of({"chosen": Q + first, "rejected": Q + longer}) == (Q, first, longer)
    assert pair_of({"chosen": LONG + A, "rejected": LONG + B}) == (LONG, A, B)


def test_a_prompt_never_ends_with_the_assistant():
    chosen = [user("hi"), bot("hello"), user("x"), bot("X")]
    rejected = [user("hi"), bot("hello"), user("y"), bot("Y")]
    assert pair_of({"chosen": chosen, "rejected": rejected})[0] == [user("hi")]


def test_turns_given_as_prompt_may_precede_what_both_repeat():
    row = {"prompt": [system("Count.")], "chosen": Q + A, "rejected": Q + B}
    assert pair_of(row) == ([system("Count."), *Q], A, B)
    row = {"prompt": Q, "chosen": Q + A, "rejected": Q + B}
    assert pair_of(row) == (Q, A, B)


def test_a_question_beside_answers_without_it():
    assert pair_of({"question": "2+2?", "chosen": "4", "rejected": "5"}) == (Q, A, B)
    row = {"instruction": "Add.", "input": "2 2", "chosen": "4", "rejected": "5"}
    assert pair_of(row) == ([user("Add.\n\n2 2")], A, B)
    assert pair_of({"prompt": "2+2?", "chosen": A, "rejected": B}) == (Q, A, B)


@pytest.mark.parametrize(
    ("chosen", "rejected", "cut"),
    [
        ("Who?\nAnna", "Who?\nAnnie", "Who?"),  # half a name would be in the prompt
        ("Who? Ann", "Who? Ann left", "Who?"),  # one continues where the other ends
        ("Q: 2+2 A: 4", "Q: 2+2 A: 5", "Q: 2+2 A:"),
        ("\n\nHuman: hi\n\nAssistant: Well, yes", "\n\nHuman: hi\n\nAssistant: Well, no", None),
    ],
)
def test_texts_are_cut_where_their_answers_begin(chosen, rejected, cut):
    cut = "\n\nHuman: hi\n\nAssistant:" if cut is None else cut
    prompt, *answers = pair_of({"chosen": chosen, "rejected": rejected})
    assert prompt == cut
    assert [prompt + answer for answer in answers] == [chosen, rejected]


@pytest.mark.parametrize("to", FORMS["preference"].becomes)
@pytest.mark.parametrize(
    "row",
    [
        *({"prompt": Q, "chosen": A}, {"prompt": "2+2=", "chosen": " 4"}),
        *({"chosen": Q + A}, {"chosen": "Who? Ann"}, {"chosen": "Ann"}),
    ],
)
def test_a_pair_of_equals_is_left_out(row, to):
    assert converted(row | {"rejected": row["chosen"]}, to) == []


def test_a_prompt_of_turns_keeps_what_stands_before_the_shared_ones():
    system = {"role": "system", "content": "brief"}
    pair = {"chosen": [user("2+2?"), bot("4")], "rejected": [user("2+2?"), bot("5")]}
    (made,) = converted(pair | {"prompt": [system, user("2+2?")]}, "preference")
    assert made == {"prompt": [system, user("2+2?")], "chosen": [bot("4")], "rejected": [bot("5")]}
    (made,) = converted(pair | {"question": "2+2?", "history": [["1+1?", "2"]]}, "preference")
    assert made["prompt"] == [user("1+1?"), bot("2"), user("2+2?")]


def test_a_part_that_is_no_text_is_named_by_its_type():
    parts = [{"type": "text", "text": "Look."}, {"type": "tool_use", "name": "look", "input": {}}]
    with pytest.raises(DataError) as caught:
        converted({"messages": [user("?"), {"role": "assistant", "content": parts}]}, "messages")
    assert caught.value.faults[0].where == "messages[1].content[1]"
    assert caught.value.faults[0].found == "a part of the type 'tool_use'"


def test_texts_without_a_shared_beginning_need_a_prompt():
    (fault,) = faults({"chosen": "four", "rejected": "five"}, "preference")
    assert fault.fix == "dataset.columns.prompt=<column>"
    (fault,) = faults({"chosen": A, "rejected": B}, "preference")
    assert "no prompt" in fault.found


# --- What is kept beside the form -----------------------------------------------------------------


def kept(row, to, keep=None):
    return kept_columns(row, read_layout(row, row, to=to), to, keep)


def test_rewards_get_the_other_columns(caplog):
    row = {"question": "2+2?", "answer": "4", "level": 1}
    assert kept(row, "prompt") == ("question", "answer", "level")
    assert kept(row, "prompt", ["answer", "reference"]) == ("answer",)
    assert kept(row, "demonstration") == ()
    assert caplog.text == ""


CLASHING = (
    *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"),
    *("input_ids", "labels", "tools", "label"),
)


@pytest.mark.parametrize("name", CLASHING)
def test_columns_that_change_what_trl_does_stay_behind(name, caplog):
    row = {"prompt": "2+2=", name: None, "answer": "4"}
    assert kept(row, "prompt") == ("answer",)
    assert f"`{name}` is left out" in caplog.text
    with pytest.raises(DataError) as caught:
        kept(row, "prompt", [name])
    assert caught.value.faults[0].fix == "give the column another name in the data"


def test_columns_of_the_form_stay_behind_without_a_word(caplog):
    row = {"prompt": "2+2=", "chosen": " 4", "rejected": " 5", "source": "x"}
    assert kept(row, "prompt") == ("source",)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "to"),
    [("audio", "messages"), ("video", "demonstration")],
)
def test_films_and_sounds_are_not_dropped(name, to):
    with pytest.raises(DataError) as caught:
        kept({"messages": Q + A, name: [b""]}, to)
    assert caught.value.faults[0].fix.startswith(f"dataset.without=[{name}]")
    assert kept({"messages": Q + A, "video": "a.mp4"}, "prompt") == ("video",)


@pytest.mark.parametrize(
    ("margin", "is_good"), [(0.5, True), (2, True), ("1.5", True), (None, False), ("x", False)]
)
def test_the_margin_of_a_pair_is_a_number(margin, is_good, caplog):
    row = {"prompt": "2+2=", "chosen": " 4", "rejected": " 5", "margin": margin}
    (made,) = convert(row, read_layout(row, row, to="preference"), "preference")
    assert made.get("margin") == (float(margin) if is_good else None)
    assert ("`margin` is left out" in caplog.text) != is_good
    layout = read_layout(row, row | {"margin": 1}, to="preference")  # as the first row has it
    with contextlib.nullcontext() if is_good else pytest.raises(DataError, match="a number"):
        convert(row, layout, "preference")


def test_a_reward_that_takes_a_missing_column_is_refused():
    with pytest.raises(DataError) as caught:
        kept({"question": "2+2?", "answer": "4"}, "prompt", ["anwser"])
    assert caught.value.faults[0].fix == "a reward that asks for answer"
    with pytest.raises(DataError):
        kept({"prompt": "2+2="}, "prompt", ["reference"])


def test_a_reference_of_the_source_stays():
    row = {"prompt": "2+2=", "completion": " 4", "reference": "four"}
    layout = read_layout(row, row, to="prompt")
    conversion = Conversion(RowRequest(to="prompt"), layout, kept=kept(row, "prompt"))
    assert conversion.one(row) == [{"prompt": "2+2=", "reference": "four"}]


# --- Turns ----------------------------------------------------------------------------------------


def test_turns_keep_what_templates_render_and_lose_the_rest():
    call = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]
    turns = [
        user("2+2?") | {"id": 3, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": call},
        {"role": "tool", "name": "add", "content": "4", "score": 1.0},
        bot("4") | {"reasoning_content": "Add."},
    ]
    (made,) = converted({"messages": turns, "tools": call}, "messages")
    assert made["messages"] == [
        user("2+2?"),
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "4", "name": "add"},
        bot("4") | {"reasoning_content": "Add."},
    ]
    assert kept({"messages": turns, "tools": call}, "demonstration") == ("tools",)


@pytest.mark.parametrize("last", [{"type": "text", "text": "2?"}, "2?"])
def test_text_in_parts_is_joined(last):
    parts = [{"type": "text", "text": "2+"}, last]
    row = {"messages": [{"role": "user", "content": parts}, *A]}
    assert converted(row, "messages") == [{"messages": Q + A}]


def test_preferences_of_openai_are_read_by_their_names():
    row = {"input": {"messages": Q, "tools": []}, "preferred_output": A, "non_preferred_output": B}
    assert converted(row, "preference") == [{"prompt": Q, "chosen": A, "rejected": B}]
    with pytest.raises(DataError, match="tools inside of the input"):
        converted({**row, "input": {"messages": Q, "tools": [{"name": "add"}]}}, "preference")


def test_turns_in_a_cell_of_csv_are_read_from_their_json():
    assert converted({"messages": json.dumps(Q + A)}, "messages") == [{"messages": Q + A}]


@pytest.mark.parametrize("part", [5, None, ["2?"]])
def test_a_part_that_is_no_mapping_is_refused(part):
    parts = [{"type": "text", "text": "2+"}, part]
    with pytest.raises(DataError) as caught:
        converted({"messages": [{"role": "user", "content": parts}, *A]}, "messages")
    assert caught.value.faults[0].where == "messages[0].content[1]"
    assert caught.value.faults[0].expected == "a part with type and text"


def test_a_conversation_without_an_answer_is_a_prompt():
    assert converted({"messages": LONG}, "prompt") == [{"prompt": LONG, "reference": None}]


# --- Bad rows -------------------------------------------------------------------------------------

BAD = [
    ({"messages": [user(None), *A]}, "messages", "messages[0].content", "null"),
    ({"messages": [user(7), *A]}, "messages", "messages[0].content", "int '7'"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "messages[0].role", "'robot'"),
    ({"messages": [{"content": "x"}]}, "messages", "messages[0].role", "null"),
    ({"messages": [*Q, None]}, "messages", "messages[1]", "null"),
    ({"messages": []}, "messages", "messages", "list '[]'"),
    ({"messages": "hi"}, "messages", "messages", "str 'hi'"),
    ({"messages": None}, "messages", "messages", "null"),
    ({"messages": Q}, "messages", "messages", "a conversation that ends with the user"),
    ({"messages": [*Q, bot(" ")]}, "messages", "messages", "empty text from the assistant"),
    ({"messages": A}, "prompt", "messages", "an answer without a prompt"),
    ({"text": None}, "demonstration", "text", "null"),
    ({"text": 3}, "demonstration", "text", "int '3'"),
    ({"text": "\n"}, "demonstration", "text", "empty text"),
    ({"prompt": " ", "completion": "4"}, "demonstration", "prompt", "empty text"),
    ({"prompt": "2+2=", "completion": ""}, "demonstration", "completion", "empty text"),
    ({"prompt": "2+2=", "completion": None}, "demonstration", "completion", "null"),
    ({"prompt": Q, "completion": Q}, "demonstration", "completion", "ends with the user"),
    ({"input": "2+2?", "target": None}, "demonstration", "target", "null"),
    ({"prompt": Q, "chosen": [bot("")], "rejected": B}, "preference", "chosen", "empty text"),
    ({"prompt": Q, "chosen": "4", "rejected": B}, "preference", "rejected", "a text on one side"),
    ({"prompt": Q, "completion": A, "label": None}, "unpaired", "label", "null"),
    ({"prompt": Q, "completion": A, "label": "yes"}, "unpaired", "label", "str 'yes'"),
]


@pytest.mark.parametrize(("row", "to", "where", "finding"), BAD)
def test_rows_that_cannot_be_meant(row, to, where, finding):
    (fault,) = faults(row, to)
    assert fault.where == where
    assert finding in fault.found


def test_silence_may_be_judged_bad():
    row = {"prompt": Q, "completion": [bot("")], "label": False}
    assert converted(row, "unpaired") == [row]
    row = {"prompt": "2+2=", "chosen": " 4", "rejected": ""}
    assert converted(row, "preference") == [row]


def batched(rows, to, **how):
    """The rows of a whole source, and the Conversion that made them."""
    layout = read_layout(rows[0], rows[0], to=to)
    conversion = Conversion(RowRequest(to=to, **how), layout, label="data train", total=len(rows))
    conversion.first(rows)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    made = conversion.batch(columns, range(len(rows)))
    return [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)]


ROWS = [{"input": f"{n}+1?", "target": str(n + 1)} for n in range(20)]


def test_bad_rows_are_raised_together_and_the_first_five_are_shown():
    rows = [row | {"target": None} if place % 3 == 0 else row for place, row in enumerate(ROWS)]
    with pytest.raises(DataError) as caught:
        batched(rows, "demonstration")
    summary, *shown = caught.value.faults
    assert summary.found == "7 of 20 rows are bad, the first 5 are below"
    assert "dataset.bad_rows=drop" in summary.fix
    assert [fault.where for fault in shown] == [
        f"data train row {place}, target" for place in (0, 3, 6, 9, 12)
    ]


def test_bad_rows_may_be_left_out_and_are_reported(caplog):
    rows = [ROWS[0], ROWS[1] | {"target": " "}, ROWS[2]]
    made = batched(rows, "demonstration", bad_rows="drop")
    assert [row["completion"][0]["content"] for row in made] == ["1", "3"]
    assert "data train row 1, target" in caplog.text
    assert "empty text" in caplog.text


def test_rows_left_out_are_counted(caplog):
    pairs = [{"prompt": Q, "chosen": A, "rejected": rejected} for rejected in (A, B, A)]
    assert len(batched(pairs, "preference")) == 1
    judged = [{"prompt": Q, "completion": A, "label": label} for label in (True, False)]
    assert batched(judged, "demonstration") == [{"prompt": Q, "completion": A}]
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert warnings == [
        "data train: 2 rows left out: chosen equals rejected",
        "data train: 1 rows left out: the label is false",
    ]


def test_one_column_holds_one_kind():
    rows = [{"prompt": "2+2=", "completion": " 4"}, {"prompt": Q, "completion": A}]
    with pytest.raises(DataError) as caught:
        batched(rows, "demonstration")
    assert caught.value.faults[1].where == "data train row 1, prompt"
    assert "plain text" in caught.value.faults[1].expected


def test_a_stream_reports_bad_rows_with_each_batch():
    conversion = Conversion(
        RowRequest(to="demonstration"), RowLayout("text", {"text": "text"}), like={"text": ""}
    )
    assert conversion.batch({"text": ["a"]}, [0]) == {"text": ["a"]}
    with pytest.raises(DataError) as caught:
        conversion.batch({"text": ["b", None]}, [1, 2])
    assert caught.value.faults[1].where == "rows row 2, text"
    assert conversion.batch({"text": ["c"]}, [3]) == {"text": ["c"]}


def python(code, **variables):
    tests = Path(__file__).parent
    paths = os.pathsep.join([str(tests.parent), str(tests)])
    environment = os.environ | {"PYTHONPATH": paths} | variables
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_nothing_hangs_on_the_order_of_a_set(seed):
    code = (
        "from test_convert import *\n"
        "for row, form, wanted in CELLS.values():\n"
        "    assert read_layout(row, row).form == form\n"
        "    assert all(converted(row, to) == rows for to, rows in wanted.items())"
    )
    python(code, PYTHONHASHSEED=seed)


@pytest.mark.slow
def test_the_table_can_be_asked_before_anything_heavy_is_imported():
    code = (
        "import sys, runner.dataset.detect\n"
        "assert not {'torch', 'datasets', 'pyarrow', 'numpy', 'transformers'} & set(sys.modules)"
    )
    python(code)
