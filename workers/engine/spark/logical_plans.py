"""Turns SQL over DataFrames into a DataFrame.

Each operation of a DataFrame analyses its plan. Here, Spark parses the text of a whole query, puts the plans of its
inputs in place of the relations, and analyses the plan once. Views would do the same, but each takes a command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame


def frame_of_sql(session: SparkSession, sql: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Returns the DataFrame of a query whose relations are the names of `inputs`.

    Raises ParseException and AnalysisException.
    """
    java: Any = session._jsparkSession
    parser = java.sessionState().sqlParser()
    # A Scala map is also a partial function, which the transformation of a plan takes.
    plans = _classes(session).empty_map
    for name, frame in inputs.items():
        relation = parser.parsePlan(f"TABLE {name}")
        plans = plans.updated(relation, analysed_plan(frame))
    plan = parser.parsePlan(sql)
    return frame_of_plan(session, plan.transformUpWithSubqueries(plans) if inputs else plan)


def analysed_plan(frame: DataFrame) -> Any:
    """Returns the analysed logical plan of a DataFrame, in the JVM. It distinguishes columns with the same name."""
    return frame._jdf.queryExecution().analyzed()


def frame_of_plan(session: SparkSession, plan: Any) -> DataFrame:
    """Returns the DataFrame of a logical plan in the JVM, which Spark analyses first. Raises AnalysisException."""
    java: Any = session._jsparkSession
    return ClassicDataFrame(_classes(session).of_rows(java, plan), session)


def load_files(session: SparkSession, reader: DataFrameReader, paths: Sequence[str]) -> DataFrame:
    """Returns the rows of files, as `reader.load` does. That takes a call of the JVM for each path."""
    java: Any = reader
    # No path contains this character.
    return java._df(java._jreader.load(_classes(session).between_zeros.split("\0".join(paths))))  # type: ignore[no-any-return]


def partitioned_by(frame: DataFrame, columns: Sequence[str], partitions: int) -> DataFrame:
    """Returns the rows of a checkpointed DataFrame, of which Spark then knows that they are partitioned: a row is in
    the partition that `repartition(partitions, *columns)` puts it in. Nothing verifies that. It only needs to be true
    of the rows that a query uses. Without rows, it may have no partitions, and is returned as it is.
    """
    session = frame.sparkSession
    java: Any = session._jsparkSession
    classes = _classes(session)
    plan = analysed_plan(frame)
    if plan.rdd().getNumPartitions() != partitions:
        return frame
    output = {plan.output().apply(place).name(): plan.output().apply(place) for place in range(plan.output().size())}
    keys = classes.empty_seq
    for name in columns:
        keys = keys.appended(output[name])
    partitioning = classes.hash_partitioning(keys, partitions)
    node = classes.logical_rdd(
        plan.output(),
        plan.rdd(),
        partitioning,
        classes.empty_seq,
        False,
        classes.none,
        java,
        classes.none,
        classes.none,
        False,
    )
    return frame_of_plan(session, node)


def is_partitioned_by(frame: DataFrame, columns: Sequence[str], partitions: int) -> bool:
    """Whether a row of a DataFrame is in the partition that `repartition(partitions, *columns)` puts it in, as long as
    adaptive execution changes no partitions. Nothing is executed.
    """
    plan = frame._jdf.queryExecution().executedPlan()
    if plan.nodeName().startswith("AdaptiveSparkPlan"):
        plan = plan.initialPlan()
    partitioning = plan.outputPartitioning()
    if partitioning.getClass().getSimpleName() != "HashPartitioning" or partitioning.numPartitions() != partitions:
        return False
    output = plan.output()
    ids = {output.apply(place).name(): output.apply(place).exprId() for place in range(output.size())}
    keys = partitioning.expressions()
    found = [keys.apply(place) for place in range(keys.size())]
    return len(found) == len(columns) and all(
        key.getClass().getSimpleName() == "AttributeReference" and key.exprId().equals(ids[name])
        for key, name in zip(found, columns, strict=True)
    )


class _Classes:
    """What is used of the JVM's classes. To find one, py4j asks the JVM for each part of its name."""

    def __init__(self, jvm: Any) -> None:
        self.empty_map = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        self.empty_seq = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        self.none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self.between_zeros = jvm.java.util.regex.Pattern.compile("\0")
        self.of_rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows
        self.logical_rdd = jvm.org.apache.spark.sql.execution.LogicalRDD
        self.hash_partitioning = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning


_OF_JVM: WeakKeyDictionary[Any, _Classes] = WeakKeyDictionary()


def _classes(session: SparkSession) -> _Classes:
    jvm: Any = session._jvm
    if jvm not in _OF_JVM:
        _OF_JVM[jvm] = _Classes(jvm)
    return _OF_JVM[jvm]
