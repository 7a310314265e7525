"""The demo fleet: every production process on one machine, loopback only, and the
scenes that break it. Nothing is faked but the devices' sensors."""
