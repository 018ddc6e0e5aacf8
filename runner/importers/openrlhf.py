"""OpenRLHF: datasets and the roles of their columns, which turns are trained, and rewards."""

from pathlib import Path

from runner.config.conversion import to_number, to_plain_text, to_whole_number, to_words
from runner.config.dialect import is_wanted
from runner.importers.dataset_entries import hold_out, write_rows
from runner.importers.draft import HIDDEN, MAPPED, SAME, Draft, Part
from runner.importers.reward_entries import model_entry, overlong_entry

# Trainers that sample, and thus have prompts and rewards.
ONLINE = ("ppo", "grpo", "rloo")
SCORE_QUERIES = "runner.reward.query_function.score_queries"
RENDER_TEXT = "runner.dataset.step.render_text"
# The split that is held out, where it is not that of the training.
EVAL_SPLITS = {"dpo": "test"}


def read_openrlhf(draft: Draft) -> None:
    """Write the datasets, the rewards, and the unit of equal weight in the loss."""
    _read_tracker(draft)
    has_answers = draft.keys.get("output_key") or draft.keys.get("pretrain_mode")
    if draft.trainer in ("sft", "gkd") and not has_answers and not _has_chat(draft):
        draft.imply({"output_key": "output"})
        why = "not said: earlier versions read input and output, the newest trains no token"
        draft.no_equivalent("output_key", why, "dataset.columns.completion=<column>")
    nodes = []
    for word in draft.read("dataset", to_words, []):
        nodes.append(_to_node(draft, word))
    tests = []
    default_split = EVAL_SPLITS.get(draft.trainer, "train")
    for word in draft.read("eval_dataset", to_words, []):
        test = _to_node(draft, word)
        test["split"] = {"train": draft.read("eval_split", to_plain_text, default_split)}
        tests.append(test)
    hold_out(draft, nodes, "eval_dataset", tests)
    write_rows(draft, nodes)
    _note_columns(draft)
    if draft.trainer in ONLINE:
        _read_rewards(draft)
    # Since 0.10 a token counts as much in every micro-batch, before within its own.
    is_new = any("." in name for name in draft.reading.written_names.values())
    is_of_sequences = draft.keys.get("policy_loss_type") == "gspo"
    if draft.trainer == "grpo" and not is_new and not is_of_sequences:
        draft.put("trainer.args.loss_type", "bnpo")


def _read_tracker(draft: Draft) -> None:
    """Choose wandb where its key says so; the key itself is a secret."""
    key = "use_wandb"
    if not is_wanted(draft.keys.get(key), "enabled"):
        return
    if draft.keys[key] is not True:
        draft.keys[key] = HIDDEN
    draft.choices["tracker"] = "wandb"
    why = "its key is exported, and in no file of ours"
    draft.note(MAPPED, key, "tracker=wandb", why)


# --- Datasets -------------------------------------------------------------------------------------


def _to_node(draft: Draft, word: str) -> Part:
    """The node of a dataset, whose word may name a folder of it behind an @."""
    path, _, folder = word.partition("@")
    if path in ("json", "csv", "parquet") and folder:
        path, folder = folder, ""
    if folder:
        why = f"the folder {folder} of {path}"
        draft.no_equivalent("dataset", why, f"dataset.path=hf://datasets/{path}/{folder}")
    node: Part = {"path": path.strip(), "form": draft.form, "columns": _read_columns(draft)}
    text = _read_template(draft)
    if text:
        column = _name(draft, "input_key", "prompt_key")
        node["map"] = {"_target_": RENDER_TEXT, "column": column, "text": text}
    if draft.trainer in ("sft", "gkd"):
        node["form"] = _form_of_demonstrations(draft)
    return node


def _name(draft: Draft, *keys: str) -> str:
    """The column that the first of these keys names; empty where none does."""
    if draft.trainer in ("dpo", "reward"):
        keys = tuple(key for key in keys if key != "input_key")
    for key in keys:
        name = draft.read(key, to_plain_text, "")
        if name:
            return name
    return ""


def _has_chat(draft: Draft) -> bool:
    return is_wanted(draft.keys.get("apply_chat_template"), "enabled")


def _form_of_demonstrations(draft: Draft) -> str:
    if draft.keys.get("pretrain_mode"):
        return "text"
    if draft.read("output_key", to_plain_text, ""):
        return "prompt_completion"
    return "messages"


def _read_columns(draft: Draft) -> dict[str, str]:
    """The columns by their roles.

    A text becomes a turn under the role input or target, and is continued as it stands under the
    role prompt or completion.
    """
    if draft.trainer in ("dpo", "reward"):
        names = {
            "prompt": _name(draft, "prompt_key"),
            "chosen": draft.read("chosen_key", to_plain_text, "chosen"),
            "rejected": draft.read("rejected_key", to_plain_text, "rejected"),
        }
        return {role: name for role, name in names.items() if name}
    prompt = _name(draft, "input_key")
    if draft.trainer in ("sft", "gkd"):
        form = _form_of_demonstrations(draft)
        if form != "prompt_completion":
            return {form: prompt}
    question, answer = ("input", "target") if _has_chat(draft) else ("prompt", "completion")
    columns = {question: prompt}
    if draft.trainer not in ONLINE:
        columns[answer] = draft.read("output_key", to_plain_text, "output")
    if draft.trainer == "kto":
        columns["label"] = draft.read("label_key", to_plain_text, "label")
    return columns


def _read_template(draft: Draft) -> str:
    """The text around a prompt that no chat template renders, as ``render_text`` takes it."""
    template = draft.read("input_template", to_plain_text, "")
    column = _name(draft, "input_key", "prompt_key")
    is_rendered = _has_chat(draft) or draft.keys.get("pretrain_mode") or not column
    if is_rendered or "output_key" in draft.implied or "{}" not in template:
        return ""
    before, _, after = template.partition("{}")
    placeholder = "{{" + column + "}}"
    return _single_braces(before) + placeholder + _single_braces(after)


def _single_braces(text: str) -> str:
    """A part of a format of Python, in which braces are doubled, as it comes out."""
    return text.replace("{{", "{").replace("}}", "}")


def _note_columns(draft: Draft) -> None:
    """Note the keys of columns, and train the turns that theirs trains."""
    roles = draft.parts[0].get("columns", {})
    by_column = {column: role for role, column in roles.items()}
    for key in ("input_key", "output_key", "label_key", "prompt_key", "chosen_key", "rejected_key"):
        column = draft.keys.get(key)
        if column is None or key in draft.handled:
            continue
        if column in by_column:
            draft.note(MAPPED, key, f"dataset.columns.{by_column[column]}: {column}")
        elif key == "label_key":
            draft.note(SAME, key, why="rewards are given each column by its name")
        else:
            draft.note(SAME, key, why="the column has the name of its role, or is not read")
    template_key = "input_template"
    if draft.keys.get(template_key) is not None:
        if draft.parts[0].get("map"):
            draft.note(MAPPED, template_key, f"dataset.map: {RENDER_TEXT}")
        else:
            draft.note(SAME, template_key, why="not used: the chat template, or no column")
    if draft.trainer == "sft":
        _weigh_turns(draft)


def _weigh_turns(draft: Draft) -> None:
    """Choose which turns of conversations are trained: the last answer, or with a key each."""
    key = "multiturn"
    form = _form_of_demonstrations(draft)
    is_each = is_wanted(draft.keys.get(key), "enabled")
    if form == "messages":
        draft.put("trainer.form", "messages")
        draft.choices["weight"] = "answers" if is_each else "last_round"
        draft.imply({key: False})
        draft.note(MAPPED, key, f"weight={draft.choices['weight']}", "only that is trained")
    elif draft.keys.get(key) is not None:
        draft.note(SAME, key, why="no conversations")
    if draft.keys.get("pretrain_mode"):
        draft.note(MAPPED, "pretrain_mode", "dataset.form: text", "each token is trained")


# --- Rewards --------------------------------------------------------------------------------------


def _read_rewards(draft: Draft) -> None:
    """Write reward models and the cost of long answers; functions and servers are typed."""
    entries: Part = {}
    key = "remote_rm_url"
    urls = draft.take(key, to_words, [])
    models_key = "reward_pretrain"
    models = draft.take(models_key, to_words, [])
    if urls and models:
        draft.note(SAME, models_key, why=f"{key} is also set and counts")
        models = []
    for path in models:
        name = "model" if not entries else f"model_{len(entries)}"
        entries[name] = model_entry(path)
        draft.note(MAPPED, models_key, f"reward.{name}.path: {path}")
    _read_overlong(draft, entries)
    if entries:
        draft.values["reward"] = entries
    for url in urls:
        if not url.endswith(".py"):
            why = f"{url}: it is sent answers, so it is typed; ours speaks another form"
            draft.no_equivalent(key, why, "reward=remote reward.remote.url=<address>")
            continue
        module = Path(url).stem
        words = [
            f"reward.{module}._target_={SCORE_QUERIES}",
            f"reward.{module}.function._target_={module}.reward_func",
            f"reward.{module}.function._partial_=true",
        ]
        label = draft.read("label_key", to_plain_text, "")
        if label:
            words.append(f"reward.{module}.column={label}")
        words.append(f"allow=[{module}]")
        draft.overrides += words
        why = "your own code, which is allowed when it is typed; its queries have no marks of chats"
        draft.no_equivalent(key, why, " ".join(words))


def _read_overlong(draft: Draft, entries: Part) -> None:
    """Write the cost of answers whose end lies in a last part of what is allowed."""
    key = "overlong_buffer_len"
    factor_key = "overlong_penalty_factor"
    last_tokens = draft.read(key, to_whole_number, 0)
    if not last_tokens:
        return
    longest = draft.keys.get("max_new_tokens") or draft.keys.get("generate_max_len")
    if not isinstance(longest, int):
        longest = draft.read("max_len", to_whole_number, 0)
    factor = draft.read(factor_key, to_number, 1.0)
    entries["soft_overlong"] = overlong_entry(longest, last_tokens, factor)
    draft.note(MAPPED, key, "reward.soft_overlong", f"of {longest} tokens the last {last_tokens}")
    if draft.keys.get(factor_key) is not None:
        draft.note(MAPPED, factor_key, "reward.soft_overlong.weight")
