"""The GPU-second ledger: every second of every device in exactly one class, each with its cause (ADR 0043).

`account(facts, since_s, until_s)` is a pure function: of devices' standing, of who held them and of what each job's
time was (`runs`, made of the gaps that `policy.spent` judges) it makes amounts by class, cause, job and node. It
defines no effective time: what is productive is kept steps x the undisturbed step, as `policy.goodput` has it.
"""
