"""PPO-style training: an actor and a critic, both Megatron-core GPTs, on one mesh of ranks.

One step: prompts are rolled out by the actor and valued by the critic (`engine`), the
controller scores the responses and computes advantages (`arithmetic`), then each
mini-batch is one clipped update of both models with the gradients of all replicas.
`controller` drives it and recovers it; `python -m trainer.workloads.ppo --demo` shows it.
"""
