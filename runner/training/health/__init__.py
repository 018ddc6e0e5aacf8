"""A sick training: alarms that observe every step, and the probe of weights and gradients that they share."""
