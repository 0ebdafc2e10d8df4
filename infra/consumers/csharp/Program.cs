// Reads scheduled events from a Service Bus subscription. Copy this file, and change Decide.
//
// It prints each event once, and approves short freezes.
//
//   SERVICEBUS            a connection string, such as that of `sebridge simulate`
//   SERVICEBUS_NAMESPACE  or the host name of the namespace: `az login`, an identity
//   TOPIC, SUBSCRIPTION   default: scheduled-events, consumer
//   REPLIES               a queue: prints the replies to approvals
//   REPLY_SESSION         the session of the replies, if that queue has sessions

using System.Text.Json;
using Azure.Identity;
using Azure.Messaging;
using Azure.Messaging.ServiceBus;

const int Remembered = 10_000; // ids; duplicates arrive within minutes of each other

await using ServiceBusClient client = Connect();
var tasks = new List<Task> { ReadEvents() };
if (Setting("REPLIES") is string replies) tasks.Add(PrintReplies(replies));
await await Task.WhenAny(tasks); // an error ends it, and the message is delivered again

static string? Setting(string name) => Environment.GetEnvironmentVariable(name);

static ServiceBusClient Connect() =>
    Setting("SERVICEBUS") is string text
        ? new ServiceBusClient(text)
        : new ServiceBusClient(Setting("SERVICEBUS_NAMESPACE"), new DefaultAzureCredential());

async Task ReadEvents()
{
    await using ServiceBusReceiver receiver = client.CreateReceiver(
        Setting("TOPIC") ?? "scheduled-events", Setting("SUBSCRIPTION") ?? "consumer");
    var seen = new HashSet<(string, string)>();
    var order = new Queue<(string, string)>();
    await Each(receiver, async message =>
    {
        // It knows no extension attributes by name, but keeps them in ExtensionAttributes.
        CloudEvent found = CloudEvent.Parse(message.Body)
            ?? throw new InvalidDataException("the body is empty");
        if (!seen.Add((found.Source, found.Id))) return;
        order.Enqueue((found.Source, found.Id));
        if (order.Count > Remembered) seen.Remove(order.Dequeue());
        await Handle(found, message);
    });
}

// It may be called twice for the same event: see README.
async Task Handle(CloudEvent found, ServiceBusReceivedMessage message)
{
    Console.WriteLine($"{found.Type} {found.Subject}");
    using JsonDocument data = JsonDocument.Parse(found.Data);
    if (data.RootElement.TryGetProperty("test", out JsonElement test)
        && test.ValueKind == JsonValueKind.True) return; // of `sebridge send-test`
    if (message.ReplyTo is not null && Decide(found, data.RootElement))
        await Approve(found, data.RootElement, message);
}

// Decides whether to approve: here, only a freeze that is known to be short.
static bool Decide(CloudEvent found, JsonElement data)
{
    if (!found.Type.EndsWith(".scheduledevent.scheduled.v1")) return false;
    JsonElement imds = data.GetProperty("event");
    return imds.GetProperty("EventType").GetString() == "Freeze"
        && imds.GetProperty("DurationInSeconds").TryGetInt64(out long seconds)
        && seconds is >= 0 and < 9;
}

// Sends the approval to where the event says: ReplyTo and its session.
async Task Approve(CloudEvent found, JsonElement data, ServiceBusReceivedMessage to)
{
    var approval = new
    {
        specversion = "1.0",
        id = found.Id,
        source = "urn:example:consumer",
        type = "sebridge.startrequest.v1",
        data = new
        {
            StartRequests = new[] { new { EventId = found.Subject } },
            approvedEvent = data.GetProperty("event"), // denied if the event has got worse
            reason = "a short freeze",
        },
    };
    await using ServiceBusSender sender = client.CreateSender(to.ReplyTo);
    await sender.SendMessageAsync(new ServiceBusMessage(BinaryData.FromObjectAsJson(approval))
    {
        ContentType = "application/cloudevents+json",
        MessageId = $"consumer-{found.Id}", // an approval that is sent twice is decided once
        SessionId = to.ReplyToSessionId,
        ReplyTo = Setting("REPLIES"),
        ReplyToSessionId = Setting("REPLY_SESSION"),
    });
}

// Prints what became of each approval: CorrelationId is its MessageId.
async Task PrintReplies(string queue)
{
    await using ServiceBusReceiver receiver = Setting("REPLY_SESSION") is string session
        ? await client.AcceptSessionAsync(queue, session)
        : client.CreateReceiver(queue);
    await Each(receiver, message =>
    {
        // No CloudEvent: CloudEvent.Parse throws on it.
        using JsonDocument reply = JsonDocument.Parse(message.Body);
        foreach (JsonElement one in reply.RootElement.GetProperty("outcomes").EnumerateArray())
        {
            string said = $"reply:{one.GetProperty("outcome")} {one.GetProperty("eventId")}";
            Console.WriteLine($"{said} {message.CorrelationId}");
        }
        return Task.CompletedTask;
    });
}

// Settles a message after the work: without it, it is delivered again.
static async Task Each(ServiceBusReceiver receiver, Func<ServiceBusReceivedMessage, Task> work)
{
    while (true)
    {
        foreach (ServiceBusReceivedMessage message in await receiver.ReceiveMessagesAsync(1))
        {
            await work(message);
            await receiver.CompleteMessageAsync(message);
        }
    }
}
