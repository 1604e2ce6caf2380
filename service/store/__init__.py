"""The only SQL. `tables` is the schema, `session` the only commit, one further module per aggregate root."""
