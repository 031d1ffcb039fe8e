"""Another program as the trainer: it gets the batches of the train worker, and gives back weights."""
