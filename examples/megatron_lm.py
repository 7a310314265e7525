"""Any of Megatron-LM's own training scripts, unedited, with Holdfast's hooks around it.

As a job: `entrypoint: ["python", "examples/megatron_lm.py", "/opt/Megatron-LM/pretrain_gpt.py",
"--save", "/shared/run1", "--save-interval", "500", ...]`: the script, then its own arguments.
Without an agent it is the script and nothing else: `torchrun --nproc-per-node 2
examples/megatron_lm.py pretrain_gpt.py ...`. docs/hooks.md says with which versions it ran.
"""

import runpy
import sys
from pathlib import Path

from trainer.hooks.megatron_lm import Hooked


def main() -> None:
    """Run the script named first, as `python SCRIPT ARGUMENTS` does."""
    script = Path(sys.argv[1]).resolve()
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path[0] = str(script.parent)  # Its helpers and its own `megatron` lie beside it.
    from megatron.training import training

    with Hooked(training) as holdfast:
        sys.argv += holdfast.resume_arguments()
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
