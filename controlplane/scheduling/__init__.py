"""Gang placement of pending jobs and reservations of spares."""
