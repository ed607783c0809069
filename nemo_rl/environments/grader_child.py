"""A grader process: `python -m nemo_rl.environments.grader_child FD`, spoken to over the socket FD.

Started as a plain command and not through multiprocessing, which would import the driver's main module, and with
it torch, in every grader. It speaks over its own socket because a reward function may print.
"""

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from nemo_rl.environments.grading import as_grade, load_entry_point

DEADLINE_MARGIN_S = 5.0


def main(descriptor: int) -> None:
    """Answers ("ok", reward, answer) or ("error", text) to each (response, metadata, timeout_s) until the pipe ends."""
    pipe = Connection(descriptor)
    sys.path[:], entry_point = pipe.recv()
    try:
        grader = load_entry_point(entry_point)
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))
        return
    pipe.send(("ok",))
    while True:
        try:
            response, metadata, timeout_s = pipe.recv()
        except EOFError:
            return
        # The pool kills a late grader. Should the pool itself be dead, the kernel's alarm does, even while C code
        # never returns to the interpreter: the default action needs no Python.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, timeout_s + DEADLINE_MARGIN_S)
        try:
            grade = as_grade(grader(response, metadata))
            answer: tuple[Any, ...] = ("ok", grade.reward, grade.answer)
        except Exception as error:  # sent on to the pool, which counts it under its own name
            answer = ("error", f"{type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send(answer)


def end_group_with_me() -> None:
    """However this process ends, by the alarm too, nothing that a reward function started outlives it.

    The shell waits for the end of a pipe that this process holds open, then kills the group, which it is in itself.
    """
    read_end, _held_until_exit = os.pipe()
    subprocess.Popen(
        ["sh", "-c", "read line; kill -9 0"], stdin=read_end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(read_end)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the driver's; the closed pipe ends this process
    end_group_with_me()
    main(int(sys.argv[1]))
