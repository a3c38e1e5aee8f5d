"""The files that every schema may import without registration."""

from __future__ import annotations

from functools import cache

from semel.converters.protobuf.files import File
from semel.converters.protobuf.text import parse

_GOOGLE = {
    "any": "message Any { string type_url = 1; bytes value = 2; }",
    "duration": "message Duration { int64 seconds = 1; int32 nanos = 2; }",
    "empty": "message Empty {}",
    "field_mask": "message FieldMask { repeated string paths = 1; }",
    "source_context": "message SourceContext { string file_name = 1; }",
    "struct": """
        message Struct { map<string, Value> fields = 1; }
        message Value {
          oneof kind {
            NullValue null_value = 1;
            double number_value = 2;
            string string_value = 3;
            bool bool_value = 4;
            Struct struct_value = 5;
            ListValue list_value = 6;
          }
        }
        enum NullValue { NULL_VALUE = 0; }
        message ListValue { repeated Value values = 1; }
    """,
    "timestamp": "message Timestamp { int64 seconds = 1; int32 nanos = 2; }",
    "wrappers": """
        message DoubleValue { double value = 1; }
        message FloatValue { float value = 1; }
        message Int64Value { int64 value = 1; }
        message UInt64Value { uint64 value = 1; }
        message Int32Value { int32 value = 1; }
        message UInt32Value { uint32 value = 1; }
        message BoolValue { bool value = 1; }
        message StringValue { string value = 1; }
        message BytesValue { bytes value = 1; }
    """,
}
_TYPES = {
    "color": """
        import "google/protobuf/wrappers.proto";
        message Color {
          float red = 1;
          float green = 2;
          float blue = 3;
          google.protobuf.FloatValue alpha = 4;
        }
    """,
    "date": "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
    "datetime": """
        import "google/protobuf/duration.proto";
        message DateTime {
          int32 year = 1;
          int32 month = 2;
          int32 day = 3;
          int32 hours = 4;
          int32 minutes = 5;
          int32 seconds = 6;
          int32 nanos = 7;
          oneof time_offset {
            google.protobuf.Duration utc_offset = 8;
            TimeZone time_zone = 9;
          }
        }
        message TimeZone { string id = 1; string version = 2; }
    """,
    "dayofweek": """
        enum DayOfWeek {
          DAY_OF_WEEK_UNSPECIFIED = 0;
          MONDAY = 1;
          TUESDAY = 2;
          WEDNESDAY = 3;
          THURSDAY = 4;
          FRIDAY = 5;
          SATURDAY = 6;
          SUNDAY = 7;
        }
    """,
    "decimal": "message Decimal { string value = 1; }",
    "interval": """
        import "google/protobuf/timestamp.proto";
        message Interval {
          google.protobuf.Timestamp start_time = 1;
          google.protobuf.Timestamp end_time = 2;
        }
    """,
    "latlng": "message LatLng { double latitude = 1; double longitude = 2; }",
    "money": "message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }",
    "month": """
        enum Month {
          MONTH_UNSPECIFIED = 0;
          JANUARY = 1;
          FEBRUARY = 2;
          MARCH = 3;
          APRIL = 4;
          MAY = 5;
          JUNE = 6;
          JULY = 7;
          AUGUST = 8;
          SEPTEMBER = 9;
          OCTOBER = 10;
          NOVEMBER = 11;
          DECEMBER = 12;
        }
    """,
    "timeofday": """
        message TimeOfDay {
          int32 hours = 1;
          int32 minutes = 2;
          int32 seconds = 3;
          int32 nanos = 4;
        }
    """,
}
_CONFLUENT = {
    "confluent/meta.proto": "package confluent;",
    "confluent/type/decimal.proto": """
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """,
    "confluent/type/variant.proto": """
        package confluent.type;
        message Variant { bytes metadata = 1; bytes value = 2; }
    """,
    "google/protobuf/descriptor.proto": "package google.protobuf;",
}
_TEXTS = {
    **{f"google/protobuf/{n}.proto": f"package google.protobuf;{t}" for n, t in _GOOGLE.items()},
    **{f"google/type/{n}.proto": f"package google.type;{t}" for n, t in _TYPES.items()},
    **_CONFLUENT,
}


def text(name: str) -> str:
    """The text of one of these files."""
    return f'syntax = "proto3";\n{_TEXTS[name]}'


@cache
def known(name: str) -> File | None:
    """One of these files; None for others."""
    return parse(text(name)) if name in _TEXTS else None
