"""Prompt files as people have them, read into one kind of record.

Owns the formats and their errors. Does not own tokens: prompts are rendered by the target service.
"""

from tauscope_client.prompts.files import PromptFile, PromptFileError, find_prompts, load_prompts
from tauscope_client.prompts.record import PromptRecord

__all__ = ["PromptFile", "PromptFileError", "PromptRecord", "find_prompts", "load_prompts"]
