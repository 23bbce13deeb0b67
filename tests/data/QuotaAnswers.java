// Records what the quota managers of Apache Kafka 3.9 answer under a clock that this program sets.
// java -cp "$(python -m tests.kafka.jars kafka3)" tests/data/QuotaAnswers.java | gzip -9n > tests/data/quota-answers.json.gz

import java.net.InetAddress;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.function.Supplier;

import kafka.server.ClientQuotaManager;
import kafka.server.ClientRequestQuotaManager;
import kafka.server.ControllerMutationQuota;
import kafka.server.ControllerMutationQuotaManager;
import kafka.server.QuotaType;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import scala.Option;

public class QuotaAnswers {
    static final long START = 1_700_000_000_000L;
    static final String ANY = "<default>";

    static class SetTime implements Time {
        long now = START;
        public long milliseconds() { return now; }
        public long nanoseconds() { return now * 1_000_000; }
        public void sleep(long ms) { now += ms; }
        public void waitObject(Object o, Supplier<Boolean> c, long deadline) { throw new UnsupportedOperationException(); }
        public org.apache.kafka.common.utils.Timer timer(long ms) { throw new UnsupportedOperationException(); }
    }

    static Session session(String user) throws Exception {
        return new Session(new KafkaPrincipal("User", user), InetAddress.getLoopbackAddress());
    }

    static Option<String> some(String text) { return Option.apply(text); }

    static void set(ClientQuotaManager manager, String user, String client, Double bound) {
        Option<Quota> quota = bound == null ? Option.empty() : Option.apply(new Quota(bound, true));
        manager.updateQuota(some(user), some(client), some(client), quota);
    }

    public static void main(String[] arguments) throws Exception {
        List<String> out = new ArrayList<>();
        Random random = new Random(7);
        for (String kind : new String[] {"Produce", "Request", "Strict", "Permissive"})
            for (int[] windows : new int[][] {{11, 1}, {3, 2}})
                for (int n = 0; n < 8; n++)
                    out.add(series(kind, windows[0], windows[1], n, random));
        List<String> levels = new ArrayList<>();
        for (int present = 0; present < 256; present++) levels.add(level(present));
        System.out.println("{\"series\": [\n" + String.join(",\n", out) + "],\n\"levels\": [\n"
            + String.join(",\n", levels) + "]}");
        System.exit(0);
    }

    static String series(String kind, int samples, int seconds, int n, Random random) throws Exception {
        SetTime time = new SetTime();
        Metrics metrics = new Metrics(new MetricConfig(), Collections.emptyList(), time);
        ClientQuotaManagerConfig config = new ClientQuotaManagerConfig(samples, seconds);
        boolean isMutation = kind.equals("Strict") || kind.equals("Permissive");
        ClientQuotaManager manager = isMutation
            ? new ControllerMutationQuotaManager(config, metrics, time, "", Option.empty())
            : kind.equals("Request") ? new ClientRequestQuotaManager(config, metrics, time, "", Option.empty())
            : new ClientQuotaManager(config, metrics, QuotaType.Produce$.MODULE$, time, "", Option.empty());
        double bound = isMutation ? 2.0 : kind.equals("Request") ? 12.5 : 1000.0;
        set(manager, null, "app", bound);
        Session session = session("ANONYMOUS");
        List<String> steps = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            int pause = random.nextInt(10) == 0 ? random.nextInt(30_000) : random.nextInt(n < 4 ? 700 : 3000);
            time.now += pause;
            double value = isMutation ? random.nextInt(20) : random.nextInt((int) (bound * 4)) + random.nextInt(4) * 0.25;
            double changed = 0;
            if (i == 30) { changed = bound = bound / 2; set(manager, null, "app", bound); }
            long throttle;
            if (isMutation) {
                ControllerMutationQuotaManager mutations = (ControllerMutationQuotaManager) manager;
                ControllerMutationQuota quota = kind.equals("Strict")
                    ? mutations.newStrictQuotaFor(session, "app") : mutations.newPermissiveQuotaFor(session, "app");
                try { quota.record(value); } catch (ThrottlingQuotaExceededException e) { }
                throttle = quota.throttleTime();
            } else {
                throttle = manager.maybeRecordAndGetThrottleTimeMs(session, "app", value, time.now);
                if (n % 2 == 1 && throttle > 0) manager.recordNoThrottle(session, "app", -value);
            }
            double measured = 0;
            for (var found : metrics.metrics().entrySet()) {
                MetricName name = found.getKey();
                if (name.tags().containsKey("client-id") && List.of("byte-rate", "request-time", "tokens").contains(name.name()))
                    measured = ((Number) found.getValue().metricValue()).doubleValue();
            }
            steps.add("[" + (time.now - START) + ", " + value + ", " + throttle + ", " + measured + ", " + changed + "]");
        }
        manager.shutdown();
        return "{\"kind\": \"" + kind + "\", \"samples\": " + samples + ", \"seconds\": " + seconds
            + ", \"unrecords\": " + (n % 2 == 1 && !isMutation) + ", \"steps\": [" + String.join(", ", steps) + "]}";
    }

    // Bit i of `present` sets the limit i + 1 at level i.
    static String level(int present) throws Exception {
        String[][] entities = {{"a%20b", "app"}, {"a%20b", ANY}, {"a%20b", null}, {ANY, "app"}, {ANY, ANY}, {ANY, null}, {null, "app"}, {null, ANY}};
        SetTime time = new SetTime();
        Metrics metrics = new Metrics(new MetricConfig(), Collections.emptyList(), time);
        ClientQuotaManager manager = new ClientQuotaManager(new ClientQuotaManagerConfig(), metrics, QuotaType.Produce$.MODULE$, time, "", Option.empty());
        for (int i = 0; i < 8; i++) if ((present >> i & 1) == 1) set(manager, entities[i][0], entities[i][1], i + 1.0);
        manager.maybeRecordAndGetThrottleTimeMs(session("a b"), "app", 1, time.now);
        String tags = "null";
        for (MetricName name : metrics.metrics().keySet())
            if (name.name().equals("byte-rate")) tags = "[\"" + name.tags().get("user") + "\", \"" + name.tags().get("client-id") + "\"]";
        double bound = manager.quota(new KafkaPrincipal("User", "a b"), "app").bound();
        manager.shutdown();
        return "[" + present + ", " + (bound > 100 ? 0 : (int) bound) + ", " + tags + "]";
    }
}
