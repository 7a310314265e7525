"""What can be trained besides plain pre-training (that is `trainer.train` itself).

`mesh`, `dispatch` and `replacement` are pure: where a rank stands, who gets which samples,
who takes the place of the dead. `pool` holds the rank processes of a workload that is
driven by one controller process; `ppo` is such a workload.
"""
