"""The roles that columns of a dataset may play: the keys of ``dataset.columns``."""

from collections.abc import Mapping
from typing import Literal, get_args

# Text in `prompt` or `completion` is continued as it stands; in `input` or `target` it is a turn of
# a conversation.
TextRole = Literal[
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "label",
    "messages",
    "system",
    "input",
    "target",
    "text",
    "margin",
    "reference",
    "input_ids",
    "labels",
    "attention_mask",
    "completion_mask",
    "assistant_masks",
    "chosen_ids",
    "rejected_ids",
    "history",
    "context",
]
# The columns in which each converted row has lists of media.
MediaColumn = Literal["images"]
Role = TextRole | MediaColumn
ROLES: tuple[Role, ...] = (*get_args(TextRole), *get_args(MediaColumn))
RoleColumns = Mapping[Role, str]  # the column that plays each role
