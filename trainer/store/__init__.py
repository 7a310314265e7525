"""The rendezvous store: a server that torch's own clients speak to, with a secret for each job."""
