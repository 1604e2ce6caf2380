"""URLs of databases, and refusals without their passwords."""

from __future__ import annotations

import pytest

from service.store.session import DatabaseUrlError, read_url


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg", "PostgreSQL"])
def test_postgresql_is_reached_through_psycopg(scheme: str) -> None:
    url = read_url(f"{scheme}://eve:p%40ss@db.example:6432/keel?sslmode=require")
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port) == ("eve", "p@ss", "db.example", 6432)
    assert (url.database, dict(url.query)) == ("keel", {"sslmode": "require"})


@pytest.mark.parametrize("text", ["sqlite:////var/lib/e.db", "sqlite+pysqlite:////var/lib/e.db"])
def test_sqlite(text: str) -> None:
    assert read_url(text).render_as_string() == "sqlite:////var/lib/e.db"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mysql://u:hunter2@h/d", "begins with mysql:"),
        ("postgresql+asyncpg://u:hunter2@h/d", r"begins with postgresql\+asyncpg:"),
        ("postgresql+psycopg2://u:hunter2@h/d", r"begins with postgresql\+psycopg2:"),
        ("redis://:hunter2@h/0", "begins with redis:"),
        ("u hunter2@h/d", "has no scheme"),
        ("", "has no scheme"),
        ("postgresql:hunter2", "cannot be parsed"),
        ("postgresql://u:hunter2@h:port/d", "cannot be parsed"),
        ("postgresql://u:hun@ter2:5@h:x/d", "cannot be parsed"),
        ("postgresql://u:hunter2@h", "names no database"),
        ("postgresql://u:hunter2@h/", "names no database"),
    ],
)
def test_a_refusal_says_what_to_write_and_no_password(text: str, told: str) -> None:
    with pytest.raises(DatabaseUrlError, match=told) as caught:
        read_url(text)
    assert "postgresql://user:password@host:5432/database" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)
    assert caught.value.__cause__ is None
