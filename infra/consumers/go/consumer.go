// Reads scheduled events from a Service Bus subscription. Copy this file, and change decide.
//
// It prints each event once, and approves short freezes.
//
//	SERVICEBUS            a connection string, such as that of `sebridge simulate`
//	SERVICEBUS_NAMESPACE  or the host name of the namespace: `az login`, an identity
//	TOPIC, SUBSCRIPTION   default: scheduled-events, consumer
//	REPLIES               a queue: prints the replies to approvals
//	REPLY_SESSION         the session of the replies, if that queue has sessions
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const remembered = 10_000 // ids; duplicates arrive within minutes of each other

// event is a CloudEvent. It may have more attributes, and its data more members.
type event struct {
	Source  string `json:"source"`
	ID      string `json:"id"`
	Type    string `json:"type"`
	Subject string `json:"subject"`
	Data    struct {
		Test  bool            `json:"test"`
		Event json.RawMessage `json:"event"` // as in the document of IMDS; sent back as it is
	} `json:"data"`
}

// reply says what became of an approval. It is no CloudEvent.
type reply struct {
	Outcomes []struct {
		Outcome string `json:"outcome"`
		EventID string `json:"eventId"`
	} `json:"outcomes"`
}

// receiver is what the receivers of a subscription, a queue and a session share.
type receiver interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) (
		[]*azservicebus.ReceivedMessage, error)
	CompleteMessage(
		context.Context, *azservicebus.ReceivedMessage, *azservicebus.CompleteMessageOptions) error
}

func connect() (*azservicebus.Client, error) {
	if text := os.Getenv("SERVICEBUS"); text != "" {
		return azservicebus.NewClientFromConnectionString(text, nil)
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return azservicebus.NewClient(os.Getenv("SERVICEBUS_NAMESPACE"), credential, nil)
}

// decide says whether to approve: here, only a freeze that is known to be short.
func decide(found event) bool {
	var imds struct {
		EventType         string
		DurationInSeconds int
	}
	if !strings.HasSuffix(found.Type, ".scheduledevent.scheduled.v1") {
		return false
	}
	if json.Unmarshal(found.Data.Event, &imds) != nil {
		return false
	}
	return imds.EventType == "Freeze" && imds.DurationInSeconds >= 0 && imds.DurationInSeconds < 9
}

// approve sends an approval to where the event says: ReplyTo and its session.
func approve(
	ctx context.Context, client *azservicebus.Client, found event, to *azservicebus.ReceivedMessage,
) error {
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0",
		"id":          found.ID,
		"source":      "urn:example:consumer",
		"type":        "sebridge.startrequest.v1",
		"data": map[string]any{
			"StartRequests": []map[string]string{{"EventId": found.Subject}},
			"approvedEvent": found.Data.Event, // denied if the event has got worse
			"reason":        "a short freeze",
		},
	})
	if err != nil {
		return err
	}
	sender, err := client.NewSender(*to.ReplyTo, nil)
	if err != nil {
		return err
	}
	defer sender.Close(ctx)
	contentType, id := "application/cloudevents+json", "consumer-"+found.ID
	return sender.SendMessage(ctx, &azservicebus.Message{
		Body:             body,
		ContentType:      &contentType,
		MessageID:        &id, // an approval that is sent twice is decided once
		SessionID:        to.ReplyToSessionID,
		ReplyTo:          setting("REPLIES"),
		ReplyToSessionID: setting("REPLY_SESSION"),
	}, nil)
}

// handle may be called twice for the same event: see README.
func handle(
	ctx context.Context, client *azservicebus.Client, message *azservicebus.ReceivedMessage,
	isNew func(string) bool,
) error {
	var found event
	if err := json.Unmarshal(message.Body, &found); err != nil {
		return err
	}
	if !isNew(found.Source + " " + found.ID) {
		return nil
	}
	fmt.Println(found.Type, found.Subject)
	if found.Data.Test || message.ReplyTo == nil || !decide(found) { // test: of `sebridge send-test`
		return nil
	}
	return approve(ctx, client, found, message)
}

// printReplies prints what became of each approval: CorrelationId is its MessageId.
func printReplies(ctx context.Context, client *azservicebus.Client, queue string) error {
	from, err := replies(ctx, client, queue)
	if err != nil {
		return err
	}
	return each(ctx, from, func(message *azservicebus.ReceivedMessage) error {
		var found reply
		if err := json.Unmarshal(message.Body, &found); err != nil {
			return err
		}
		for _, one := range found.Outcomes {
			fmt.Println("reply:"+one.Outcome, one.EventID, *message.CorrelationID)
		}
		return nil
	})
}

func replies(ctx context.Context, client *azservicebus.Client, queue string) (receiver, error) {
	if session := os.Getenv("REPLY_SESSION"); session != "" {
		return client.AcceptSessionForQueue(ctx, queue, session, nil)
	}
	return client.NewReceiverForQueue(queue, nil)
}

// each settles a message after the work: without it, it is delivered again.
func each(ctx context.Context, from receiver, work func(*azservicebus.ReceivedMessage) error) error {
	for {
		messages, err := from.ReceiveMessages(ctx, 10, nil)
		if err != nil {
			return err
		}
		for _, message := range messages {
			if err := work(message); err != nil {
				return err
			}
			if err := from.CompleteMessage(ctx, message, nil); err != nil {
				return err
			}
		}
	}
}

// remember returns a function that says whether it hears a key for the first time.
func remember() func(string) bool {
	seen, order := map[string]bool{}, []string{}
	return func(key string) bool {
		if seen[key] {
			return false
		}
		seen[key], order = true, append(order, key)
		if len(order) > remembered {
			delete(seen, order[0])
			order = order[1:]
		}
		return true
	}
}

func setting(name string) *string {
	if value := os.Getenv(name); value != "" {
		return &value
	}
	return nil
}

func named(name, otherwise string) string {
	if value := setting(name); value != nil {
		return *value
	}
	return otherwise
}

func main() {
	ctx := context.Background()
	client, err := connect()
	if err != nil {
		log.Fatal(err)
	}
	if queue := setting("REPLIES"); queue != nil {
		go func() { log.Fatal(printReplies(ctx, client, *queue)) }()
	}
	topic, subscription := named("TOPIC", "scheduled-events"), named("SUBSCRIPTION", "consumer")
	from, err := client.NewReceiverForSubscription(topic, subscription, nil)
	if err != nil {
		log.Fatal(err)
	}
	isNew := remember()
	log.Fatal(each(ctx, from, func(message *azservicebus.ReceivedMessage) error {
		return handle(ctx, client, message, isNew)
	})) // after an error, the message is delivered again
}
