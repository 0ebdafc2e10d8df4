// Checks of the local Service Bus by the SDK for Go, one line of output for each.
//
// Usage: checks ADDRESSES, the part "servicebus" of what `sebridge simulate --tls` prints.
// The entities are those of ../clients.json.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"golang.org/x/net/websocket"
)

const limit = 120 * time.Second

// addresses are where the local Service Bus listens.
type addresses struct {
	TLSConnectionString               string
	AdministrationTLSConnectionString string
	WebSocket                         string
	Certificate                       string
}

type check struct {
	name string
	run  func(context.Context, *bus) error
}

var checks = []check{
	{"a message is sent and received", sendAndReceive},
	{"a session has its messages and its state", session},
	{"a deferred message of a session is received", deferredOfSession},
	{"deliveries of a dead letter count on", deadLetter},
	{"an absent queue is not found, at once", notFound},
	{"an entity with sessions needs a session", needsSession},
	{"a message is scheduled and cancelled", schedule},
	{"messages come over WebSockets", overWebSockets},
	{"a client has 600 senders", manySenders},
	{"entities are administered", administration},
	{"rules admit and change messages", rules},
}

func main() {
	bus, err := connect(os.Args[1])
	if err != nil {
		fmt.Println("failed connect:", err)
		os.Exit(1)
	}
	code := 0
	for _, each := range checks {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		if err := each.run(ctx, bus); err != nil {
			fmt.Printf("failed %s: %v\n", each.name, err)
			code = 1
		} else {
			fmt.Println("ok", each.name)
		}
		cancel()
	}
	os.Exit(code)
}

// bus has the clients of the SDK.
type bus struct {
	at     addresses
	trust  *tls.Config
	client *azservicebus.Client
	admin  *admin.Client
}

func connect(text string) (*bus, error) {
	found := &bus{}
	if err := json.Unmarshal([]byte(text), &found.at); err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(found.at.Certificate)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	found.trust = &tls.Config{RootCAs: roots}
	found.client, err = azservicebus.NewClientFromConnectionString(found.at.TLSConnectionString,
		&azservicebus.ClientOptions{TLSConfig: found.trust})
	if err != nil {
		return nil, err
	}
	transport := &http.Client{Transport: &http.Transport{TLSClientConfig: found.trust}}
	found.admin, err = admin.NewClientFromConnectionString(
		found.at.AdministrationTLSConnectionString,
		&admin.ClientOptions{ClientOptions: azcore.ClientOptions{
			Transport: transport, Retry: policy.RetryOptions{MaxRetries: -1}}})
	return found, err
}

func (b *bus) send(ctx context.Context, entity string, message *azservicebus.Message) error {
	return sendBy(ctx, b.client, entity, message)
}

func sendBy(
	ctx context.Context, client *azservicebus.Client, entity string, message *azservicebus.Message,
) error {
	sender, err := client.NewSender(entity, nil)
	if err != nil {
		return err
	}
	defer sender.Close(ctx)
	return sender.SendMessage(ctx, message, nil)
}

func text(body string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body)}
}

func inSession(id string, body string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body), SessionID: &id}
}

// receiver is what the receivers of an entity and of a session share.
type receiver interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) (
		[]*azservicebus.ReceivedMessage, error)
}

func one(ctx context.Context, from receiver) (*azservicebus.ReceivedMessage, error) {
	found, err := from.ReceiveMessages(ctx, 1, nil)
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

func expect(wanted, found any) error {
	if fmt.Sprint(wanted) != fmt.Sprint(found) {
		return fmt.Errorf("expected %v, found %v", wanted, found)
	}
	return nil
}

func sendAndReceive(ctx context.Context, b *bus) error {
	return receiveBy(ctx, b.client, "plain")
}

func receiveBy(ctx context.Context, client *azservicebus.Client, queue string) error {
	if err := sendBy(ctx, client, queue, text("hello")); err != nil {
		return err
	}
	from, err := client.NewReceiverForQueue(queue, nil)
	if err != nil {
		return err
	}
	defer from.Close(ctx)
	found, err := one(ctx, from)
	if err != nil {
		return err
	}
	return errors.Join(expect("hello", string(found.Body)), from.CompleteMessage(ctx, found, nil))
}

func session(ctx context.Context, b *bus) error {
	if err := b.send(ctx, "sessions", inSession("s1", "hello")); err != nil {
		return err
	}
	from, err := b.client.AcceptNextSessionForQueue(ctx, "sessions", nil)
	if err != nil {
		return err
	}
	defer from.Close(ctx)
	found, err := one(ctx, from)
	if err != nil {
		return err
	}
	err = errors.Join(
		expect("s1", from.SessionID()),
		expect("hello", string(found.Body)),
		from.CompleteMessage(ctx, found, nil),
		from.RenewSessionLock(ctx, nil),
		from.SetSessionState(ctx, []byte("kept"), nil))
	kept, getting := from.GetSessionState(ctx, nil)
	err = errors.Join(err, getting, expect("kept", string(kept)), from.SetSessionState(ctx, nil, nil))
	if state, _ := from.GetSessionState(ctx, nil); state != nil {
		return fmt.Errorf("the state is %q, and was set to nil", state)
	}
	return err
}

func deferredOfSession(ctx context.Context, b *bus) error {
	if err := b.send(ctx, "sessions", inSession("s2", "later")); err != nil {
		return err
	}
	from, err := b.client.AcceptSessionForQueue(ctx, "sessions", "s2", nil)
	if err != nil {
		return err
	}
	defer from.Close(ctx)
	found, err := one(ctx, from)
	if err != nil {
		return err
	}
	if err := from.DeferMessage(ctx, found, nil); err != nil {
		return err
	}
	again, err := from.ReceiveDeferredMessages(ctx, []int64{*found.SequenceNumber}, nil)
	if err != nil {
		return err
	}
	return errors.Join(expect("later", string(again[0].Body)), from.CompleteMessage(ctx, again[0], nil))
}

func deadLetter(ctx context.Context, b *bus) error {
	if err := b.send(ctx, "plain", text("bad")); err != nil {
		return err
	}
	from, err := b.client.NewReceiverForQueue("plain", nil)
	if err != nil {
		return err
	}
	defer from.Close(ctx)
	first, err := one(ctx, from)
	if err != nil {
		return err
	}
	if err := from.AbandonMessage(ctx, first, nil); err != nil {
		return err
	}
	second, err := one(ctx, from)
	if err != nil {
		return err
	}
	reason := "Unreadable"
	options := &azservicebus.DeadLetterOptions{Reason: &reason}
	if err := from.DeadLetterMessage(ctx, second, options); err != nil {
		return err
	}
	dead, err := b.client.NewReceiverForQueue("plain",
		&azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
	if err != nil {
		return err
	}
	defer dead.Close(ctx)
	found, err := one(ctx, dead)
	if err != nil {
		return err
	}
	return errors.Join(
		expect(reason, *found.DeadLetterReason),
		expect(2, found.DeliveryCount),
		expect(true, found.DeadLetterSource == nil),
		dead.CompleteMessage(ctx, found, nil))
}

func notFound(ctx context.Context, b *bus) error {
	begin := time.Now()
	err := b.send(ctx, "nowhere", text("x"))
	var told *azservicebus.Error
	if !errors.As(err, &told) || told.Code != azservicebus.CodeNotFound {
		return fmt.Errorf("expected %s, found %w", azservicebus.CodeNotFound, err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		return fmt.Errorf("it took %s", took)
	}
	return nil
}

func needsSession(ctx context.Context, b *bus) error {
	from, err := b.client.NewReceiverForQueue("sessions", nil)
	if err != nil {
		return err
	}
	defer from.Close(ctx)
	_, err = from.ReceiveMessages(ctx, 1, nil)
	if err == nil || !strings.Contains(err.Error(), "non-sessionful message receiver") {
		return fmt.Errorf("expected a refusal, found %w", err)
	}
	return nil
}

func schedule(ctx context.Context, b *bus) error {
	sender, err := b.client.NewSender("plain", nil)
	if err != nil {
		return err
	}
	defer sender.Close(ctx)
	at := time.Now().Add(time.Hour)
	numbers, err := sender.ScheduleMessages(ctx, []*azservicebus.Message{text("later")}, at, nil)
	if err != nil {
		return err
	}
	return sender.CancelScheduledMessages(ctx, numbers, nil)
}

func overWebSockets(ctx context.Context, b *bus) error {
	open := func(ctx context.Context, _ azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
		origin := strings.Replace(b.at.WebSocket, "wss", "https", 1)
		config, err := websocket.NewConfig(b.at.WebSocket, origin[:strings.Index(origin, "/$")])
		if err != nil {
			return nil, err
		}
		config.Protocol, config.TlsConfig = []string{"amqp"}, b.trust
		found, err := config.DialContext(ctx)
		if err == nil {
			found.PayloadType = websocket.BinaryFrame
		}
		return found, err
	}
	client, err := azservicebus.NewClientFromConnectionString(b.at.TLSConnectionString,
		&azservicebus.ClientOptions{NewWebSocketConn: open})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	return receiveBy(ctx, client, "plain")
}

func manySenders(ctx context.Context, b *bus) error {
	client, err := azservicebus.NewClientFromConnectionString(b.at.TLSConnectionString,
		&azservicebus.ClientOptions{TLSConfig: b.trust})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	for number := range 600 {
		sender, err := client.NewSender("scrap", nil)
		if err != nil {
			return err
		}
		if err := sender.SendMessage(ctx, text("x"), nil); err != nil {
			return fmt.Errorf("sender %d: %w", number, err)
		}
	}
	return nil
}

func administration(ctx context.Context, b *bus) error {
	parts, size := true, int32(2048)
	made, err := b.admin.CreateQueue(ctx, "made", &admin.CreateQueueOptions{
		Properties: &admin.QueueProperties{EnablePartitioning: &parts, MaxSizeInMegabytes: &size}})
	if err != nil {
		return err
	}
	runtime, err := b.admin.GetQueueRuntimeProperties(ctx, "made", nil)
	if err != nil {
		return err
	}
	absent, err := b.admin.GetQueue(ctx, "nowhere", nil)
	none, inner := b.admin.GetSubscription(ctx, "news", "nobody", nil)
	_, deleting := b.admin.DeleteQueue(ctx, "made", nil)
	return errors.Join(err, inner, deleting,
		expect(16*2048, *made.MaxSizeInMegabytes),
		expect(true, runtime.AccessedAt.IsZero()),
		expect(true, absent == nil),
		expect(true, none == nil))
}

func rules(ctx context.Context, b *bus) error {
	if _, err := b.admin.CreateSubscription(ctx, "news", "picky", nil); err != nil {
		return err
	}
	name := "red"
	_, making := b.admin.CreateRule(ctx, "news", "picky", &admin.CreateRuleOptions{
		Name:   &name,
		Filter: &admin.SQLFilter{Expression: "colour = @c", Parameters: map[string]any{"@c": "red"}},
		Action: &admin.SQLAction{Expression: "SET seen = 'yes'"},
	})
	_, deleting := b.admin.DeleteRule(ctx, "news", "picky", "$Default", nil)
	if err := errors.Join(making, deleting); err != nil {
		return err
	}
	for _, colour := range []string{"blue", "red"} {
		message := text(colour)
		message.ApplicationProperties = map[string]any{"colour": colour}
		if err := b.send(ctx, "news", message); err != nil {
			return err
		}
	}
	from, err := b.client.NewReceiverForSubscription("news", "picky", nil)
	if err != nil {
		return err
	}
	defer from.Close(ctx)
	found, err := one(ctx, from)
	if err != nil {
		return err
	}
	return errors.Join(expect("red", string(found.Body)),
		expect("yes", found.ApplicationProperties["seen"]))
}
