"""`python -I -S program.py SOCKET ARGV...`: in this process's place a fork of the server at SOCKET (`tests.forks`).

For a shell, which starts programs by name. It has this process's environment, folder and files, and ends with
its code; whoever kills this one has killed the other.
"""

import json
import os
import socket
import sys


def main(address: str, argv: list[str]) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(address)
        asked = {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}
        socket.send_fds(line, [json.dumps(asked).encode() + b"\n"], [0, 1, 2])
        answers = line.makefile("rb")
        answers.readline()
        told = answers.read()
    code = int(json.loads(told)["code"]) if told else 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
