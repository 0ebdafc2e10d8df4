import com.azure.core.models.CloudEvent;
import com.azure.core.util.BinaryData;
import com.azure.identity.DefaultAzureCredentialBuilder;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Reads scheduled events from a Service Bus subscription. Copy this file, and change decide.
 *
 * <p>It prints each event once, and approves short freezes.
 *
 * <pre>
 * SERVICEBUS            a connection string, such as that of `sebridge simulate`
 * SERVICEBUS_ENDPOINT   with the simulator only: https://localhost:PORT, see README
 * SERVICEBUS_NAMESPACE  or the host name of the namespace: `az login`, an identity
 * TOPIC, SUBSCRIPTION   default: scheduled-events, consumer
 * REPLIES               a queue: prints the replies to approvals
 * REPLY_SESSION         the session of the replies, if that queue has sessions
 * </pre>
 */
public final class EventConsumer {
    private static final int REMEMBERED = 10_000; // ids; duplicates arrive within minutes
    private static final ObjectMapper JSON = new ObjectMapper();

    private EventConsumer() {
    }

    public static void main(String[] arguments) {
        String queue = System.getenv("REPLIES");
        if (queue != null) {
            Thread thread = new Thread(() -> printReplies(queue));
            thread.setDaemon(true);
            thread.start();
        }
        try (ServiceBusReceiverClient receiver = connect().receiver()
                 .topicName(named("TOPIC", "scheduled-events"))
                 .subscriptionName(named("SUBSCRIPTION", "consumer"))
                 .disableAutoComplete().buildClient()) {
            Set<String> seen = Collections.newSetFromMap(new Recent());
            each(receiver, message -> {
                // The JSON of CloudEvents; with data of any kind
                CloudEvent event = CloudEvent.fromString(message.getBody().toString()).get(0);
                if (seen.add(event.getSource() + " " + event.getId())) {
                    handle(event, message);
                }
            });
        }
    }

    private static ServiceBusClientBuilder connect() {
        ServiceBusClientBuilder builder = new ServiceBusClientBuilder();
        String text = System.getenv("SERVICEBUS");
        if (text == null) {
            return builder.credential(System.getenv("SERVICEBUS_NAMESPACE"),
                new DefaultAzureCredentialBuilder().build());
        }
        String endpoint = System.getenv("SERVICEBUS_ENDPOINT");
        builder.connectionString(text);
        return endpoint == null ? builder : builder.customEndpointAddress(endpoint);
    }

    /** Decides whether to approve: here, only a freeze that is known to be short. */
    private static boolean decide(CloudEvent event, JsonNode imds) {
        long seconds = imds.path("DurationInSeconds").asLong(-1);
        return event.getType().endsWith(".scheduledevent.scheduled.v1")
            && imds.path("EventType").asText().equals("Freeze")
            && seconds >= 0 && seconds < 9;
    }

    /** Handles one event. It may be called twice for the same event: see README. */
    private static void handle(CloudEvent event, ServiceBusReceivedMessage message) {
        System.out.println(event.getType() + " " + event.getSubject());
        JsonNode data = tree(event.getData());
        if (data.path("test").asBoolean()) {
            return; // a test event of `sebridge send-test`
        }
        if (message.getReplyTo() != null && decide(event, data.path("event"))) {
            approve(event, data.path("event"), message);
        }
    }

    /** Sends the approval to where the event says: ReplyTo and its session. */
    private static void approve(CloudEvent event, JsonNode imds, ServiceBusReceivedMessage to) {
        ObjectNode approval = JSON.createObjectNode()
            .put("specversion", "1.0")
            .put("id", event.getId())
            .put("source", "urn:example:consumer")
            .put("type", "sebridge.startrequest.v1");
        ObjectNode data = approval.putObject("data").put("reason", "a short freeze");
        data.putArray("StartRequests").addObject().put("EventId", event.getSubject());
        data.set("approvedEvent", imds); // denied if the event has got worse
        ServiceBusMessage message = new ServiceBusMessage(approval.toString())
            .setContentType("application/cloudevents+json")
            .setMessageId("consumer-" + event.getId()) // sent twice, it is decided once
            .setSessionId(to.getReplyToSessionId())
            .setReplyTo(System.getenv("REPLIES"))
            .setReplyToSessionId(System.getenv("REPLY_SESSION"));
        try (ServiceBusSenderClient sender = connect().sender()
                 .queueName(to.getReplyTo()).buildClient()) {
            sender.sendMessage(message);
        }
    }

    /** Prints what became of each approval: CorrelationId is its MessageId. */
    private static void printReplies(String queue) {
        try (ServiceBusReceiverClient receiver = replies(queue)) {
            each(receiver, message -> {
                for (JsonNode one : tree(message.getBody()).path("outcomes")) { // no CloudEvent
                    System.out.println("reply:" + one.path("outcome").asText() + " "
                        + one.path("eventId").asText() + " " + message.getCorrelationId());
                }
            });
        }
    }

    private static ServiceBusReceiverClient replies(String queue) {
        String session = System.getenv("REPLY_SESSION");
        if (session == null) {
            return connect().receiver().queueName(queue).disableAutoComplete().buildClient();
        }
        return connect().sessionReceiver().queueName(queue).disableAutoComplete().buildClient()
            .acceptSession(session);
    }

    /** Settles a message after the work: without it, it is delivered again. */
    private static void each(
        ServiceBusReceiverClient receiver, Consumer<ServiceBusReceivedMessage> work) {
        while (true) {
            for (ServiceBusReceivedMessage message : receiver.receiveMessages(1)) {
                work.accept(message);
                receiver.complete(message);
            }
        }
    }

    private static JsonNode tree(BinaryData data) {
        try {
            return JSON.readTree(data.toBytes());
        } catch (java.io.IOException error) {
            throw new IllegalArgumentException("this is no JSON", error);
        }
    }

    private static String named(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    /** The newest ids. */
    private static final class Recent extends LinkedHashMap<String, Boolean> {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
            return size() > REMEMBERED;
        }
    }
}
