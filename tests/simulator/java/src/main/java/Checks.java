import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.http.HttpPipelineCallContext;
import com.azure.core.http.HttpPipelineNextPolicy;
import com.azure.core.http.HttpResponse;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.http.policy.RetryOptions;
import com.azure.core.http.policy.FixedDelayOptions;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileInputStream;
import java.io.OutputStream;
import java.net.URI;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import reactor.core.publisher.Mono;

/**
 * Checks of the local Service Bus by the SDK for Java, one line of output for each.
 *
 * <p>Usage: java Checks ADDRESSES, the part "servicebus" of what {@code sebridge simulate --tls}
 * prints. The entities are those of ../clients.json.
 */
public final class Checks {
    private static final Duration WAIT = Duration.ofSeconds(60);
    private static final Duration SHORT_WAIT = Duration.ofSeconds(2);
    private static final Duration AT_ONCE = Duration.ofSeconds(15);

    private final JsonNode addresses;

    private Checks(JsonNode addresses) {
        this.addresses = addresses;
    }

    @FunctionalInterface
    private interface Check {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        Checks checks = new Checks(new ObjectMapper().readTree(arguments[0]));
        trust(checks.address("certificate"));
        boolean passed = true;
        for (Map.Entry<String, Check> each : checks.all().entrySet()) {
            passed &= run(each.getKey(), each.getValue());
        }
        System.exit(passed ? 0 : 1);
    }

    private Map<String, Check> all() {
        Map<String, Check> found = new LinkedHashMap<>();
        found.put("a message is sent and received", () -> sendAndReceive(builder(), "plain"));
        found.put("a session has its messages and its state", this::session);
        found.put("a deferred message of a session is received", this::deferredOfSession);
        found.put("an absent queue is not found, at once", this::notFound);
        found.put("a message is scheduled, peeked and cancelled", this::schedule);
        found.put("a transaction is committed", this::commit);
        found.put("a transaction is rolled back", this::rollBack);
        found.put("a transaction goes over several entities", this::overEntities);
        found.put("rules are made, listed and obeyed", this::rules);
        found.put("messages come over WebSockets", this::overWebSockets);
        found.put("entities are administered", this::administration);
        return found;
    }

    private static boolean run(String name, Check check) {
        try {
            check.run();
            System.out.println("ok " + name);
            return true;
        } catch (Exception error) {
            System.out.println("failed " + name + ": " + error);
            return false;
        }
    }

    /** Let this process trust a certificate; {@code keytool -importcert} makes such a file, too. */
    private static void trust(String certificate) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        try (FileInputStream in = new FileInputStream(certificate)) {
            CertificateFactory factory = CertificateFactory.getInstance("X.509");
            store.setCertificateEntry("simulator", factory.generateCertificate(in));
        }
        Path file = Files.createTempFile("trust", ".p12");
        try (OutputStream out = Files.newOutputStream(file)) {
            store.store(out, "changeit".toCharArray());
        }
        file.toFile().deleteOnExit();
        System.setProperty("javax.net.ssl.trustStore", file.toString());
        System.setProperty("javax.net.ssl.trustStorePassword", "changeit");
    }

    private String address(String name) {
        return addresses.get(name).asText();
    }

    /** The SDK takes ports from the custom endpoint only, and its scheme has to be https. */
    private ServiceBusClientBuilder builder(String endpoint) {
        return new ServiceBusClientBuilder()
            .connectionString(address("tlsConnectionString"))
            .customEndpointAddress(address(endpoint).replace("sb://", "https://"))
            .retryOptions(new AmqpRetryOptions().setTryTimeout(WAIT));
    }

    private ServiceBusClientBuilder builder() {
        return builder("tlsEndpoint");
    }

    private static void expect(Object wanted, Object found) {
        if (!Objects.equals(wanted, found)) {
            throw new IllegalStateException("expected " + wanted + ", found " + found);
        }
    }

    private void send(String entity, ServiceBusMessage message) {
        try (ServiceBusSenderClient sender = builder().sender().queueName(entity).buildClient()) {
            sender.sendMessage(message);
        }
    }

    private static ServiceBusReceiverClient receiver(ServiceBusClientBuilder from, String queue) {
        return from.receiver().queueName(queue).disableAutoComplete().buildClient();
    }

    private static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return receiver.receiveMessages(1, WAIT).stream().findFirst().orElseThrow();
    }

    private static void sendAndReceive(ServiceBusClientBuilder builder, String queue) {
        try (ServiceBusSenderClient sender = builder.sender().queueName(queue).buildClient();
             ServiceBusReceiverClient receiver = receiver(builder, queue)) {
            sender.sendMessage(new ServiceBusMessage("hello"));
            ServiceBusReceivedMessage found = one(receiver);
            receiver.complete(found);
            expect("hello", found.getBody().toString());
        }
    }

    private void session() {
        send("sessions", new ServiceBusMessage("hello").setSessionId("s1"));
        try (var sessions = builder().sessionReceiver().queueName("sessions").disableAutoComplete()
                 .buildClient();
             ServiceBusReceiverClient receiver = sessions.acceptNextSession()) {
            ServiceBusReceivedMessage found = one(receiver);
            receiver.complete(found);
            receiver.setSessionState("kept".getBytes());
            expect("s1", receiver.getSessionId());
            expect("hello", found.getBody().toString());
            expect("kept", new String(receiver.getSessionState()));
            receiver.renewSessionLock();
        }
    }

    private void deferredOfSession() {
        send("sessions", new ServiceBusMessage("later").setSessionId("s2"));
        try (var sessions = builder().sessionReceiver().queueName("sessions").disableAutoComplete()
                 .buildClient();
             ServiceBusReceiverClient receiver = sessions.acceptSession("s2")) {
            ServiceBusReceivedMessage found = one(receiver);
            receiver.defer(found);
            ServiceBusReceivedMessage again =
                receiver.receiveDeferredMessage(found.getSequenceNumber());
            receiver.complete(again);
            expect("later", again.getBody().toString());
        }
    }

    private void notFound() {
        Instant begin = Instant.now();
        try {
            send("nowhere", new ServiceBusMessage("x"));
            throw new IllegalStateException("a message went to an absent queue");
        } catch (ServiceBusException error) {
            expect(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, error.getReason());
        }
        Duration took = Duration.between(begin, Instant.now());
        expect("at once", took.compareTo(AT_ONCE) < 0 ? "at once" : took.toString());
    }

    private void schedule() {
        try (ServiceBusSenderClient sender = builder().sender().queueName("plain").buildClient();
             ServiceBusReceiverClient receiver = receiver(builder(), "plain")) {
            OffsetDateTime at = OffsetDateTime.now().plusHours(1);
            Long number = sender.scheduleMessage(new ServiceBusMessage("later"), at);
            expect("later", receiver.peekMessage().getBody().toString());
            sender.cancelScheduledMessage(number);
            expect(null, receiver.peekMessage(0));
        }
    }

    private void commit() {
        try (ServiceBusSenderClient sender = builder().sender().queueName("orders").buildClient();
             ServiceBusReceiverClient receiver = receiver(builder(), "orders")) {
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("paid"), transaction);
            expect(null, receiver.peekMessage(0));
            sender.commitTransaction(transaction);
            ServiceBusReceivedMessage found = one(receiver);
            receiver.complete(found);
            expect("paid", found.getBody().toString());
        }
    }

    private void rollBack() {
        try (ServiceBusSenderClient sender = builder().sender().queueName("orders").buildClient();
             ServiceBusReceiverClient receiver = receiver(builder(), "orders")) {
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage("not paid"), transaction);
            sender.rollbackTransaction(transaction);
            expect(null, receiver.peekMessage(0));
        }
    }

    private void overEntities() {
        send("plain", new ServiceBusMessage("order"));
        ServiceBusClientBuilder builder = builder().enableCrossEntityTransactions();
        try (ServiceBusReceiverClient receiver = receiver(builder, "plain");
             ServiceBusSenderClient sender = builder.sender().queueName("orders").buildClient()) {
            ServiceBusReceivedMessage order = one(receiver);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            sender.sendMessage(new ServiceBusMessage("invoice"), transaction);
            receiver.complete(order, new CompleteOptions().setTransactionContext(transaction));
            receiver.commitTransaction(transaction);
        }
        try (ServiceBusReceiverClient plain = receiver(builder(), "plain");
             ServiceBusReceiverClient orders = receiver(builder(), "orders")) {
            expect(null, plain.peekMessage(0));
            ServiceBusReceivedMessage found = one(orders);
            orders.complete(found);
            expect("invoice", found.getBody().toString());
        }
    }

    private void rules() {
        try (var manager = builder().ruleManager().topicName("news").subscriptionName("all")
                 .buildClient();
             ServiceBusSenderClient sender = builder().sender().topicName("news").buildClient();
             ServiceBusReceiverClient receiver = builder().receiver().topicName("news")
                 .subscriptionName("all").disableAutoComplete().buildClient()) {
            manager.createRule("red", new CreateRuleOptions(new SqlRuleFilter("colour = 'red'")));
            manager.deleteRule("$Default");
            expect(List.of("red"), manager.listRules().stream().map(r -> r.getName()).toList());
            for (String colour : List.of("blue", "red")) {
                ServiceBusMessage message = new ServiceBusMessage(colour);
                message.getApplicationProperties().put("colour", colour);
                sender.sendMessage(message);
            }
            ServiceBusReceivedMessage found = one(receiver);
            receiver.complete(found);
            expect("red", found.getBody().toString());
        }
    }

    private void overWebSockets() {
        ServiceBusClientBuilder builder = builder("webSocketEndpoint")
            .transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
        sendAndReceive(builder, "plain");
    }

    private void administration() {
        String endpoint = address("administrationTlsConnectionString").split("[=;]")[1];
        ServiceBusAdministrationClient client = new ServiceBusAdministrationClientBuilder()
            .connectionString(address("administrationTlsConnectionString"))
            .retryOptions(new RetryOptions(new FixedDelayOptions(0, SHORT_WAIT)))
            .addPolicy(new PortPolicy(URI.create(endpoint).getPort()))
            .buildClient();
        client.createQueue("made");
        expect(true, client.getQueueExists("made"));
        expect(1024L, client.getQueue("made").getMaxSizeInMegabytes());
        client.deleteQueue("made");
        expect(false, client.getQueueExists("made"));
        expect(false, client.getSubscriptionExists("news", "nobody"));
    }

    /** Puts back the port of the connection string, which the administration client drops. */
    private record PortPolicy(int port) implements HttpPipelinePolicy {
        @Override
        public Mono<HttpResponse> process(
            HttpPipelineCallContext context, HttpPipelineNextPolicy next) {
            URL url = context.getHttpRequest().getUrl();
            try {
                context.getHttpRequest().setUrl(
                    new URL(url.getProtocol(), url.getHost(), port, url.getFile()));
            } catch (java.net.MalformedURLException error) {
                return Mono.error(error);
            }
            return next.process();
        }
    }
}
