"""The one thing that all errors of a user have in common."""


class UserError(Exception):
    """What the person who started a run can set right. The message is one sentence per problem; entry points print it
    without a traceback and end with exit code 2."""


def first_line(error: Exception) -> str:
    """The part of a foreign error's text that fits into a sentence; its type where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
