"""Reward functions for the pool's tests; imported by grader processes by path."""

import os
import re
import subprocess
import time

from nemo_rl.environments.grading import Grade


def by_command(response, metadata):
    """Does what the response says."""
    command, _, argument = response.partition(" ")
    if command == "sleep":
        time.sleep(float(argument))
    if command == "run":
        subprocess.run(argument.split(), check=True)
    if command.startswith("start"):
        subprocess.Popen(argument.split())
    if command == "start_and_exit":
        os._exit(3)
    if command == "spin":  # one call into C that holds the interpreter for longer than anybody waits
        re.match(r"(a+)+$", "a" * 40 + "b")
    if command == "exit":
        os._exit(int(argument))
    if command == "raise":
        raise RuntimeError(argument)
    if command == "print":
        print(argument)
    if command == "nan":
        return float("nan")
    if command == "pid":
        return Grade(1.0, str(os.getpid()))
    return metadata.get("reward", 1.0)


NOT_A_FUNCTION = 3
