"""Any of Megatron-LM's own training scripts, unedited, with Holdfast's hooks around it.

As a job: `entrypoint: ["python", "examples/megatron_lm.py", "/opt/Megatron-LM/pretrain_gpt.py",
"--save-interval", "500", ...]`: the script, then its own arguments; it saves in the job's directory.
Without an agent it is the script and nothing else: `torchrun --nproc-per-node 2
examples/megatron_lm.py /opt/Megatron-LM/pretrain_gpt.py ...`. Lines that are there for
Holdfast are marked with (n); the others are how Python starts a script. It needs Megatron-LM's
source tree, which is none of Holdfast's dependencies: docs/hooks.md says with which it ran.
"""

import runpy
import sys
from pathlib import Path

from trainer import hooks
from trainer.hooks.megatron_lm import Hooked


def main() -> None:
    """Run the script named first, as `python SCRIPT ARGUMENTS` does."""
    if len(sys.argv) < 2:
        sys.exit("usage: megatron_lm.py SCRIPT ARGUMENTS, for example /opt/Megatron-LM/pretrain_gpt.py --save ...")
    script = Path(sys.argv[1]).resolve()
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path[0] = str(script.parent)  # What it imports lies beside it, `megatron` too.
    hooks.start()  # (1) The agent hears of this rank while Megatron-LM is still being imported.
    from megatron.training import training  # (2)

    with Hooked(training) as holdfast:  # (3)
        sys.argv += holdfast.save_arguments() + holdfast.resume_arguments()  # (4)
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
