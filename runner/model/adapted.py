"""Models with an adapter on them, recognised without an import of peft.

That import takes a quarter of the time of a short command, and more where bitsandbytes is
installed. A model without an adapter does not need it.
"""

import sys
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, Union

from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import PeftModel

Model: TypeAlias = Union[PreTrainedModel, "PeftModel"]


def is_adapted(model: object) -> "TypeGuard[PeftModel]":
    """True for a model of peft, which can only be where peft was imported."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)
