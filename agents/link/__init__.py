"""The way to the control plane: enrolment, the session, and what waits while it is cut."""
