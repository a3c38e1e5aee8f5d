import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaDeserializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaDeserializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufSchemaParser;
import io.apicurio.registry.utils.protobuf.schema.ProtobufSchema;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serializer;

/** Writes JSON with Apicurio's serializers, and reads bytes with its deserializers. */
public class Serializers {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = JSON.readTree(line);
            out.println(JSON.writeValueAsString(asked.has("read") ? read(asked) : written(asked)));
        }
    }

    static Map<String, Object> config(JsonNode asked) {
        Map<String, Object> found = new HashMap<>();
        found.put("apicurio.registry.url", asked.get("registry").asText());
        found.put("apicurio.registry.as-confluent", "true");
        found.put("apicurio.registry.use-id", "contentId");
        found.put("apicurio.registry.find-latest", "true");
        found.put("apicurio.registry.headers.enabled", "false");
        // It finds maps unlike themselves, and decimals that Kafka Connect writes no numbers.
        found.put("apicurio.registry.serde.validation-enabled", "false");
        found.put("apicurio.registry.deserializer.value.return-class", asked.path("class").asText(null));
        found.values().removeIf(value -> value == null);
        return found;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    static List<String> written(JsonNode asked) throws Exception {
        String format = asked.get("format").asText();
        Serializer serializer = switch (format) {
            case "AVRO" -> new AvroKafkaSerializer<>();
            case "JSON" -> new JsonSchemaKafkaSerializer<>();
            default -> new ProtobufKafkaSerializer<>();
        };
        serializer.configure(config(asked), false);
        List<String> found = new ArrayList<>();
        for (JsonNode value : asked.get("values")) {
            Object data = data(format, asked.get("schema").asText(), asked.path("message").asText(), value);
            byte[] bytes = serializer.serialize(asked.get("topic").asText(), data);
            found.add(Base64.getEncoder().encodeToString(bytes));
        }
        return found;
    }

    static Object data(String format, String schema, String message, JsonNode value) throws Exception {
        String text = JSON.writeValueAsString(value);
        if (format.equals("AVRO")) {
            Schema parsed = new Schema.Parser().parse(schema);
            return new GenericDatumReader<>(parsed).read(null, DecoderFactory.get().jsonDecoder(parsed, text));
        }
        if (format.equals("JSON")) {
            return value;
        }
        ProtobufSchema parsed = new ProtobufSchemaParser<Message>()
                .parseSchema(schema.getBytes(StandardCharsets.UTF_8), Map.of());
        Descriptor type = parsed.getFileDescriptor().findMessageTypeByName(message);
        DynamicMessage.Builder builder = DynamicMessage.newBuilder(type);
        JsonFormat.parser().merge(text, builder);
        return builder.build();
    }

    static List<String> read(JsonNode asked) throws Exception {
        Deserializer<?> deserializer = switch (asked.get("format").asText()) {
            case "AVRO" -> new AvroKafkaDeserializer<>();
            case "JSON" -> new JsonSchemaKafkaDeserializer<>();
            default -> new ProtobufKafkaDeserializer<>();
        };
        deserializer.configure(config(asked), false);
        List<String> found = new ArrayList<>();
        for (JsonNode value : asked.get("read")) {
            Object data = deserializer.deserialize(asked.get("topic").asText(),
                    Base64.getDecoder().decode(value.asText()));
            found.add(data instanceof Message
                    ? JsonFormat.printer().includingDefaultValueFields().preservingProtoFieldNames()
                            .omittingInsignificantWhitespace().print((Message) data)
                    : data.toString());
        }
        return found;
    }
}
