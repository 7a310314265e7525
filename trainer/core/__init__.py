"""The rank's side of the view protocol, without torch, sockets, clocks or threads.

`RankCore.handle(event)` returns effects. Who carries them out is an interpreter: the trainer over
torch and sockets (`trainer.replica`), the simulator over a virtual clock.
"""
