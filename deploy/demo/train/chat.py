"""Chat format of the demo models: special tokens, template, the three tasks, and the fixed prompts of the demo."""

from typing import NamedTuple

END_OF_TEXT, MASK, IM_START, IM_END = range(4)
SPECIAL_TOKENS = ("<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>")
STOP_IDS = (IM_END, END_OF_TEXT)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Function(NamedTuple):
    """One Python function cut from a file.

    Attributes:
        name: Its name.
        head: Dedented text up to and with the colon of the signature.
        signature: Name and arguments on one line, without ``def``.
        summary: First sentence of the docstring without its full stop, or None.
        body: Dedented to the function's own level, without the docstring.
    """

    name: str
    head: str
    signature: str
    summary: str | None
    body: str


class Pair(NamedTuple):
    """One chat pair: which task, what the user writes, what the assistant answers."""

    task: str
    user: str
    answer: str


def render(user: str, answer: str | None = None) -> str:
    """The rendered conversation: up to the generation prompt, or with the answer and its end."""
    prompt = f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    return prompt if answer is None else f"{prompt}{answer}<|im_end|>\n<|endoftext|>"


def fenced(code: str) -> str:
    """A Markdown Python block."""
    return f"```python\n{code}\n```"


def with_docstring(head: str, summary: str | None) -> str:
    """Signature followed by a one-line docstring, if there is one."""
    return head + (f'\n    """{summary}."""' if summary else "")


def ask_complete(head: str, summary: str | None) -> str:
    """Prompt of the task ``complete``: signature and docstring given, the answer repeats them and adds the body."""
    return f"Complete this Python function.\n\n{fenced(with_docstring(head, summary))}"


def ask_write(signature: str, summary: str | None) -> str:
    """Prompt of the task ``write``: the signature in a sentence."""
    return f"Write a Python function `{signature}`." + (f" {summary}." if summary else "")


def ask_docstring(function: Function) -> str:
    """Prompt of the task ``docstring``: code given, one line of prose wanted."""
    return f"Write a docstring for this function.\n\n{fenced(function.head + chr(10) + function.body)}"


MAX_SIGNATURE_CHARS = 200
DOCSTRING_SHARE = 6
"""Every sixth function with a docstring is asked for the docstring instead of the completion."""


def pairs_of(function: Function, digest: int) -> list[Pair]:
    """The chat pairs made of one function; ``digest`` (any stable integer of it) picks the task where there is a
    choice.
    """
    head, summary, body = function.head, function.summary, function.body
    if summary and digest % DOCSTRING_SHARE == 0:
        first = Pair("docstring", ask_docstring(function), f'"""{summary}."""')
    else:
        first = Pair("complete", ask_complete(head, summary), fenced(f"{with_docstring(head, summary)}\n{body}"))
    if not summary or len(function.signature) > MAX_SIGNATURE_CHARS:
        return [first]
    return [first, Pair("write", ask_write(function.signature, summary), fenced(f"{head}\n{body}"))]


FRESH_PROMPTS = (
    Pair("write", ask_write("reverse_words(text)", "Reverse the order of the words in a string"), ""),
    Pair(
        "complete",
        ask_complete("def moving_average(values, window):", "Return the moving average of a list of numbers"),
        "",
    ),
    Pair("write", ask_write("flatten_nested(items)", "Flatten a nested list into a single list"), ""),
    Pair("write", ask_write("count_lines(path)", "Count the number of lines in a text file"), ""),
    Pair(
        "complete",
        ask_complete("def softmax_rows(scores, axis=-1):", "Compute the softmax of an array along an axis"),
        "",
    ),
    Pair(
        "complete",
        ask_complete(
            "def store_value(self, key, value):", "Add a value to the cache and drop the oldest entry if it is full"
        ),
        "",
    ),
    Pair("write", ask_write("is_prime(n)", "Return True if the number is prime"), ""),
    Pair(
        "complete",
        ask_complete(
            "def load_settings(path, default=None):", "Load settings from a JSON file and return a dictionary"
        ),
        "",
    ),
    Pair("write", ask_write("merge_two_sorted(left, right)", "Merge two sorted lists into one sorted list"), ""),
    Pair(
        "complete",
        ask_complete(
            "def resize_image(image, width, height, keep_ratio=True):", "Resize an image to the given width and height"
        ),
        "",
    ),
)
"""Prompts written for the demo; whether a function of that name is in the training data is counted and reported."""
