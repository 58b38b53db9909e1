"""One module per family of drafters, all of the same shape: read, shapes, network."""
