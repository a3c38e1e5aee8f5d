"""Schemas of shops and web sites."""

from __future__ import annotations

from typing import Any

from semel.sources.datagen.notation import (
    ADDRESS,
    CITIES,
    FIRST,
    LAST,
    PAST,
    USER,
    Type,
    between,
    count,
    like,
    logical,
    one_of,
    record,
    rows,
)


def _users(**more: Any) -> Type:
    return record(
        "ksql.users",
        registertime=between("long", *PAST),
        userid=USER,
        regionid=like("Region_[1-9]"),
        gender=one_of("MALE", "FEMALE", "OTHER"),
        **more,
    )


SCHEMAS: dict[str, tuple[str, Type]] = {
    "clickstream_codes": (
        "code",
        rows(
            "clickstream.codes",
            {"code": "int", "definition": "string"},
            (200, "OK"),
            (302, "Found"),
            (404, "Not Found"),
            (405, "Method Not Allowed"),
            (406, "Not Acceptable"),
            (407, "Proxy Authentication Required"),
        ),
    ),
    "clickstream": (
        "ip",
        record(
            "clickstream.events",
            ip=ADDRESS,
            userid=between("int", -1, 40),
            remote_user=one_of("-"),
            time=count("string", 1, 10),
            _time=count("long", 1, 10),
            request=one_of("GET / HTTP/1.1", "GET /login HTTP/1.1", "GET /a.png HTTP/1.1"),
            status=one_of("200", "302", "404", "405", "406", "407"),
            bytes=one_of("256", "1024", "2048", "16384"),
            referrer=one_of("-"),
            agent=one_of("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0"),
        ),
    ),
    "clickstream_users": (
        "user_id",
        record(
            "clickstream.users",
            user_id=count("int", 1),
            username=like("[a-z]{5,8}_[0-9]{2}"),
            registered_at=between("long", *PAST),
            first_name=one_of(*FIRST),
            last_name=one_of(*LAST),
            city=one_of(*CITIES),
            level=one_of("Gold", "Silver", "Platinum"),
        ),
    ),
    "orders": (
        "orderid",
        record(
            "ksql.orders",
            ordertime=between("long", *PAST),
            orderid=count("int"),
            itemid=like("Item_[1-9][0-9]{0,2}"),
            orderunits=between("double", 0.1, 10),
            address=record(
                "address",
                city=like("City_[1-9]{0,2}"),
                state=like("State_[1-9]{0,2}"),
                zipcode=between("long", 10_000, 99_999),
            ),
        ),
    ),
    "ratings": (
        "rating_id",
        record(
            "ksql.ratings",
            rating_id=count("long", 1),
            user_id=between("int", -1, 20),
            stars=between("int", 1, 5),
            route_id=between("int", 1, 9999),
            rating_time=count("long", 1, 12),
            channel=one_of("web", "ios", "iOS", "iOS-test", "android"),
            message=one_of("on time", "late, but friendly", "never again", "good", "meh"),
        ),
    ),
    "users": ("userid", _users()),
    "users_": (
        "userid",
        _users(
            interests={
                **{"type": "array", "items": "string"},
                "arg.properties": {"options": [["Chess", "News"], ["Chess", "Sport"], ["Travel"]]},
            },
            contactinfo={
                **{"type": "map", "values": "string"},
                "arg.properties": {
                    "options": [
                        {"phone": f"55501{n:02}", "city": city, "state": "XX", "zipcode": f"100{n}"}
                        for n, city in enumerate(CITIES)
                    ]
                },
            },
        ),
    ),
    "pageviews": (
        "viewtime",
        record(
            "ksql.pageviews",
            viewtime=count("long", 1, 10),
            userid=USER,
            pageid=like("Page_[1-9][0-9]"),
        ),
    ),
    "stock_trades": (
        "symbol",
        record(
            "ksql.StockTrade",
            side=one_of("BUY", "SELL"),
            quantity=between("int", 1, 5000),
            symbol=one_of("ZBZX", "ZJZZT", "ZTEST", "ZVV", "ZVZZT", "ZWZZT", "ZXZZT"),
            price=between("int", 5, 1000),
            account=like("ABC[0-9]{3}"),
            userid=USER,
        ),
    ),
    "inventory": (
        "id",
        record(
            "ksql.inventory",
            id=count("long"),
            quantity=count("long"),
            productid=count("long"),
        ),
    ),
    "product": (
        "id",
        record(
            "ksql.product",
            id=count("long"),
            name=count("string"),
            description=count("string"),
            price=count("double"),
        ),
    ),
    "purchases": (
        "id",
        record(
            "datagen.example.purchase",
            id=count("long"),
            item_type=one_of("boots", "chair", "clock", "guitar", "lamp", "scarf", "table", "vase"),
            quantity=between("long", 1, 10),
            price_per_unit=logical(between("bytes", 10, 50), "decimal", precision=4, scale=2),
        ),
    ),
    "transactions": (
        "transaction_id",
        record(
            "datagen.example.transactions",
            transaction_id=count("long", 1),
            card_id=between("long", 1, 24),
            user_id=like("User_[1-9]{0,1}"),
            purchase_id=count("long"),
            store_id=between("int", 1, 7),
        ),
    ),
    "stores": (
        "store_id",
        rows(
            "datagen.example.stores",
            {"store_id": "int", "city": "string", "state": "string"},
            *((n, city, f"State_{n}") for n, city in enumerate(CITIES, start=1)),
        ),
    ),
    "credit_cards": (
        "card_id",
        rows(
            "datagen.example.users",
            {"card_id": "int", "card_number": "long", "cvv": "int", "expiration_date": "string"},
            *((n, 4_000_000_000_000_000 + n, 100 + n, f"{n % 12 + 1:02}/30") for n in range(1, 25)),
        ),
    ),
    "campaign_finance": (
        "candidate_id",
        record(
            "datagen.campaign_finance",
            time=between("long", *PAST),
            candidate_id=like("[A-Z][1-9]{8}"),
            party_affiliation=one_of("REP", "DEM", "IND"),
            contribution=between("int", 20, 3500),
        ),
    ),
}
"""The key field and the schema of each."""
