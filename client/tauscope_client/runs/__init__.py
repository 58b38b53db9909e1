"""The run folder: everything an evaluation leaves behind, and a kill at any moment loses nothing finished."""
