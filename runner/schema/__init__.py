"""The arguments of any dotted target, read from the installed source: nothing is imported.

    read.read_signature("trl.DPOConfig")                     139 parameters with types and defaults
    read.choices_compared("trl.DPOTrainer", "loss_type")     the names that its source knows
    source.find_definition("trl.DPOConfig").home             where a name really comes from
    type.to_type(annotation, module)                         the values that a parameter accepts
    text.flatten(cfg), text.to_text(value)                   the same the other way: dotted keys and text to type
    text.nearest("lerning_rate", fields)                     what was probably meant
    upstream                                                 the names of TRL and the Trainer that our code relies on

Where the source cannot say, the answer accepts everything rather than refuse something good.
"""
