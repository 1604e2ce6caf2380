"""The vocabulary shared by the service and the workers: pure values, no I/O, no database, no Spark."""
