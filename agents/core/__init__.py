"""Every decision of the agent, pure: `step(state, event) -> (state, effects)`.

Time comes in as values of the node's monotonic clock (seconds). Nothing here imports
asyncio, socket, subprocess, threading, time, random or logging.
"""
