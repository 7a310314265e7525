"""The local tier: frequent saves on the nodes' own disks, with copies on other nodes.

`shard` is the file of one rank, `disk` what one node keeps, `peers` how nodes send each
other shards, `tier` the part the training loop and the loader talk to.
"""
