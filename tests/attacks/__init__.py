"""Each hole that was found, as the attack that went through it; each fails since it is closed."""
