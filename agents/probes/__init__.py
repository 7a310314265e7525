"""Devices behind one Protocol: real ones (nvml), and an honest toy (simulated)."""
