"""Five lines that let any training loop be watched, saved and preempted by Holdfast.

    from trainer import hooks

    run = hooks.start()                                   # 1: nothing happens without an agent
    with run.section("setup"):                            # 2
        model = build()
    for step in range(first, steps):
        with run.step(step) as said:                      # 3
            said.report(loss=train(), tokens=tokens)
        wanted = run.wanted()                             # 4: the same answer on every rank
        if wanted.save:
            with run.saving(path, step=step + 1):
                save(path)
        if wanted.leave:
            break
    sys.exit(run.finish())                                # 5

Needs the standard library and msgspec; imports neither torch nor Megatron. docs/hooks.md
tells the whole contract, `examples/megatron_loop.py` is a loop that runs.
"""

from trainer.hooks.agreement import any_rank
from trainer.hooks.run import Run, Step, Wanted
from trainer.hooks.starting import shield_worker, start

__all__ = ["Run", "Step", "Wanted", "any_rank", "shield_worker", "start"]
