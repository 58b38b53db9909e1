"""The commands of `tauscope-drafter`, one module each. They load torch only once they run."""
