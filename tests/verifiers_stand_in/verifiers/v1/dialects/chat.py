def message_to_wire(message):
    return dict(message)
