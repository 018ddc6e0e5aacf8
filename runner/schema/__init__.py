"""The arguments of any dotted target, read from the installed source: nothing is imported.

    read.read_signature("trl.DPOConfig")                     139 parameters with types and defaults
    choices.choices_compared("trl.DPOTrainer", "loss_type")  the names that its source knows
    source.find_definition("trl.DPOConfig").home             where a name really comes from
    type.to_type(annotation, module)                         the values that a parameter accepts
    text.flatten(cfg), literal.to_text(value)                dotted keys, text to type
    did_you_mean.nearest("lerning_rate", fields)             what was probably meant
    refusal.find_refusals(target, method, values)            errors that a constructor would raise
    upstream, trainer_args                                   names of TRL that our code relies on

Where the source cannot say, the answer accepts everything rather than refuse something good.
"""
