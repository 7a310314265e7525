"""The arithmetic that figures are made with is tested like any other."""
