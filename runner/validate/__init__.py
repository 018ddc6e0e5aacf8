"""Everything that is wrong with a configuration, at once, before torch is imported.

    configuration.find_all_faults   the configuration alone, key by key; below, who finds what
    mismatches.find_mismatches      rows, metrics and callbacks against the trainer
    start.check_ahead               the world around runs, before a folder is made; below, by what

    top, node, stray             keys of the top level and of nodes, and where a stray one belongs
    values, targets              one value, and one ``_target_``
    values_at_keys               what a key or the trainer asks of a value
    dangers, plain_secrets       what a configuration would run, publish or give away, by ``risks``
    checks                       the list of what follows
    parts, loss_parts            groups and fields that exclude each other; with adapter_parts,
                                 optimizer_parts, sampler_parts, strategy and training_fields
    passed_on                    mappings that a library reads late
    effect                       typed fields that nothing reads
    constructor_errors           what the trainer itself would refuse
    adapter_start                an adapter below a new one, which is merged
    model_folders, row_columns   files that a run loads, and rows that its parts need
    libraries, versions          what must be installed; machine, hub_names

The schema is the signature of what each ``_target_`` names: only what a signature cannot say is
written down here.
"""
