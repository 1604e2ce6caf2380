# One image for every part of Evenkeel that is not PostgreSQL or Redis: migrate, API, worker, Spark master, Spark worker.
# docker-compose.yml says which command each of them runs.

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY migrations migrations
COPY service service
COPY workers workers
# The environment itself holds no pip: nothing is installed later.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/evenkeel \
 && pip --python /opt/evenkeel/bin/python install --no-cache-dir -c constraints.txt \
      "evenkeel[worker] @ file://$(echo /wheels/evenkeel-*.whl)"
# Spark under a path that does not tell the version of Python.
RUN ln -s "$(/opt/evenkeel/bin/python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/spark \
 && test -x /opt/spark/bin/spark-class

FROM postgres:16.14-bookworm AS postgres

FROM python:3.11.14-slim-bookworm
# Debian keeps only the newest build of a package: a pinned one could not be installed in a few weeks.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libpq5 openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 evenkeel \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/evenkeel --shell /usr/sbin/nologin evenkeel \
 && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/evenkeel /var/lib/spark /srv/results /srv/streams \
 && install --directory /srv/data
# For `evenkeel backup`, whose programs must not be older than the server. Both images are Debian 12; whether its libpq
# has all that they call is found out here.
COPY --from=postgres /usr/lib/postgresql/16/bin/pg_dump /usr/lib/postgresql/16/bin/pg_restore /usr/local/bin/
RUN LD_BIND_NOW=1 pg_dump --version && LD_BIND_NOW=1 pg_restore --version
COPY --from=build /opt /opt
ENV PATH=/opt/evenkeel/bin:/opt/spark/bin:$PATH \
    SPARK_HOME=/opt/spark \
    PYTHONUNBUFFERED=1 \
    EVENKEEL_STATE_DIR=/var/lib/evenkeel \
    EVENKEEL_DATA_ROOTS=/srv/data \
    EVENKEEL_DATA_RESULTS=/srv/results \
    EVENKEEL_DATA_STREAMS=/srv/streams
LABEL org.opencontainers.image.title="Evenkeel" \
      org.opencontainers.image.description="A REST service that runs skew-aware aggregation and join jobs on Apache Spark" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# By number, so that Kubernetes can tell that it is not root.
USER 10001:10001
WORKDIR /var/lib/evenkeel
EXPOSE 8080
# tini hands signals to the process alone and not to the JVM below it, which must outlive a worker's last job.
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["evenkeel", "serve"]
# Of the API, which the image runs by default; docker-compose.yml has one for each part.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 \
  CMD ["evenkeel", "health", "http://127.0.0.1:8080/healthz"]
