"""Query 64 of TPC-DS, and small tables from which it selects some hundred rows.

The tables have the columns that the query uses, with the types of the specification, and random values by a fixed seed.
There is no package of the official generator that tests can install next to their version of DuckDB.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

QUERY_64 = (Path(__file__).parents[1] / "conformance" / "tpcds" / "specified" / "q64.sql").read_text()

_SALES, _ITEMS, _CUSTOMERS, _ADDRESSES, _DEMOGRAPHICS, _HOUSEHOLDS, _DATES = 6_000, 60, 400, 300, 200, 100, 1_500
_FIRST_DATE, _FIRST_YEAR, _DAYS_OF_YEAR = 2_450_815, 1998, 366
_COLORS = ("purple", "burlywood", "indian", "spring", "floral", "medium", "red", "navy")
_STORES = (("ought", "35709"), ("able", "35709"), ("ese", "31904"))
_INCOME_BANDS, _PROMOTIONS = 20, 30
_MONEY = pa.decimal128(7, 2)

Columns = dict[str, tuple[pa.DataType, list[Any]]]


def write_tpcds(directory: Path) -> list[str]:
    """Writes the tables of query 64 below `directory`, each as a directory, and returns their names."""
    rng = Random(64)
    tables = {**_dimensions(rng), **_facts(rng)}
    for name, columns in tables.items():
        (directory / name).mkdir(parents=True)
        table = pa.table({column: pa.array(values, type_) for column, (type_, values) in columns.items()})
        pq.write_table(table, directory / name / "part.parquet")
    return list(tables)


def _dimensions(rng: Random) -> dict[str, Columns]:
    text, integer = pa.string(), pa.int32()
    addresses, customers = range(1, _ADDRESSES + 1), range(1, _CUSTOMERS + 1)
    items, demographics = range(1, _ITEMS + 1), range(1, _DEMOGRAPHICS + 1)
    households, dates = range(1, _HOUSEHOLDS + 1), range(_DATES)
    return {
        "date_dim": {
            "d_date_sk": (integer, [_FIRST_DATE + day for day in dates]),
            "d_year": (integer, [_FIRST_YEAR + day // _DAYS_OF_YEAR for day in dates]),
        },
        "store": {
            "s_store_sk": (integer, list(range(1, len(_STORES) + 1))),
            "s_store_name": (text, [name for name, _ in _STORES]),
            "s_zip": (text, [code for _, code in _STORES]),
        },
        "customer": {
            "c_customer_sk": (integer, list(customers)),
            "c_current_cdemo_sk": (integer, [rng.randint(1, _DEMOGRAPHICS) for _ in customers]),
            "c_current_hdemo_sk": (integer, [rng.randint(1, _HOUSEHOLDS) for _ in customers]),
            "c_current_addr_sk": (integer, [rng.randint(1, _ADDRESSES) for _ in customers]),
            "c_first_sales_date_sk": (integer, [_date(rng) for _ in customers]),
            "c_first_shipto_date_sk": (integer, [_date(rng) for _ in customers]),
        },
        "customer_demographics": {
            "cd_demo_sk": (integer, list(demographics)),
            "cd_marital_status": (text, [rng.choice("MSDWU") for _ in demographics]),
        },
        "promotion": {"p_promo_sk": (integer, list(range(1, _PROMOTIONS + 1)))},
        "household_demographics": {
            "hd_demo_sk": (integer, list(households)),
            "hd_income_band_sk": (integer, [rng.randint(1, _INCOME_BANDS) for _ in households]),
        },
        "customer_address": {
            "ca_address_sk": (integer, list(addresses)),
            "ca_street_number": (text, [str(rng.randint(1, 999)) for _ in addresses]),
            "ca_street_name": (text, [f"{rng.choice(('Oak', 'Mill', 'Lake'))} Street" for _ in addresses]),
            "ca_city": (text, [rng.choice(("Fairview", "Midway", None)) for _ in addresses]),
            "ca_zip": (text, [f"{rng.randint(10_000, 99_999)}" for _ in addresses]),
        },
        "income_band": {"ib_income_band_sk": (integer, list(range(1, _INCOME_BANDS + 1)))},
        "item": {
            "i_item_sk": (integer, list(items)),
            "i_product_name": (text, [f"product {number}" for number in items]),
            "i_color": (text, [rng.choice(_COLORS) for _ in items]),
            "i_current_price": (_MONEY, [_money(rng, 6_000, 7_900) for _ in items]),
        },
    }


def _facts(rng: Random) -> dict[str, Columns]:
    integer, sales = pa.int32(), range(_SALES)
    item = [rng.randint(1, _ITEMS) for _ in sales]

    def keys(most: int) -> tuple[pa.DataType, list[int | None]]:
        return integer, [rng.randint(1, most) if rng.random() < 0.97 else None for _ in sales]

    # All costs differ, so that the rows of the result have only one order.
    costs = rng.sample(range(1, 10_000), _SALES)
    returned = [number for number in sales if rng.random() < 0.5]
    bought = [rng.randint(1, _ITEMS) for _ in sales]
    sent_back = [number for number in sales if rng.random() < 0.3]
    return {
        "store_sales": {
            "ss_sold_date_sk": (integer, [_date(rng) for _ in sales]),
            "ss_item_sk": (integer, item),
            "ss_customer_sk": keys(_CUSTOMERS),
            "ss_cdemo_sk": keys(_DEMOGRAPHICS),
            "ss_hdemo_sk": keys(_HOUSEHOLDS),
            "ss_addr_sk": keys(_ADDRESSES),
            "ss_store_sk": keys(len(_STORES)),
            "ss_promo_sk": keys(_PROMOTIONS),
            "ss_ticket_number": (integer, list(sales)),
            "ss_wholesale_cost": (_MONEY, [Decimal(cents) / 100 for cents in costs]),
            "ss_list_price": (_MONEY, [_money(rng, 100, 20_000) for _ in sales]),
            "ss_coupon_amt": (_MONEY, [_money(rng, 0, 500) if rng.random() < 0.8 else None for _ in sales]),
        },
        "store_returns": {
            "sr_item_sk": (integer, [item[number] for number in returned]),
            "sr_ticket_number": (integer, returned),
        },
        "catalog_sales": {
            "cs_item_sk": (integer, bought),
            "cs_order_number": (integer, list(sales)),
            "cs_ext_list_price": (_MONEY, [_money(rng, 100, 50_000) for _ in sales]),
        },
        "catalog_returns": {
            "cr_item_sk": (integer, [bought[number] for number in sent_back]),
            "cr_order_number": (integer, sent_back),
            **{
                column: (_MONEY, [_money(rng, 0, 8_000) for _ in sent_back])
                for column in ("cr_refunded_cash", "cr_reversed_charge", "cr_store_credit")
            },
        },
    }


def _date(rng: Random) -> int:
    return _FIRST_DATE + rng.randrange(_DATES)


def _money(rng: Random, least: int, most: int) -> Decimal:
    """Returns a random amount between two numbers of cents."""
    return Decimal(rng.randint(least, most)) / 100


__all__ = ["QUERY_64", "write_tpcds"]
