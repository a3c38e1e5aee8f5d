import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.function.Consumer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/** Runs the topologies of test_beside_kafka_streams.py in Kafka Streams' own test driver. */
public class Reference {
    static final String NULL = "\\N";
    static final Serde<String> TEXT = Serdes.String();
    static final Map<String, Consumer<StreamsBuilder>> TOPOLOGIES = new TreeMap<>();

    static String group(String value) {
        return value.split(":")[0];
    }

    static long amount(String value) {
        return Long.parseLong(value.split(":")[1]);
    }

    static Duration ms(long number) {
        return Duration.ofMillis(number);
    }

    static String named(Windowed<String> key) {
        return key.key() + "@" + key.window().start() + "/" + key.window().end();
    }

    static void write(KStream<?, ?> stream, String topic) {
        stream.map((k, v) -> KeyValue.pair(
                k instanceof Windowed ? named((Windowed<String>) k) : (String) k,
                v == null ? null : v.toString()))
            .to(topic, Produced.with(TEXT, TEXT));
    }

    static KStream<String, String> left(StreamsBuilder b) {
        return b.stream("left", Consumed.with(TEXT, TEXT));
    }

    static KStream<String, String> right(StreamsBuilder b) {
        return b.stream("right", Consumed.with(TEXT, TEXT));
    }

    static KTable<String, String> table(StreamsBuilder b, String topic) {
        return b.table(topic, Consumed.with(TEXT, TEXT),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("store-" + topic).withKeySerde(TEXT).withValueSerde(TEXT));
    }

    static String both(String one, String other) {
        return one + "+" + other;
    }

    /** Windows that stay in their store until they are final: by default, some expire before. */
    static <S extends org.apache.kafka.streams.processor.StateStore> Materialized<String, Long, S> kept() {
        return Materialized.<String, Long, S>with(TEXT, Serdes.Long()).withRetention(Duration.ofDays(1));
    }

    static void windows(String name, TimeWindows windows) {
        TOPOLOGIES.put(name, b -> write(left(b).groupByKey().windowedBy(windows).count().toStream(), "out"));
        TOPOLOGIES.put(name + " sum", b -> write(left(b).filter((k, v) -> v != null).groupByKey().windowedBy(windows)
            .aggregate(() -> 0L, (k, v, sum) -> sum + amount(v), Materialized.with(TEXT, Serdes.Long())).toStream(), "out"));
        TOPOLOGIES.put(name + " final", b -> write(left(b).groupByKey().windowedBy(windows)
            .emitStrategy(EmitStrategy.onWindowClose()).count(kept()).toStream(), "out"));
        TOPOLOGIES.put(name + " suppress", b -> write(left(b).groupByKey().windowedBy(windows).count()
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())).toStream(), "out"));
    }

    static void sessions(String name, SessionWindows windows) {
        TOPOLOGIES.put(name, b -> write(left(b).groupByKey().windowedBy(windows).count().toStream(), "out"));
        TOPOLOGIES.put(name + " reduce", b -> write(left(b).filter((k, v) -> v != null).groupByKey().windowedBy(windows)
            .reduce((one, other) -> both(one, other)).toStream(), "out"));
        TOPOLOGIES.put(name + " aggregate", b -> write(left(b).filter((k, v) -> v != null).groupByKey().windowedBy(windows)
            .aggregate(() -> 0L, (k, v, sum) -> sum + amount(v), (k, one, other) -> one + other,
                Materialized.with(TEXT, Serdes.Long())).toStream(), "out"));
        TOPOLOGIES.put(name + " final", b -> write(left(b).groupByKey().windowedBy(windows)
            .emitStrategy(EmitStrategy.onWindowClose()).count(kept()).toStream(), "out"));
        TOPOLOGIES.put(name + " suppress", b -> write(left(b).groupByKey().windowedBy(windows).count()
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())).toStream(), "out"));
    }

    static void slidings(String name, SlidingWindows windows) {
        TOPOLOGIES.put(name, b -> write(left(b).groupByKey().windowedBy(windows).count().toStream(), "out"));
        TOPOLOGIES.put(name + " reduce", b -> write(left(b).groupByKey().windowedBy(windows)
            .reduce((one, other) -> both(one, other)).toStream(), "out"));
        TOPOLOGIES.put(name + " final", b -> write(left(b).groupByKey().windowedBy(windows)
            .emitStrategy(EmitStrategy.onWindowClose()).count(kept()).toStream(), "out"));
    }

    static void joins(String name, JoinWindows windows) {
        StreamJoined<String, String, String> with = StreamJoined.with(TEXT, TEXT, TEXT);
        TOPOLOGIES.put(name + " inner", b -> write(left(b).join(right(b), Reference::both, windows, with), "out"));
        TOPOLOGIES.put(name + " left", b -> write(left(b).leftJoin(right(b), Reference::both, windows, with), "out"));
        TOPOLOGIES.put(name + " outer", b -> write(left(b).outerJoin(right(b), Reference::both, windows, with), "out"));
    }

    static {
        TOPOLOGIES.put("filter", b -> write(left(b).filter((k, v) -> v != null && amount(v) > 4), "out"));
        TOPOLOGIES.put("filter_not", b -> write(left(b).filterNot((k, v) -> v != null && amount(v) > 4), "out"));
        TOPOLOGIES.put("map", b -> write(left(b).filter((k, v) -> v != null)
            .map((k, v) -> KeyValue.pair(group(v), k + ":" + amount(v) * 2)), "out"));
        TOPOLOGIES.put("map_values", b -> write(left(b).filter((k, v) -> v != null).mapValues(v -> group(v) + ":" + (amount(v) + 1)), "out"));
        TOPOLOGIES.put("flat_map", b -> write(left(b).filter((k, v) -> v != null).flatMap((k, v) -> {
            List<KeyValue<String, String>> made = new ArrayList<>();
            for (long n = 0; n < amount(v) % 4; n++) {
                made.add(KeyValue.pair(group(v), group(v) + ":" + n));
            }
            return made;
        }), "out"));
        TOPOLOGIES.put("flat_map_values", b -> write(left(b).filter((k, v) -> v != null)
            .flatMapValues(v -> List.of(group(v), group(v) + "!")), "out"));
        TOPOLOGIES.put("select_key", b -> write(left(b).filter((k, v) -> v != null).selectKey((k, v) -> group(v)), "out"));
        TOPOLOGIES.put("split", b -> {
            Map<String, KStream<String, String>> parts = left(b).split(Named.as("p-"))
                .branch((k, v) -> v != null && amount(v) > 5, Branched.as("large"))
                .branch((k, v) -> v != null && group(v).equals("x"), Branched.as("x"))
                .defaultBranch(Branched.as("rest"));
            write(parts.get("p-large"), "large");
            write(parts.get("p-x"), "x");
            write(parts.get("p-rest"), "rest");
        });
        TOPOLOGIES.put("merge", b -> write(left(b).merge(right(b)), "out"));
        TOPOLOGIES.put("to_table", b -> write(left(b).toTable(Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("made")
            .withKeySerde(TEXT).withValueSerde(TEXT))
            .filter((k, v) -> amount(v) > 4).toStream(), "out"));

        TOPOLOGIES.put("count", b -> write(left(b).groupByKey().count().toStream(), "out"));
        TOPOLOGIES.put("group_by", b -> write(left(b).filter((k, v) -> v != null).groupBy((k, v) -> group(v), Grouped.with(TEXT, TEXT))
            .count().toStream(), "out"));
        TOPOLOGIES.put("reduce", b -> write(left(b).groupByKey().reduce(Reference::both).toStream(), "out"));
        TOPOLOGIES.put("aggregate", b -> write(left(b).groupByKey()
            .aggregate(() -> 0L, (k, v, sum) -> sum + amount(v), Materialized.with(TEXT, Serdes.Long())).toStream(), "out"));
        TOPOLOGIES.put("aggregate to nothing", b -> write(left(b).groupByKey()
            .aggregate(() -> 0L, (k, v, sum) -> amount(v) == 7 ? null : sum + amount(v), Materialized.with(TEXT, Serdes.Long())).toStream(), "out"));
        TOPOLOGIES.put("min", b -> write(left(b).groupByKey()
            .aggregate(() -> Long.MAX_VALUE, (k, v, least) -> Math.min(least, amount(v)), Materialized.with(TEXT, Serdes.Long())).toStream(), "out"));

        TOPOLOGIES.put("table", b -> write(table(b, "left").toStream(), "out"));
        TOPOLOGIES.put("table filter", b -> write(table(b, "left").filter((k, v) -> amount(v) > 4).toStream(), "out"));
        TOPOLOGIES.put("table map_values", b -> write(table(b, "left").mapValues(v -> group(v)).toStream(), "out"));
        TOPOLOGIES.put("table group_by count", b -> write(table(b, "left")
            .groupBy((k, v) -> KeyValue.pair(group(v), v), Grouped.with(TEXT, TEXT)).count().toStream(), "out"));
        TOPOLOGIES.put("table group_by sum", b -> write(table(b, "left")
            .groupBy((k, v) -> KeyValue.pair(group(v), v), Grouped.with(TEXT, TEXT))
            .aggregate(() -> 0L, (k, v, sum) -> sum + amount(v), (k, v, sum) -> sum - amount(v), Materialized.with(TEXT, Serdes.Long()))
            .toStream(), "out"));
        TOPOLOGIES.put("table group_by reduce", b -> write(table(b, "left")
            .groupBy((k, v) -> KeyValue.pair(group(v), v), Grouped.with(TEXT, TEXT))
            .reduce((one, other) -> one + "+" + other, (one, other) -> one + "-" + other).toStream(), "out"));
        TOPOLOGIES.put("suppress time", b -> write(left(b).groupByKey().count()
            .suppress(Suppressed.untilTimeLimit(ms(15), Suppressed.BufferConfig.unbounded())).toStream(), "out"));
        TOPOLOGIES.put("suppress most", b -> write(left(b).groupByKey().count()
            .suppress(Suppressed.untilTimeLimit(ms(40), Suppressed.BufferConfig.maxRecords(2))).toStream(), "out"));

        windows("tumbling", TimeWindows.ofSizeAndGrace(ms(10), ms(0)));
        windows("tumbling grace", TimeWindows.ofSizeAndGrace(ms(10), ms(7)));
        windows("hopping", TimeWindows.ofSizeAndGrace(ms(10), ms(5)).advanceBy(ms(3)));
        sessions("session", SessionWindows.ofInactivityGapAndGrace(ms(5), ms(0)));
        sessions("session grace", SessionWindows.ofInactivityGapAndGrace(ms(6), ms(12)));
        slidings("sliding", SlidingWindows.ofTimeDifferenceAndGrace(ms(10), ms(0)));
        slidings("sliding grace", SlidingWindows.ofTimeDifferenceAndGrace(ms(8), ms(20)));

        joins("streams", JoinWindows.ofTimeDifferenceAndGrace(ms(10), ms(0)));
        joins("streams grace", JoinWindows.ofTimeDifferenceAndGrace(ms(6), ms(9)));
        joins("streams before", JoinWindows.ofTimeDifferenceAndGrace(ms(0), ms(4)).before(ms(12)));
        joins("streams after", JoinWindows.ofTimeDifferenceAndGrace(ms(3), ms(2)).after(ms(15)));
        TOPOLOGIES.put("streams self", b -> {
            KStream<String, String> one = left(b);
            write(one.join(one, Reference::both, JoinWindows.ofTimeDifferenceAndGrace(ms(5), ms(5)), StreamJoined.with(TEXT, TEXT, TEXT)), "out");
        });

        TOPOLOGIES.put("stream table inner", b -> write(left(b).join(table(b, "right"), Reference::both, Joined.with(TEXT, TEXT, TEXT)), "out"));
        TOPOLOGIES.put("stream table left", b -> write(left(b).leftJoin(table(b, "right"), Reference::both, Joined.with(TEXT, TEXT, TEXT)), "out"));
        TOPOLOGIES.put("stream table rekeyed", b -> write(left(b).filter((k, v) -> v != null).selectKey((k, v) -> group(v))
            .join(table(b, "right"), Reference::both, Joined.with(TEXT, TEXT, TEXT)), "out"));
        TOPOLOGIES.put("stream filtered table", b -> write(left(b).leftJoin(table(b, "right").filter((k, v) -> amount(v) > 4),
            Reference::both, Joined.with(TEXT, TEXT, TEXT)), "out"));
        TOPOLOGIES.put("stream counted table", b -> write(left(b).leftJoin(right(b).groupByKey().count(),
            (one, other) -> one + "+" + other, Joined.with(TEXT, TEXT, Serdes.Long())), "out"));
        TOPOLOGIES.put("numbered", b -> {
            KStream<String, String> one = left(b);
            write(one.join(one.groupByKey().count(), (value, n) -> value + "+" + n, Joined.with(TEXT, TEXT, Serdes.Long())), "out");
        });
        TOPOLOGIES.put("tables inner", b -> write(table(b, "left").join(table(b, "right"), Reference::both).toStream(), "out"));
        TOPOLOGIES.put("tables left", b -> write(table(b, "left").leftJoin(table(b, "right"), Reference::both).toStream(), "out"));
        TOPOLOGIES.put("tables outer", b -> write(table(b, "left").outerJoin(table(b, "right"), Reference::both).toStream(), "out"));
        TOPOLOGIES.put("tables of tables", b -> write(table(b, "left").filter((k, v) -> amount(v) > 2)
            .leftJoin(table(b, "right").mapValues(v -> group(v)), Reference::both)
            .outerJoin(table(b, "third"), Reference::both).toStream(), "out"));
        TOPOLOGIES.put("foreign inner", b -> write(table(b, "left").join(table(b, "right"), v -> group(v), Reference::both,
            TableJoined.as("fk"), Materialized.with(TEXT, TEXT)).toStream(), "out"));
        TOPOLOGIES.put("foreign left", b -> write(table(b, "left").leftJoin(table(b, "right"), v -> group(v), Reference::both,
            TableJoined.as("fk"), Materialized.with(TEXT, TEXT)).toStream(), "out"));
        TOPOLOGIES.put("foreign some", b -> write(table(b, "left").join(table(b, "right"), v -> amount(v) > 6 ? null : group(v), Reference::both,
            TableJoined.as("fk"), Materialized.with(TEXT, TEXT)).toStream(), "out"));
        TOPOLOGIES.put("global inner", b -> write(left(b).join(b.globalTable("right", Consumed.with(TEXT, TEXT)),
            (k, v) -> v == null ? null : group(v), Reference::both), "out"));
        TOPOLOGIES.put("global left", b -> write(left(b).leftJoin(b.globalTable("right", Consumed.with(TEXT, TEXT)),
            (k, v) -> v == null || amount(v) > 6 ? null : group(v), Reference::both), "out"));

        TOPOLOGIES.put("process", b -> {
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("seen"), TEXT, Serdes.Long()));
            write(left(b).process(Counting::new, "seen"), "out");
        });
    }

    static class Counting extends ContextualProcessor<String, String, String, String> {
        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            context.schedule(ms(10), PunctuationType.STREAM_TIME, time ->
                context.forward(new Record<>("timer", "at " + time, time)));
        }

        @Override
        public void process(Record<String, String> record) {
            KeyValueStore<String, Long> store = context().getStateStore("seen");
            String key = record.key() == null ? "none" : record.key();
            Long before = store.get(key);
            long now = before == null ? 1 : before + 1;
            if (record.value() == null) {
                store.delete(key);
            } else {
                store.put(key, now);
                context().forward(record.withValue(key + " " + now));
            }
        }
    }

    static TopologyTestDriver driver(String name) throws Exception {
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "reference");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "nowhere:1");
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory("streams").toString());
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, TEXT.getClass());
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, TEXT.getClass());
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
        config.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        StreamsBuilder builder = new StreamsBuilder();
        TOPOLOGIES.get(name).accept(builder);
        return new TopologyTestDriver(builder.build(config), config);
    }

    static String shown(String value) {
        return value == null ? NULL : value;
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        TopologyTestDriver driver = null;
        Map<String, TestInputTopic<String, String>> inputs = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t");
            if (words.length == 1) {
                if (driver != null) {
                    driver.close();
                }
                inputs.clear();
                driver = driver(words[0]);
                continue;
            }
            TopologyTestDriver at = driver;
            String key = words[1].equals(NULL) ? null : words[1];
            String value = words[2].equals(NULL) ? null : words[2];
            inputs.computeIfAbsent(words[0], topic -> at.createInputTopic(topic, new StringSerializer(), new StringSerializer()))
                .pipeInput(key, value, Long.parseLong(words[3]));
            for (String topic : List.of("out", "large", "x", "rest")) {
                TestOutputTopic<String, String> output = driver.createOutputTopic(topic, new StringDeserializer(), new StringDeserializer());
                while (!output.isEmpty()) {
                    TestRecord<String, String> record = output.readRecord();
                    out.println(topic + "\t" + shown(record.key()) + "\t" + shown(record.value()) + "\t" + record.timestamp());
                }
            }
            out.println(".");
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }
}
