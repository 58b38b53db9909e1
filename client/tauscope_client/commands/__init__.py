"""The commands of `tauscope`, one module each; `cli` puts them together."""
