"""Prompts written for these tests; no text of a person, no text of a data set."""

from typing import Final

from tauscope_wire.messages import Message

__all__ = ["FRESH", "PROMPTS", "WALKED", "messages"]

PROMPTS: Final[dict[str, str]] = {
    "fibonacci": "Write a Python function that returns the n-th Fibonacci number.",
    "short-stop": "Answer with one word: what colour is the sky on a clear day?",
    "reverse": "Write a Python function that reverses the words of a sentence.",
    "primes": "Write a Python function that lists the prime numbers below n.",
    "palindrome": "Write a Python function that tells whether a string is a palindrome.",
    "counter": "Write a Python function that counts how often each letter occurs in a text.",
    "maximum": "Write a Python function that returns the largest number of a list.",
    "factorial": "Write a Python function that returns the factorial of n.",
    "temperature": "Write a Python function that converts degrees Celsius to Fahrenheit.",
    "vowels": "Write a Python function that counts the vowels of a word.",
}

FRESH: Final = ("temperature", "vowels")
"""Prompts that the small drafter of `engines.drafter` has not seen; it was trained on the answers to the others."""


WALKED: Final = ("fibonacci", "short-stop", "reverse", "primes", "palindrome", "temperature")
"""Prompts of the comparisons that walk: a round of another program's loop is slow on a CPU. Five seen, one fresh."""


def messages(name: str, *, repeat: int = 1) -> tuple[Message, ...]:
    """The prompt as a conversation of one turn; its text `repeat` times in a row, to make it long."""
    return (Message(role="user", content=" ".join([PROMPTS[name]] * repeat)),)
