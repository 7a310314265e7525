"""One script per goal; each prints a table and writes JSON under benchmarks/results/."""
