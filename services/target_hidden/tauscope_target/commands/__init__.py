"""The commands of `tauscope-target`, one module each; heavy imports happen inside them."""
