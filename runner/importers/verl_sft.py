"""Supervised fine-tuning of verl: its rows are questions and answers, or conversations.

A question is a turn of the user's and an answer one of the assistant's, as in theirs, and only
answers are trained. Where both lie inside of a column, as in verl's own rows of gsm8k, a step of
ours takes them out.
"""

from runner.config.conversion import to_plain_text, to_weights, to_whole_number, to_words
from runner.config.dialect import is_wanted
from runner.importers.dataset_entries import find_nodes, hold_out_files, write_rows
from runner.importers.draft import MAPPED, SAME, Draft, is_unset
from runner.importers.verl_run import BATCH, read_schedule, read_sharding, read_steps

TRAIN_FILES = "data.train_files"
VAL_FILES = "data.val_files"


def read_verl_sft(draft: Draft) -> None:
    """Write the datasets, the batch and the steps of a supervised fine-tuning."""
    nodes = find_nodes(draft, TRAIN_FILES) or [{"path": "???"}]
    chats = read_chat_column(draft)
    for node in nodes:
        if chats:
            node["form"] = "messages"
            node["columns"] = {"messages": chats}
        else:
            node["columns"] = read_text_columns(draft)
    if chats:
        draft.choices["weight"] = "answers"
    hold_out_files(draft, nodes, VAL_FILES)
    write_rows(draft, nodes)
    if not chats:
        write_lift(draft)
    rows = draft.keys.get(BATCH)
    if is_unset(rows):
        why = f"{rows} is set by the shell, and not in this file"
        draft.no_equivalent(BATCH, why, "batch=<rows of a step>")
    else:
        draft.put("batch", draft.take(BATCH, to_whole_number, 256))
        draft.note(MAPPED, BATCH, f"batch: {draft.values['batch']}", "rows a step of all devices")
    read_steps(draft, 1)
    read_schedule(draft, "optim", 1)
    read_betas(draft)
    read_sharding(draft, "model.strategy", "model.fsdp_config.offload_params")


def read_chat_column(draft: Draft) -> str:
    """The column of conversations; empty where rows are questions and answers.

    The older trainer has both, and says by ``multiturn.enable`` which; the newer one has
    conversations only.
    """
    key = "data.multiturn.messages_key"
    if draft.keys.get("data.multiturn.enable") is not None:
        is_chat = is_wanted(draft.keys["data.multiturn.enable"], "enabled")
        shown = "dataset.form: messages" if is_chat else "a question and its answer"
        draft.note(MAPPED, "data.multiturn.enable", shown)
    else:
        key = "data.messages_key"
        is_chat = draft.keys.get(key) is not None
    if not is_chat:
        return ""
    draft.imply({key: "messages"})
    column = draft.take(key, to_plain_text, "messages")
    draft.note(MAPPED, key, f"dataset.columns.messages: {column}", "weight=answers")
    return column


TEXT_KEYS = {"input": "prompt", "target": "response"}  # roles of ours, by names of theirs


def read_text_columns(draft: Draft) -> dict[str, str]:
    """The columns of a question and its answer, which become turns of a chat."""
    columns = {}
    for role, name in TEXT_KEYS.items():
        key = f"data.{name}_key"
        words = draft.take(key, to_words, [])
        inner = draft.keys.get(f"data.{name}_dict_keys")
        place = [*words[:1], *(to_words(inner) if inner else [])]
        # A column inside of another one gets a name of its own.
        columns[role] = place[-1]
        draft.note(MAPPED, key, f"dataset.columns.{role}: {'.'.join(place)}")
        if inner:
            draft.note(MAPPED, f"data.{name}_dict_keys", f"dataset.map.columns.{place[-1]}")
        elif inner is not None:
            draft.note(SAME, f"data.{name}_dict_keys", why="none")
    return columns


def write_lift(draft: Draft) -> None:
    """Write the step that takes columns out of others, where theirs stand inside of one."""
    lifted = {}
    for name in TEXT_KEYS.values():
        inner = draft.keys.get(f"data.{name}_dict_keys")
        if inner:
            outer = to_words(draft.keys[f"data.{name}_key"])[0]
            inner_names = to_words(inner)
            lifted[inner_names[-1]] = ".".join([outer, *inner_names])
    if lifted:
        draft.put("dataset.map", {"_target_": "runner.dataset.step.lift", "columns": lifted})


def read_betas(draft: Draft) -> None:
    """Write both betas of AdamW."""
    key = "optim.betas"
    betas = draft.take(key, to_weights, [])
    if len(betas) == 2:
        for number, beta in enumerate(betas, 1):
            name = f"adam_beta{number}"
            if beta != draft.config.parameters[name].default:
                draft.put(f"trainer.args.{name}", beta)
        draft.note(MAPPED, key, "trainer.args.adam_beta1 and adam_beta2")
