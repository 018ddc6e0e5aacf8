"""A training, from the folder of its run to a trained model.

components      all that the configuration names, as they need each other; its trained_model loads
                what a training has left
extension       the one subclass of the trainer, which calls hooks; precompute and
                sequence_objective say what it adds, held_out how it evaluates
callback        the user's callbacks and the runner's; checkpoint seals what is saved
health          the figures by which the alarms (``run.alarms``) find a sick training; recovery goes
                on from before it
inspection      the tokens that are really trained, with stand_in without what costs
exported_model  the finished model, for others to load
"""
