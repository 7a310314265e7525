"""Blocks of the pages that `test_page_blocks` runs: each by its page and its first line."""

DATA = (
    "docs/data.md: python -m trainer.data build --input a.txt b.txt --output /data/set       # each file is a document"
)
SECRETS = "deploy/secrets/README.md: umask 077"
PLAIN_RUN = (
    "docs/ppo.md: python -m trainer.workloads.ppo --steps 30 --save-every 10      # a plain run; the reward rises"
)
RUN_HERE = (DATA, SECRETS, PLAIN_RUN)
