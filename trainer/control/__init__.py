"""The rank's side of the agent's socket: what it says, what it is told, how it leaves."""
