"""The live edge: agents' and browsers' sockets, enrolment. Decides nothing."""
