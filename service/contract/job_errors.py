"""The codes of errors in a URL, a job, posted rows and a run, with what is wrong and what to do, for the documentation.

A `service.contract.problems.SpecError`, an `Issue` or the stored `Problem` of a job has one of these codes. A request
that is refused for another reason has a code of `service.contract.errors`. A test fails when code raises an error whose
code is not declared here, and when a declared code is raised nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorCode:
    """A code with its meaning and remedy, each in Markdown.

    `status` is the HTTP status of the problem. A stored error of a job has 422 if the job or its data is the cause, and
    500 if the installation is.
    """

    code: str
    meaning: str
    remedy: str
    status: int = 422

    @property
    def title(self) -> str:
        """The title of problems with this code."""
        return self.code.replace("_", " ").capitalize()


OF_PARAMETERS = (
    ErrorCode(
        "unknown_query_parameter",
        "The URL has a query parameter that the operation does not have.",
        "Use the parameter or header that the detail names.",
    ),
)

OF_THE_JOB = (
    ErrorCode("sql_or_query", "The job has both `sql` and `query`, or neither.", "Give exactly one of them."),
    ErrorCode("parameters_without_sql", "A structured `query` has `parameters`.", "Write the values into `query`."),
    ErrorCode(
        "parameters_type",
        "`parameters` is neither an object nor a list.",
        "Give an object for `:name`, a list for `?`.",
    ),
    ErrorCode("parameter_name", "The name of a parameter is not valid.", "Use letters (A to Z), digits and `_`."),
    ErrorCode("parameter_type", "The `type` of a parameter is not an atomic SQL type.", "Use a type such as DATE."),
    ErrorCode("parameter_value", "The value of a parameter does not fit its type.", "Give what the detail names."),
    ErrorCode(
        "unknown_setting",
        "`settings` has a key that is neither a setting nor an alias of one.",
        "Use a suggested name.",
    ),
    ErrorCode(
        "contradicting_settings",
        "Two settings contradict each other, or a setting is given twice with different values.",
        "Remove one of them.",
    ),
    ErrorCode(
        "unsupported_join_strategy",
        "A join setting or hint asks for a strategy that Spark does not have for this join, or the query has no join.",
        "Remove the setting, or use a value that the detail names.",
    ),
    ErrorCode(
        "renamed_field", "A field is given under both its old and its new name.", "Remove the field with the old name."
    ),
    ErrorCode(
        "role_required", "A streaming job has several tables, and one has no `role`.", "Set `stream` or `static`."
    ),
    ErrorCode(
        "no_stream", "A streaming job reads no stream.", 'Set `"role": "stream"` for a table, or the mode `batch`.'
    ),
    ErrorCode(
        "only_for_streams",
        "A field, table format or sink of streaming jobs is used in a batch job or a profile.",
        "Set `mode` to `incremental` or `continuous`, or remove it.",
    ),
    ErrorCode(
        "event_time_not_applicable", "A static table has an `event_time`.", "Remove it, or set the role to `stream`."
    ),
    ErrorCode(
        "operation_not_applicable",
        "A static table has an `operation`, or the job has `append` or `refresh`, which cannot remove rows.",
        "Remove it, set the role to `stream`, or use `update`.",
    ),
    ErrorCode(
        "upsert_needs_order", "An `upsert` has no `order`.", "Name a column that grows with each change of a row."
    ),
    ErrorCode(
        "upsert_not_comparable",
        "A column of `upsert` has a type that cannot be compared, or `order` is none of Debezium's numbers.",
        "Name another column.",
    ),
    ErrorCode(
        "envelope_not_applicable",
        "A table with an `envelope` is not declared as JSON, or also has an `operation`.",
        "Set the format to `json`, or remove the field.",
    ),
    ErrorCode("envelope_needs_schema", "A table with an `envelope` has no `schema`.", "Declare the columns of a row."),
    ErrorCode("operation_not_text", "The column of `operation` is not a STRING.", "Name a STRING column."),
    ErrorCode("event_time_not_timestamp", "The column of `event_time` is not a TIMESTAMP.", "Name a TIMESTAMP column."),
    ErrorCode("refresh_not_applicable", "A stream has `refresh`.", "Remove it: new files of a stream are always read."),
    ErrorCode("schedule_not_applicable", "A continuous job has a `schedule`.", "Remove it, or use `incremental`."),
    ErrorCode(
        "retries_not_for_streams",
        "A streaming job has `limits.failure_retries`.",
        "Remove it: the job continues by its `schedule`, or when it is resumed.",
    ),
    ErrorCode(
        "limits_timeout_not_for_streams",
        "A continuous job has `limits.timeout`.",
        "Remove it, and stop the job instead.",
    ),
    ErrorCode("timeout_required", "A job that ends has no time limit.", "Set `limits.timeout`."),
    ErrorCode("comparison_not_for_streams", "A streaming job has `compare_with`.", "Remove it."),
    ErrorCode("isolation_not_for_streams", "A streaming job has `isolation: driver`.", "Remove it."),
    ErrorCode(
        "unknown_job",
        "`compare_with` names no job of the tenant.",
        "Name a job that still exists, or remove the field.",
    ),
    ErrorCode("job_not_comparable", "`compare_with` names a streaming job.", "Name a batch job."),
    ErrorCode("reserved_table", "A sink names a table that the service uses itself.", "Use another name."),
    ErrorCode("delimiter_is_quote", "`delimiter` and `quote` are the same character.", "Change one of them."),
    ErrorCode("date_pattern", "A date or time pattern has a letter that is not supported.", "Use Spark's patterns."),
    ErrorCode("encoding_not_supported", "Spark does not read text of this `encoding`.", "Convert the files to UTF-8."),
    ErrorCode("one_null_value", "`null_value` is a list of several texts.", "Name one."),
    ErrorCode("multi_line_escape", "`escape` or `comment` is combined with `multi_line`.", "Remove one of them."),
    ErrorCode("schema_given_twice", "A table has both `schema` and `columns`.", "Remove one of them."),
    ErrorCode(
        "path_outside_sink_roots",
        "The path of a sink is not below `EVENKEEL_DATA_SINK_ROOTS`.",
        "Use a path below one of these directories.",
    ),
    ErrorCode(
        "unstorable_character",
        "A text has the character U+0000 or half of a surrogate pair.",
        "Remove the character.",
    ),
)
"""Errors in the fields of a job."""

OF_THE_QUERY = (
    ErrorCode("sql_syntax", "The SQL text is not valid.", "Correct it at the line and column of the issue."),
    ErrorCode("parameter_missing", "A placeholder has no value.", "Add the value to `parameters`."),
    ErrorCode("parameter_unused", "No placeholder uses the value of a parameter.", "Remove it."),
    ErrorCode(
        "parameters_mixed",
        "The SQL has both `:name` and `?`, or not the kind that `parameters` has.",
        "Use names with an object, or `?` with a list.",
    ),
    ErrorCode(
        "unsupported_construct",
        "A construct of SQL, or of the files of a table, is not supported.",
        "Write what the detail suggests. [SQL and functions](sql.md) lists what is supported.",
    ),
    ErrorCode(
        "unsupported_function",
        "A function does not exist, is not supported, or has another number of arguments.",
        "Use a function of [SQL and functions](sql.md).",
    ),
    ErrorCode(
        "unsupported_hint", "A hint is unknown, or has no effect.", "Remove it, or use one that the detail names."
    ),
    ErrorCode("conflicting_hints", "Two hints set different strategies for one join.", "Keep one of them."),
    ErrorCode(
        "unknown_table", "The query names a table that the job does not have.", "Add it to `tables`, or correct it."
    ),
    ErrorCode("unknown_column", "A table has no column of this name.", "Use a suggested name."),
    ErrorCode("ambiguous_column", "Several tables have a column of this name.", "Write `alias.column`."),
    ErrorCode("duplicate_table", "Two tables of the query have the same name.", "Give one of them an alias."),
    ErrorCode(
        "duplicate_column",
        "Two columns have the same name; case is ignored.",
        "Rename one of them with AS, or in the files.",
    ),
    ErrorCode(
        "type_mismatch", "An operator or function does not accept the type of a value.", "CAST the value, or change it."
    ),
    ErrorCode(
        "not_grouped",
        "A column is neither a group key nor inside an aggregate.",
        "Add it to GROUP BY, or aggregate it.",
    ),
    ErrorCode("limit_out_of_range", "The number of LIMIT is too large.", "Use a smaller number."),
    ErrorCode("name_too_long", "A name has more than 255 characters.", "Use a shorter name."),
    ErrorCode(
        "query_too_deep",
        "The query exceeds a limit of its size.",
        "Follow the detail. [Limits](limits.md#limits-of-a-query) lists all limits.",
    ),
)
"""Errors in the SQL text or the structured query."""

OF_TABLES = (
    ErrorCode(
        "path_outside_data_roots", "The path, or a link in it, leads out of the data roots.", "Use another path."
    ),
    ErrorCode("path_not_found", "There is no file or directory at the path.", "Correct the path."),
    ErrorCode(
        "empty_directory",
        "The directory of a table, or the version of a Delta table, has no data files.",
        "Add a file, or correct the path.",
    ),
    ErrorCode(
        "unreadable_file",
        "A file cannot be read, for example for lack of permission.",
        "Let the user of the service and of Spark read it.",
    ),
    ErrorCode(
        "corrupt_file", "A file is damaged, or is not of the declared format.", "Replace it, or correct `format`."
    ),
    ErrorCode(
        "schema_mismatch",
        "The columns of a file differ from the schema of the table, or from those of another file.",
        "Store files of different columns in separate directories, or correct `schema`.",
    ),
    ErrorCode(
        "format_unknown", "The files of a table do not show one format.", "Set `format`, or name files of one format."
    ),
    ErrorCode(
        "option_required",
        "An option is missing: `row_tag` of an XML table, or `delimiter` of a table of `.tsv` and other CSV files.",
        "Set the option that the detail names.",
    ),
    ErrorCode("option_not_applicable", "A field or option has no effect on the format of the table.", "Remove it."),
    ErrorCode(
        "schema_not_applicable",
        "A table has a `schema` or `columns`, and its files contain their columns.",
        "Remove it.",
    ),
    ErrorCode("invalid_schema", "`schema` is not a valid list of columns.", "Correct it at the column of the issue."),
    ErrorCode(
        "schema_cannot_be_inferred",
        "The columns of a table or stream cannot be inferred from its files: for example, they have no row yet.",
        "Declare `schema`, or add data.",
    ),
    ErrorCode(
        "line_breaks_differ",
        "With `multi_line`, a value in the first row of a CSV file has another line break than the one after the row.",
        "Use the same line break for both.",
    ),
    ErrorCode(
        "stream_needs_directory", "The path of a stream is a file.", "Name a directory to which files are added."
    ),
    ErrorCode("stream_unknown", "There is no input stream of this name.", "Declare it with `PUT /v1/streams/{name}`."),
)
"""Errors in the tables of a job and in their files."""

OF_STREAMING_QUERIES = (
    ErrorCode(
        "unbounded_order",
        "ORDER BY, LIMIT, OVER, INTERSECT ALL or EXCEPT ALL needs all rows, and a stream has no end.",
        "Sort or limit the rows when you read the result; compute OVER in a batch job.",
    ),
    ErrorCode(
        "aggregate_of_aggregate",
        "A query aggregates or joins the result of an aggregate, which still changes.",
        "Write one query with HAVING, or run a batch job over the result.",
    ),
    ErrorCode(
        "having_may_turn_false",
        "HAVING may become false again for a group that was emitted.",
        "Filter when you read the result, or use a condition that stays true, such as COUNT above a bound.",
    ),
    ErrorCode(
        "unbounded_value",
        "LISTAGG or PERCENTILE keeps every value of its group for ever.",
        "Use COUNT, MIN, MAX, AVG or APPROX_COUNT_DISTINCT, group by a window, or use the mode `batch`.",
    ),
    ErrorCode(
        "distinct_with_grouping_sets",
        "DISTINCT is used together with grouping sets.",
        "Submit a separate job for each grouping set.",
    ),
    ErrorCode(
        "stream_value_type",
        "A state cannot store the type of a group key or of a DISTINCT value.",
        "CAST it, or use parts of the value that are stored in separate columns.",
    ),
    ErrorCode(
        "outer_side_static",
        "An outer join keeps rows of a static table, which never have all their matches.",
        "Keep the rows of the stream instead, or use INNER.",
    ),
    ErrorCode("union_with_static", "UNION reads a static table and a stream.", "Let every branch read a stream."),
    ErrorCode(
        "watermark_required",
        "A window or the output `append` needs an event time that the table does not declare.",
        "Declare `event_time` on the table, or use the output `update`.",
    ),
    ErrorCode(
        "window_without_stream",
        "A window (TUMBLE, HOP) is used where no stream is read.",
        "In a batch job, group by `date_trunc`.",
    ),
    ErrorCode(
        "window_over_joined_streams",
        "Two streams are joined below a window, and nothing bounds the time between joined rows.",
        "Declare `event_time` on both tables and bound the time in ON, or make one of them static.",
    ),
    ErrorCode(
        "mode_sink_mismatch",
        "The sinks `parquet` and `json` only append rows, but groups of the query change.",
        "Set `change_log`, use the sink `managed`, `delta` or `postgres`, or group by a window with the output "
        "`append`.",
    ),
    ErrorCode(
        "change_log_not_applicable",
        "The changes of this result cannot be computed, or the result has a column `_change_type` or `_batch`.",
        "Remove `refresh`, rename the column, or remove `change_log`.",
    ),
    ErrorCode(
        "sink_keys_missing",
        "The sink replaces rows by their group keys, and the query does not select all of them.",
        "Select every key of GROUP BY, or use the sink `managed`.",
    ),
)
"""Queries over streams that are refused because a stream has no end."""

OF_JOINED_STREAMS = (
    ErrorCode(
        "stream_join_no_equality", "The join of two streams has no equality.", "Join them by a key, or make one static."
    ),
    ErrorCode(
        "stream_join_needs_watermark",
        "Rows of a join of two streams are needed, and a table has no event time.",
        "Declare `event_time` on both tables and bound the time between joined rows in ON.",
    ),
    ErrorCode(
        "stream_join_not_bounded",
        "ON does not bound the time between joined rows, so every row would be kept for ever.",
        "Add a lower and an upper bound, or group by the join key.",
    ),
    ErrorCode(
        "stream_join_always_empty",
        "The lower bound of the time in ON is later than the upper one.",
        "Swap the two bounds.",
    ),
    ErrorCode(
        "stream_join_not_first",
        "A stream is grouped or made DISTINCT before the join.",
        "Aggregate after the join, or in a separate job.",
    ),
    ErrorCode(
        "stream_join_not_last",
        "The join of two streams is below another join, UNION or DISTINCT.",
        "Write the join last, before GROUP BY, or make a table static.",
    ),
    ErrorCode(
        "too_many_streams_joined", "More than two streams are joined.", "Join two, and make the other tables static."
    ),
    ErrorCode("full_outer_stream_join", "Two streams are joined by FULL JOIN.", "Use INNER, LEFT or RIGHT."),
    ErrorCode(
        "stream_anti_join",
        "Two streams are joined by an anti join.",
        "Use LEFT, count a column of the other side, and select the groups with 0 when you read the result.",
    ),
    ErrorCode(
        "outer_stream_join_updated",
        "An outer join of two streams is aggregated with the output `update`.",
        "Use INNER, a window with the output `append`, or group by the join key only.",
    ),
    ErrorCode(
        "join_group_not_key",
        "The query is not grouped by exactly the join key.",
        "Group by the complete join key, or bound the time between joined rows in ON.",
    ),
    ErrorCode(
        "join_residual_two_sided",
        "A further condition of the join uses columns of both streams, or of a side that may have no match.",
        "Remove it, or write a condition over one side.",
    ),
    ErrorCode(
        "stream_join_needs_rows",
        "An aggregate needs the joined rows themselves, for example a value of both sides.",
        "Use calls over one side, or bound the time between joined rows in ON.",
    ),
    ErrorCode(
        "join_key_types", "The types of the two keys are not known to be equal.", "CAST both sides to the same type."
    ),
)
"""Joins of two streams that are refused."""

OF_RUNS = (
    ErrorCode("cancelled", "A client cancelled the job.", "Nothing has to be done."),
    ErrorCode(
        "timed_out",
        "The job did not end within `limits.timeout` of its first start.",
        "Raise the limit, or read the skew report to find out what took the time.",
    ),
    ErrorCode(
        "arithmetic_overflow", "A number does not fit into its type (ANSI mode).", "CAST to a larger type before it."
    ),
    ErrorCode("divide_by_zero", "A value was divided by zero (ANSI mode).", "Write `x / nullif(y, 0)`."),
    ErrorCode("invalid_index", "An array has no element at the index (ANSI mode).", "Write `get(a, i)`."),
    ErrorCode("invalid_map_key", "A key of a map is NULL, or is there twice.", "Leave out such keys."),
    ErrorCode(
        "invalid_function_argument",
        "A function got a value that it does not accept, such as a text that is no XML or bytes that are no sketch.",
        "Leave such rows out with WHERE, or write the function's `try_` form where it has one.",
    ),
    ErrorCode(
        "recursion_limit",
        "A recursive query was not complete after its steps, or had more than 1,000,000 rows.",
        "Write a condition that ends it, or more steps with MAX RECURSION LEVEL.",
    ),
    ErrorCode(
        "raised_error",
        "The query called raise_error, or a subquery that is a value returned more than one row.",
        "Use an aggregate such as MAX in the subquery, or a condition that selects one row.",
    ),
    ErrorCode("invalid_cast", "A value cannot be converted to the type (ANSI mode).", "Write TRY_CAST."),
    ErrorCode(
        "files_changed",
        "A file of a table was changed or removed while the job ran. Nothing of the run is kept.",
        "Submit the job again; `limits.failure_retries` does this. Replace files by renaming complete ones.",
    ),
    ErrorCode(
        "result_too_large",
        "The result exceeds `EVENKEEL_LIMITS_RESULT_BYTES`.",
        "Aggregate or filter further.",
    ),
    ErrorCode(
        "query_too_complex",
        "The query is within the limits, but Spark's planner has too little stack for it.",
        "Put long lists of values into a file and join it, or split the query into several jobs.",
    ),
    ErrorCode(
        "out_of_memory",
        "Spark had too little memory, also in a run with sort-merge joins only.",
        "Reduce what is kept for a group, or give Spark more memory (`EVENKEEL_SPARK_DRIVER_MEMORY`, "
        "`EVENKEEL_WORKER_ISOLATED_MEMORY`).",
        500,
    ),
    ErrorCode(
        "disk_full",
        "The disk of the results or of Spark's own files is full.",
        "Free disk space (`EVENKEEL_DATA_RESULTS`, `EVENKEEL_STATE_DIR`), and submit the job again.",
        500,
    ),
    ErrorCode(
        "storage_unavailable",
        "The store of a data root does not answer, or does not have the bucket.",
        "Check the store and Spark's settings for it, and submit the job again.",
        500,
    ),
    ErrorCode(
        "unsupported_filesystem",
        "Spark has no jar for the scheme of a data root.",
        "Name the jars in the file of `EVENKEEL_SPARK_PROPERTIES_FILE`.",
        500,
    ),
    ErrorCode(
        "engine_error",
        "Any other error of Spark. The status is 500 if Spark itself is the cause.",
        "Read Spark's message in the detail; the log of the worker has the stack.",
    ),
    ErrorCode(
        "internal_error",
        "An unexpected error in the worker.",
        "Report it with the id of the job, under which the log of the worker has the details.",
        500,
    ),
    ErrorCode(
        "driver_not_started",
        "A job with `isolation: driver` could not use the cluster, for example because no cores are free.",
        "Submit it again later, or leave out `isolation`. `spark_unavailable` in the log of the worker has the cause.",
        500,
    ),
    ErrorCode(
        "worker_lost",
        "The worker or its Spark driver was lost in every attempt of the job.",
        "Give the driver more memory, or reduce what the job needs.",
        500,
    ),
)
"""Errors of jobs that were accepted, stored as `error` of the job."""

OF_ATTEMPTS = (
    ErrorCode(
        "driver_lost", "The Spark driver died, hung or lost its cluster.", "Nothing: another attempt follows.", 500
    ),
    ErrorCode(
        "driver_ended",
        "The worker ended its Spark driver because of another job. The attempt does not count.",
        "Nothing: another attempt follows.",
        500,
    ),
    ErrorCode(
        "handed_back",
        "The worker was stopped and returned the job to its queue. The attempt does not count.",
        "Nothing: another attempt follows.",
        500,
    ),
)
"""Errors of a single attempt, after which the job is queued again."""

OF_STREAM_RUNS = (
    ErrorCode(
        "state_not_compatible",
        "The state of the job was created with other settings, or by a plan that this version does not make.",
        'Restore the previous value, or resume with `{"from": "scratch"}`.',
    ),
    ErrorCode(
        "checkpoint_missing",
        "The checkpoint of the job is missing.",
        'Check `EVENKEEL_DATA_STREAMS`, restore the checkpoint, or resume with `{"from": "scratch"}`.',
    ),
    ErrorCode(
        "result_missing",
        "Rows that the job wrote are missing from its sink.",
        'Restore them, or resume with `{"from": "scratch"}`.',
    ),
    ErrorCode(
        "sink_failed",
        "The sink cannot store the rows; the detail has the reason.",
        "Correct what the detail names, and resume the job.",
    ),
    ErrorCode(
        "state_limit_exceeded",
        "The state of the job takes more disk space than `state.limit`, or its disk is almost full.",
        "Resume the job with a larger limit, or free some space and resume it.",
    ),
    ErrorCode(
        "not_for_streams",
        "No stream can run the query. Only jobs of earlier versions have this error.",
        "Submit the job again to see what to change.",
    ),
    ErrorCode(
        "schema_changed",
        "A lookup table has other columns than before.",
        'Restore the previous columns, or resume with `{"from": "scratch"}`.',
    ),
    ErrorCode(
        "table_keeps_changing",
        "A lookup table changed during each attempt to copy it.",
        "Replace files by renaming complete ones, and resume when nothing writes to it.",
    ),
    ErrorCode(
        "table_not_followable", "The store of a table with `refresh` does not report changes.", "Remove `refresh`."
    ),
    ErrorCode(
        "dimension_missing",
        "A stored version of a lookup table is missing, and a mini-batch that is not complete needs it.",
        'Restore it in `EVENKEEL_DATA_STREAMS`, or resume with `{"from": "scratch"}`.',
    ),
    ErrorCode(
        "dimension_not_copied",
        "A lookup table could not be copied.",
        "Let the worker read the table and write to `EVENKEEL_DATA_STREAMS`, and resume.",
    ),
)
"""Errors of streaming jobs, which are STOPPED by them."""

OF_ROWS = (
    ErrorCode("malformed_row", "A row, or the whole body, is not of the declared format.", "Correct it at its line."),
    ErrorCode("invalid_value", "A value does not fit the type of its column exactly.", "Correct the value."),
    ErrorCode("no_rows", "The body has no rows.", "Post at least one row."),
    ErrorCode("too_many_rows", "The batch has too many rows or values.", "Post several batches."),
)
"""Codes of the issue in an `invalid_rows` problem; `unknown_column` and `duplicate_key` occur as well."""

OF_READINESS = (
    ErrorCode("database", "The database does not answer.", "Start it, or correct `EVENKEEL_DATABASE_URL`.", 503),
    ErrorCode("schema", "The schema of the database is of another version.", "Run `evenkeel migrate`.", 503),
    ErrorCode("broker", "The broker cannot be used.", "Start it, or correct `EVENKEEL_BROKER_URL`.", 503),
    ErrorCode("worker", "No worker accepts jobs, or one receives no messages.", "Start a worker, or restart it.", 503),
    ErrorCode("cluster", "No worker has a usable Spark.", "Follow the detail, which has the worker's reason.", 503),
    ErrorCode(
        "queue", "No worker listens to a queue. A warning only.", "Start one with it in `EVENKEEL_WORKER_QUEUES`.", 503
    ),
)
"""Codes of the issues in a `not_ready` problem and of the warnings of `GET /readyz`."""

GROUPS: dict[str, tuple[ErrorCode, ...]] = {
    "parameters": OF_PARAMETERS,
    "job": OF_THE_JOB,
    "query": OF_THE_QUERY,
    "tables": OF_TABLES,
    "streaming queries": OF_STREAMING_QUERIES,
    "joined streams": OF_JOINED_STREAMS,
    "runs": OF_RUNS,
    "attempts": OF_ATTEMPTS,
    "stream runs": OF_STREAM_RUNS,
    "rows": OF_ROWS,
    "readiness": OF_READINESS,
}
"""All codes, by the name of their table in the documentation."""
