"""The trunk of a model, which is all of it but its head."""

from transformers import PreTrainedModel


def find_backbone(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head, also where its class names another part, as that of Llama 4."""
    if model.base_model is not model:
        return model.base_model
    for part in model.children():
        if isinstance(part, PreTrainedModel):
            return part
    return model
