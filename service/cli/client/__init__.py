"""The commands that talk to a service over its public API, wherever that runs: nothing here knows what is behind it.

options       what every command takes: `--url`, `--key-file`, `--json`
session       connection and output of one command
connection    requests, tried again within bounds; `address`, `credentials`, `patience`, `refusals` are its parts
service       the operations of the API, one method each
answers       what is read of the answers, whatever else they hold
output        what is written where; `safe_text`, `progress`, `carets` and the `show_*` modules are its parts
job_input     a job from files and options
others        one command or family of commands a module
"""
