"""A port that was found free is not taken by somebody's outgoing connection meanwhile."""

import socket
from pathlib import Path

from controlplane.demo.ports import free_port
from controlplane.protocol.launch import LISTENING_PORTS

HOST = "127.0.0.1"


def test_a_port_is_never_one_that_the_kernel_takes_for_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(LISTENING_PORTS) < first_outgoing
    assert {free_port(HOST) in LISTENING_PORTS for _ in range(50)} == {True}


def test_the_preferred_port_is_given_until_somebody_listens_there() -> None:
    preferred = free_port(HOST)
    assert free_port(HOST, preferred) == preferred
    with socket.socket() as taken:
        taken.bind((HOST, preferred))
        taken.listen()
        assert free_port(HOST, preferred) != preferred
