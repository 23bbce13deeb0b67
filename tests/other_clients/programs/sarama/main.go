// What the tests ask of sarama: `sarama TASK ARGUMENTS` takes JSON and prints JSON.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type security struct {
	CA          string
	Mechanism   string
	Username    string
	Password    string
	Token       string
	Certificate string
	Key         string
	Keytab      string
	Realm       string
	Kerberos    string
}

type arguments struct {
	Bootstrap   string
	Topic       string
	Mode        string
	Group       string
	Partitions  int32
	Replication int16
	Count       int
	Members     int
	Security    *security
}

type read struct {
	Member    string
	Partition int32
	Offset    int64
	Value     string
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (s security) tls() *tls.Config {
	text, err := os.ReadFile(s.CA)
	check(err)
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(text)
	if s.Certificate != "" {
		certificate, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
		check(err)
		config.Certificates = []tls.Certificate{certificate}
	}
	return config
}

// sarama leaves the computations of SCRAM to its user.
type scramClient struct {
	*scram.ClientConversation
	hash scram.HashGeneratorFcn
}

func (c *scramClient) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

type tokens string

func (t tokens) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

func (s security) set(config *sarama.Config) {
	config.Metadata.Retry.Max = 2
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = s.tls()
	if s.Mechanism == "" {
		return
	}
	sasl := &config.Net.SASL
	sasl.Enable = true
	sasl.Mechanism = sarama.SASLMechanism(s.Mechanism)
	sasl.User, sasl.Password = s.Username, s.Password
	switch s.Mechanism {
	case "SCRAM-SHA-256":
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA256} }
	case "SCRAM-SHA-512":
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA512} }
	case "OAUTHBEARER":
		sasl.TokenProvider = tokens(s.Token)
	case "GSSAPI":
		sasl.GSSAPI = sarama.GSSAPIConfig{AuthType: sarama.KRB5_KEYTAB_AUTH, KeyTabPath: s.Keytab,
			KerberosConfigPath: s.Kerberos, ServiceName: "kafka", Username: s.Username, Realm: s.Realm,
			DisablePAFXFAST: true}
	}
}

func settings(a arguments) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.Retry.Max = 20
	if a.Security != nil {
		a.Security.set(config)
	}
	return config
}

func metadata(a arguments) any {
	cl, err := sarama.NewClient([]string{a.Bootstrap}, settings(a))
	check(err)
	defer cl.Close()
	brokers := []int32{}
	for _, broker := range cl.Brokers() {
		brokers = append(brokers, broker.ID())
	}
	controller, err := cl.Controller()
	check(err)
	partitions, err := cl.Partitions(a.Topic)
	check(err)
	leaders := map[int32]int32{}
	for _, partition := range partitions {
		leader, err := cl.Leader(a.Topic, partition)
		check(err)
		leaders[partition] = leader.ID()
	}
	return map[string]any{"brokers": brokers, "controller": controller.ID(), "leaders": leaders}
}

func produce(a arguments) any {
	config := settings(a)
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Retry.Max = 20
	if a.Mode != "plain" {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	if a.Mode == "transactional" {
		config.Producer.Transaction.ID = a.Topic + "-sarama"
	}
	producer, err := sarama.NewSyncProducer([]string{a.Bootstrap}, config)
	check(err)
	defer producer.Close()
	send := func(what string, count int) {
		var messages []*sarama.ProducerMessage
		for number := range count {
			for partition := range a.Partitions {
				value := fmt.Sprintf("%s-%d-%d", what, partition, number)
				messages = append(messages, &sarama.ProducerMessage{
					Topic: a.Topic, Partition: partition, Value: sarama.StringEncoder(value)})
			}
		}
		check(producer.SendMessages(messages))
	}
	if a.Mode != "transactional" {
		send(a.Mode, a.Count)
		return nil
	}
	check(producer.BeginTxn())
	send("aborted", a.Count)
	check(producer.AbortTxn())
	check(producer.BeginTxn())
	send(a.Mode, a.Count)
	check(producer.CommitTxn())
	return nil
}

type reader struct {
	name string
	take func(read)
}

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			session.Commit()
			r.take(read{r.name, message.Partition, message.Offset, string(message.Value)})
		case <-session.Context().Done():
			return nil
		}
	}
}

func consume(a arguments) any {
	ctx, finish := context.WithTimeout(context.Background(), 50*time.Second)
	defer finish()
	var lock sync.Mutex
	reads := []read{}
	take := func(one read) {
		lock.Lock()
		defer lock.Unlock()
		reads = append(reads, one)
		if len(reads) >= a.Count {
			finish()
		}
	}
	var running sync.WaitGroup
	for _, name := range []string{"first", "second"}[:a.Members] {
		config := settings(a)
		config.ClientID = name
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		config.Consumer.Offsets.AutoCommit.Enable = false
		config.Consumer.IsolationLevel = sarama.ReadCommitted
		config.Consumer.MaxWaitTime = 100 * time.Millisecond
		config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
		group, err := sarama.NewConsumerGroup([]string{a.Bootstrap}, a.Group, config)
		check(err)
		running.Go(func() {
			for ctx.Err() == nil {
				check(group.Consume(ctx, []string{a.Topic}, reader{name, take}))
			}
			check(group.Close())
		})
	}
	running.Wait()
	return reads
}

func admin(a arguments) any {
	adm, err := sarama.NewClusterAdmin([]string{a.Bootstrap}, settings(a))
	check(err)
	defer adm.Close()
	setting := "120000"
	check(adm.CreateTopic(a.Topic, &sarama.TopicDetail{NumPartitions: a.Partitions,
		ReplicationFactor: a.Replication, ConfigEntries: map[string]*string{"retention.ms": &setting}}, false))
	replicas := []int{}
	for len(replicas) < int(a.Partitions) {
		replicas = nil
		found, err := adm.DescribeTopics([]string{a.Topic})
		check(err)
		for _, partition := range found[0].Partitions {
			replicas = append(replicas, len(partition.Replicas))
		}
	}
	entries, err := adm.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: a.Topic, ConfigNames: []string{"retention.ms"}})
	check(err)
	cl, err := sarama.NewClient([]string{a.Bootstrap}, settings(a))
	check(err)
	defer cl.Close()
	manager, err := sarama.NewOffsetManagerFromClient(a.Group, cl)
	check(err)
	ends := map[int32]int64{}
	for partition := range a.Partitions {
		managed, err := manager.ManagePartition(a.Topic, partition)
		check(err)
		managed.MarkOffset(int64(partition)+10, "")
		ends[partition], err = cl.GetOffset(a.Topic, partition, sarama.OffsetNewest)
		check(err)
	}
	manager.Commit()
	check(manager.Close())
	fetched, err := adm.ListConsumerGroupOffsets(a.Group, nil)
	check(err)
	committed := map[int32]int64{}
	for partition, block := range fetched.Blocks[a.Topic] {
		committed[partition] = block.Offset
	}
	groups, err := adm.ListConsumerGroups()
	check(err)
	_, hasGroup := groups[a.Group]
	check(adm.DeleteConsumerGroup(a.Group))
	check(adm.DeleteTopic(a.Topic))
	return map[string]any{"replicas": replicas, "retention": entries[0].Value, "committed": committed,
		"ends": ends, "group": hasGroup}
}

func main() {
	tasks := map[string]func(arguments) any{
		"metadata": metadata, "produce": produce, "consume": consume, "admin": admin}
	var a arguments
	check(json.Unmarshal([]byte(os.Args[2]), &a))
	check(json.NewEncoder(os.Stdout).Encode(tasks[os.Args[1]](a)))
}
