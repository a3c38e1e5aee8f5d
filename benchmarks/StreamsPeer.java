import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/** The topologies of benchmarks.topologies in Kafka Streams, exactly once, until it is ended. */
public class StreamsPeer {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Serde<String> TEXT = Serdes.String();

    record Total(long count, long sum, long last) {
        Total plus(JsonNode value) {
            return new Total(count + 1, sum + value.get("amount").asLong(), value.get("ts").asLong());
        }

        String text() {
            return "{\"count\":" + count + ",\"total\":" + sum + ",\"last\":" + last + "}";
        }
    }

    static final Serde<JsonNode> NODE = serde(
        (topic, node) -> bytes(node),
        (topic, bytes) -> bytes == null ? null : node(bytes));
    static final Serde<Total> TOTAL = serde(
        (topic, t) -> t == null ? null
            : ByteBuffer.allocate(24).putLong(t.count).putLong(t.sum).putLong(t.last).array(),
        (topic, bytes) -> {
            if (bytes == null) return null;
            ByteBuffer b = ByteBuffer.wrap(bytes);
            return new Total(b.getLong(), b.getLong(), b.getLong());
        });

    static <T> Serde<T> serde(Serializer<T> serializer, Deserializer<T> deserializer) {
        return Serdes.serdeFrom(serializer, deserializer);
    }

    static byte[] bytes(JsonNode node) {
        try {
            return node == null ? null : JSON.writeValueAsBytes(node);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    static JsonNode node(byte[] bytes) {
        try {
            return JSON.readTree(bytes);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    public static void main(String[] given) throws Exception {
        String servers = given[0], application = given[1], which = given[2];
        String source = given[3], table = given[4], target = given[5], state = given[6];
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, JsonNode> stream = builder.stream(source, Consumed.with(TEXT, NODE));
        KGroupedStream<String, JsonNode> grouped = stream.groupByKey(Grouped.with(TEXT, NODE));
        switch (which) {
            case "counting" -> grouped
                .aggregate(() -> new Total(0, 0, 0), (key, value, total) -> total.plus(value),
                    Materialized.<String, Total, KeyValueStore<Bytes, byte[]>>as("totals")
                        .withKeySerde(TEXT).withValueSerde(TOTAL))
                .toStream().mapValues(Total::text).to(target, Produced.with(TEXT, TEXT));
            case "joining" -> stream
                .join(builder.table(table, Consumed.with(TEXT, NODE)),
                    (one, other) -> "{\"id\":" + one.get("id") + ",\"amount\":" + one.get("amount")
                        + ",\"name\":" + other.get("name") + "}",
                    Joined.with(TEXT, NODE, NODE))
                .to(target, Produced.with(TEXT, TEXT));
            case "windowing" -> grouped
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofMinutes(1)))
                .aggregate(() -> new Total(0, 0, 0), (key, value, total) -> total.plus(value),
                    Materialized.<String, Total, WindowStore<Bytes, byte[]>>as("totals")
                        .withKeySerde(TEXT).withValueSerde(TOTAL))
                .toStream()
                .map((key, total) -> KeyValue.pair(
                    key.key() + "@" + key.window().start(), total.text()))
                .to(target, Produced.with(TEXT, TEXT));
            case "keeping" -> grouped
                .reduce((former, value) -> value,
                    Materialized.<String, JsonNode, KeyValueStore<Bytes, byte[]>>as("kept")
                        .withKeySerde(TEXT).withValueSerde(NODE))
                .toStream().mapValues(value -> "{\"last\":" + value.get("ts") + "}")
                .to(target, Produced.with(TEXT, TEXT));
            default -> throw new IllegalArgumentException(which);
        }
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, state);
        settings.put(StreamsConfig.producerPrefix("compression.type"), "lz4");
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        Thread.currentThread().join();
    }
}
