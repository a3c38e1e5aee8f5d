"""The schemas of Confluent's Datagen connector, by name: the same fields and types, with values of
semel's own. The functions are a short way to write Avro schemas with ``arg.properties``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

Type = dict[str, Any]


def type_of(name: str, **rules: Any) -> Type:
    return {"type": name, "arg.properties": rules} if rules else {"type": name}


def between(name: str, least: float, most: float) -> Type:
    return type_of(name, range={"min": least, "max": most})


def count(name: str, start: int = 0, step: int = 1) -> Type:
    return type_of(name, iteration={"start": start, "step": step})


def like(pattern: str) -> Type:
    return type_of("string", regex=pattern)


def one_of(*options: Any, kind: str = "string") -> Type:
    return type_of(kind, options=list(options))


def logical(kind: Type, name: str, **more: Any) -> Type:
    return {**kind, "logicalType": name, **more}


def record(name: str, /, **fields: Any) -> Type:
    space, _, own = name.rpartition(".")
    listed = [{"name": n, "type": t} for n, t in fields.items()]
    return {"type": "record", "name": own, "namespace": space, "fields": listed}


def rows(name: str, types: dict[str, str], *rows: tuple[Any, ...]) -> Type:
    options = [dict(zip(types, row, strict=True)) for row in rows]
    return {**record(name, **types), "arg.properties": {"options": options}}


PAST = (1_500_000_000_000, 1_600_000_000_000)
DAY = logical(between("int", 18_500, 19_500), "date")
ADDRESS = like("(10|172|192)[.][1-9][0-9][.]1[0-9]{2}[.][1-9]")
USER = like("User_[1-9]")


def clock(step: int = 1000) -> Type:
    return logical(count("long", 1_600_000_000_000, step), "timestamp-millis")


FIRST = ("Ada", "Bela", "Carla", "Dimitri", "Edda", "Farid", "Greta", "Hugo", "Ines", "Jonas")
LAST = ("Abel", "Berg", "Costa", "Dahl", "Engel", "Fiala", "Gruber")
CITIES = ("Berlin", "Lisbon", "Oslo", "Porto", "Turin", "Vienna")
PEOPLE = list(islice(zip(cycle(FIRST), cycle(LAST), strict=False), 50))
NAMES = [f"{first} {last}" for first, last in PEOPLE]
INSURED = list(range(400, 450))


def mail(first: str, last: str) -> str:
    return f"{first}.{last}@example.com".lower()


def _users(**more: Any) -> Type:
    return record(
        "ksql.users",
        registertime=between("long", *PAST),
        userid=USER,
        regionid=like("Region_[1-9]"),
        gender=one_of("MALE", "FEMALE", "OTHER"),
        **more,
    )


_RETAIL: dict[str, tuple[str, Type]] = {
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


_SHOES = [f"shoe-{n:03}" for n in range(40)]
_RUNNERS = [f"runner-{n:03}" for n in range(50)]
_VEHICLE = between("int", 1000, 9999)
_STORE = between("int", 1, 10)
_STAFF = between("int", 1000, 1050)

_INDUSTRIES: dict[str, tuple[str, Type]] = {
    "fleet_mgmt_description": (
        "vehicle_id",
        record(
            "fleet_mgmt.fleet_mgmt_description",
            vehicle_id=_VEHICLE,
            driver_name=one_of(*NAMES),
            license_plate=like("[A-Z]{2}[0-9]{6}[A-Z]"),
        ),
    ),
    "fleet_mgmt_location": (
        "vehicle_id",
        record(
            "fleet_mgmt.fleet_mgmt_location",
            vehicle_id=_VEHICLE,
            location=record(
                "location",
                latitude=between("double", -90, 90),
                longitude=between("double", -180, 180),
            ),
            ts=clock(),
        ),
    ),
    "fleet_mgmt_sensors": (
        "vehicle_id",
        record(
            "fleet_mgmt.fleet_mgmt_sensors",
            vehicle_id=_VEHICLE,
            engine_temperature=between("int", 150, 250),
            average_rpm=between("int", 1800, 5000),
        ),
    ),
    "pizza_orders": (
        "store_id",
        record(
            "pizza_orders.pizza_orders",
            store_id=_STORE,
            store_order_id=count("int", 1000),
            coupon_code=between("int", 1000, 2000),
            date=DAY,
            status=one_of("accepted"),
            order_lines={
                "type": "array",
                "items": record(
                    "order_line",
                    product_id=between("int", 1, 99),
                    category=one_of("pizza", "salad", "dessert", "drink"),
                    quantity=between("int", 1, 6),
                    unit_price=between("double", 2, 20),
                    net_price=between("double", 2, 99),
                ),
                "arg.properties": {"length": {"min": 1, "max": 5}},
            },
        ),
    ),
    "pizza_orders_completed": (
        "store_id",
        record(
            "pizza_orders.pizza_orders_completed",
            store_id=_STORE,
            store_order_id=count("int", 1000, 2),
            date=DAY,
            status=one_of("completed"),
            rack_time_secs=between("int", 130, 230),
            order_delivery_time_secs=between("int", 1100, 2000),
        ),
    ),
    "pizza_orders_cancelled": (
        "store_id",
        record(
            "pizza_orders.pizza_orders_cancelled",
            store_id=_STORE,
            store_order_id=count("int", 1001, 2),
            date=DAY,
            status=one_of("cancelled"),
        ),
    ),
    "insurance_offers": (
        "offer_id",
        rows(
            "insurance.insurance_offers",
            {"offer_id": "int", "offer_name": "string", "offer_url": "string"},
            *((n, f"offer_{n}", f"https://example.com/offers/{n}") for n in range(1, 11)),
        ),
    ),
    "insurance_customers": (
        "customer_id",
        rows(
            "insurance.insurance_customers",
            {
                **{"customer_id": "int", "first_name": "string", "last_name": "string"},
                **{"email": "string", "gender": "string", "income": "int", "fico": "int"},
                "years_active": "int",
            },
            *(
                (n, *who, mail(*who), "Female", 30_000 + 999 * i, 600 + 3 * i, i % 20)
                for i, (n, who) in enumerate(zip(INSURED, PEOPLE, strict=True))
            ),
        ),
    ),
    "insurance_customer_activity": (
        "activity_id",
        record(
            "insurance.insurance_customer_activity",
            activity_id=count("int", 1),
            customer_id=one_of(*INSURED, kind="int"),
            activity_type=one_of("web_open", "mobile_open", "new_account"),
            propensity_to_churn=between("double", 0.01, 1),
            ip_address=ADDRESS,
        ),
    ),
    "gaming_games": (
        "id",
        record(
            "gaming.gaming_games",
            id=between("int", 1000, 5000),
            room_name=one_of("Chess -- Novice", "Chess -- Master", "Go -- Novice", "Go -- Master"),
            created_date=clock(),
        ),
    ),
    "gaming_players": (
        "player_id",
        rows(
            "gaming.gaming_players",
            {"player_id": "int", "player_name": "string", "ip": "string"},
            *((n, name, f"10.0.0.{n % 100}") for n, name in enumerate(NAMES, start=1001)),
        ),
    ),
    "gaming_player_activity": (
        "player_id",
        record(
            "gaming.gaming_player_activity",
            player_id=between("int", 1001, 1051),
            game_room_id=between("int", 1000, 5000),
            points=between("int", 10, 500),
            coordinates=like(r"\[[0-9]{2},[0-9]{2}\]"),
        ),
    ),
    "payroll_employee": (
        "employee_id",
        rows(
            "payroll.payroll_employee",
            {
                **{"employee_id": "int", "first_name": "string", "last_name": "string"},
                **{"age": "int", "ssn": "string", "hourly_rate": "int", "gender": "string"},
                "email": "string",
            },
            *(
                (1000 + i, *who, 20 + i % 40, f"000-00-{i:04}", 15 + i % 30, "female", mail(*who))
                for i, who in enumerate(PEOPLE)
            ),
        ),
    ),
    "payroll_employee_location": (
        "employee_id",
        record(
            "payroll.payroll_employee_location",
            employee_id=_STAFF,
            lab=like("lab-[0-9]"),
            department_id=between("int", 1, 10),
            arrival_date=DAY,
        ),
    ),
    "payroll_bonus": (
        "employee_id",
        record(
            "payroll.payroll_bonus",
            employee_id=_STAFF,
            bonus=between("int", 10, 50),
            ts=logical(between("long", *PAST), "timestamp-millis"),
        ),
    ),
    "syslog_logs": (
        "host",
        record(
            "syslogs.syslog_logs",
            name=like("[a-zA-Z]{5,8}"),
            type=one_of("RFC5424", "RFC3164", "CEF", "RAW"),
            message=like("[a-z ]{10,15}"),
            host=ADDRESS,
            version=one_of("4.8.0"),
            tag=one_of(".source.s_all"),
            level=between("int", 0, 191),
            facility=one_of("syslog", "authpriv", "cron"),
            severity=between("int", 0, 8),
            appName=like("[A-Z]{5,8}"),
            remoteAddress=ADDRESS,
            rawMessage=like("[a-z ]{10,15}"),
            processId=like("[1-9][0-9]{6}"),
            messageId=like("[1-9][0-9]{2}"),
            deviceVendor=like("[a-z]{5}"),
            deviceProduct=like("[a-z]{5}"),
            deviceVersion=one_of("1.0", "2.0", "3.0"),
            ts=count("long", 1_600_000_000_000, 100),
        ),
    ),
    "device_information": (
        "device_ip",
        record(
            "device_information.device_information",
            device_ip=ADDRESS,
            mac_address=like("([0-9A-F]{2}-){5}[0-9A-F]{2}"),
            owner=one_of(*NAMES),
        ),
    ),
    "siem_logs": (
        "hostname",
        record(
            "siem_logs.siem_logs",
            hostname=ADDRESS,
            action=one_of("allow", "deny"),
            l4=one_of("tcp"),
            access_group=like("group-[1-5]"),
            source=record("source", ip=ADDRESS, port=between("int", 10_000, 99_999)),
            destination=record("destination", ip=ADDRESS, port=between("int", 10_000, 99_999)),
        ),
    ),
    "shoes": (
        "id",
        rows(
            "shoes.shoe_product",
            {
                **{"id": "string", "brand": "string", "name": "string", "sale_price": "int"},
                "rating": "double",
            },
            *(
                (shoe, f"Brand {n % 7}", f"Model {n}", 4999 + 100 * n, n % 50 / 10)
                for n, shoe in enumerate(_SHOES)
            ),
        ),
    ),
    "shoe_customers": (
        "id",
        rows(
            "shoes.shoe_customers",
            {
                **{"id": "string", "first_name": "string", "last_name": "string"},
                **{"email": "string", "phone": "string", "street_address": "string"},
                **{"state": "string", "zip_code": "string", "country": "string"},
                "country_code": "string",
            },
            *(
                (
                    who,
                    *of,
                    mail(*of),
                    f"55501{n:02}",
                    f"{n} Main Street",
                    "XX",
                    f"100{n:02}",
                    "Austria",
                    "AT",
                )
                for n, (who, of) in enumerate(zip(_RUNNERS, PEOPLE, strict=True))
            ),
        ),
    ),
    "shoe_orders": (
        "order_id",
        record(
            "shoes.shoe_orders",
            order_id=count("int", 1000),
            product_id=one_of(*_SHOES),
            customer_id=one_of(*_RUNNERS),
            ts=clock(),
        ),
    ),
    "shoe_clickstream": (
        "product_id",
        record(
            "shoes.shoe_clickstream",
            product_id=one_of(*_SHOES),
            user_id=one_of(*_RUNNERS),
            view_time=between("int", 10, 120),
            page_url=like("https://shoes[.]example[.]com/product/[a-z]{5}"),
            ip=ADDRESS,
            ts=clock(),
        ),
    ),
}
"""The key field and the schema of each."""


@dataclass(frozen=True, slots=True)
class Schema:
    """An Avro schema in JSON, and the field that is the key, if any."""

    avro: str
    keyfield: str


QUICKSTARTS = {
    name: Schema(json.dumps(avro), keyfield)
    for name, (keyfield, avro) in (_RETAIL | _INDUSTRIES).items()
}

_WITH_SUFFIX = (
    *("orders", "ratings", "users", "pageviews", "stock_trades"),
    *("clickstream", "clickstream_codes", "clickstream_users"),
)
FILES = {
    **{f"{name}.avro": name for name in QUICKSTARTS},
    **{f"{name}_schema.avro": name for name in _WITH_SUFFIX},
    **{"purchase.avro": "purchases", "users_array_map_schema.avro": "users_"},
}
"""The names under which ``schema.filename`` finds them in Confluent's connector."""
