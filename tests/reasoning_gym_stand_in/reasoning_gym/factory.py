"""The datasets by their names."""

DATASETS = {}


def register_dataset(name, dataset, config):
    DATASETS[name] = (dataset, config)


def create_dataset(name, **settings):
    dataset, config = DATASETS[name]
    config = config(**settings)
    config.validate()
    return dataset(config)
