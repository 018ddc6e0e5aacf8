"""Tuners: what is trained. A function of ``model`` changes it and gives it back, or gives a PeftConfig to be put on."""

from peft import LoraConfig


def upper_half(model, also: tuple[str, ...] = ("norm",)):
    """The upper half of the layers, and what has one of the words of ``also`` in its name."""
    depth = model.config.num_hidden_layers
    for name, weight in model.named_parameters():
        number = next((int(part) for part in name.split(".") if part.isdigit()), -1)
        weight.requires_grad_(number >= depth // 2 or any(word in name for word in also))
    return model


def upper_lora(model, task_type, r: int = 8):
    """LoRA on the attention of the upper half of the layers; any target modules of this very model could be found."""
    depth = model.config.num_hidden_layers
    names = [
        name
        for name, _ in model.named_modules()
        if name.endswith(("q_proj", "v_proj")) and int(name.split("layers.")[1].split(".")[0]) >= depth // 2
    ]
    return LoraConfig(r=r, lora_alpha=2 * r, target_modules=names, task_type=task_type)
