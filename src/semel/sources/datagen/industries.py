"""Schemas from other industries."""

from __future__ import annotations

from semel.sources.datagen.notation import (
    ADDRESS,
    DAY,
    INSURED,
    NAMES,
    PAST,
    PEOPLE,
    Type,
    between,
    clock,
    count,
    like,
    logical,
    mail,
    one_of,
    record,
    rows,
)

_SHOES = [f"shoe-{n:03}" for n in range(40)]
_RUNNERS = [f"runner-{n:03}" for n in range(50)]
_VEHICLE = between("int", 1000, 9999)
_STORE = between("int", 1, 10)
_STAFF = between("int", 1000, 1050)

SCHEMAS: dict[str, tuple[str, Type]] = {
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
