import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;

/** Applies Kafka Connect's own transforms: a case of JSON in each line, a list of results back. */
@SuppressWarnings({"rawtypes", "unchecked"})
public class Reference {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    static List<Object> answer(JsonNode asked) throws Exception {
        List<Transformation> chain = new ArrayList<>();
        for (JsonNode stage : asked.get("chain")) {
            Transformation made = (Transformation)
                    Class.forName(stage.get("type").asText()).getDeclaredConstructor().newInstance();
            made.configure(JSON.convertValue(stage.get("config"), Map.class));
            chain.add(made);
        }
        JsonConverter keys = converter(asked, true);
        JsonConverter values = converter(asked, false);
        List<Object> results = new ArrayList<>();
        for (JsonNode record : asked.get("records")) {
            results.add(result(chain, read(record, keys, values)));
        }
        return results;
    }

    static JsonConverter converter(JsonNode asked, boolean isKey) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", asked.get("schemas").asText()), isKey);
        return made;
    }

    static ConnectRecord read(JsonNode record, JsonConverter keys, JsonConverter values) {
        String topic = record.get("topic").asText();
        SchemaAndValue key = keys.toConnectData(topic, bytes(record.get("key")));
        SchemaAndValue value = values.toConnectData(topic, bytes(record.get("value")));
        ConnectHeaders headers = new ConnectHeaders();
        for (JsonNode header : record.get("headers")) {
            headers.addString(header.get(0).asText(), header.get(1).asText());
        }
        if (record.has("source")) {
            return new SourceRecord(Map.of(), Map.of(), topic, null, key.schema(), key.value(),
                    value.schema(), value.value(), null, headers);
        }
        return new SinkRecord(topic, record.get("partition").asInt(), key.schema(), key.value(),
                value.schema(), value.value(), record.get("offset").asLong(),
                record.get("timestamp").asLong(), TimestampType.CREATE_TIME, headers);
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    static Map<String, Object> result(List<Transformation> chain, ConnectRecord record) {
        Map<String, Object> found = new HashMap<>();
        try {
            for (Transformation transform : chain) {
                record = (ConnectRecord) transform.apply(record);
                if (record == null) {
                    found.put("dropped", true);
                    return found;
                }
            }
        } catch (Exception error) {
            found.put("exception", error.getClass().getName());
            found.put("message", String.valueOf(error.getMessage()));
            return found;
        }
        found.put("topic", record.topic());
        found.put("timestamp", record.timestamp());
        found.put("key", shown(record.key()));
        found.put("value", shown(record.value()));
        found.put("type", record.valueSchema() == null ? null : type(record.valueSchema()));
        found.put("schema", record.valueSchema() == null ? null : List.of(
                String.valueOf(record.valueSchema().name()), String.valueOf(record.valueSchema().version())));
        List<Object> headers = new ArrayList<>();
        SimpleHeaderConverter simple = new SimpleHeaderConverter();
        for (Header header : (Iterable<Header>) record.headers()) {
            byte[] text = simple.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value());
            headers.add(new Object[] {header.key(), text == null ? null : new String(text, StandardCharsets.UTF_8)});
        }
        found.put("headers", headers);
        return found;
    }

    static Object type(Schema schema) {
        if (schema.type() == Schema.Type.STRUCT) {
            Map<String, Object> fields = new HashMap<>();
            for (Field field : schema.fields()) {
                fields.put(field.name(), type(field.schema()));
            }
            return fields;
        }
        return schema.name() == null ? schema.type().toString() : schema.type() + ":" + schema.name();
    }

    static Object shown(Object value) {
        if (value instanceof Struct) {
            Map<String, Object> fields = new HashMap<>();
            for (Field field : ((Struct) value).schema().fields()) {
                fields.put(field.name(), shown(((Struct) value).get(field)));
            }
            return Map.of("fields", fields);
        }
        if (value instanceof Map) {
            Map<String, Object> fields = new HashMap<>();
            ((Map<?, ?>) value).forEach((name, inside) -> fields.put(name.toString(), shown(inside)));
            return Map.of("fields", fields);
        }
        if (value instanceof List) {
            List<Object> items = new ArrayList<>();
            ((List<?>) value).forEach(item -> items.add(shown(item)));
            return Map.of("items", items);
        }
        if (value instanceof Date) {
            return Map.of("date", ((Date) value).getTime());
        }
        if (value instanceof byte[]) {
            return Map.of("bytes", Base64.getEncoder().encodeToString((byte[]) value));
        }
        if (value instanceof ByteBuffer) {
            return Map.of("bytes", Base64.getEncoder().encodeToString(((ByteBuffer) value).array()));
        }
        if (value instanceof BigDecimal) {
            return Map.of("decimal", value.toString());
        }
        if (value instanceof Float || value instanceof Double) {
            return Map.of("float", value.toString());
        }
        return value;
    }
}
