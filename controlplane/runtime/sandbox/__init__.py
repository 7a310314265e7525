"""Where the server does what must be done with a job's files: apart from itself.

`service` starts a program in the sandbox, `launcher` is the process that makes it (both
described there), `plan` is what the one tells the other. The rest are the kernel's means.
"""
