// What the tests ask of franz-go: `franz TASK ARGUMENTS` takes JSON and prints JSON.
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

	krb5 "github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/kerberos"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
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

func (s security) options() []kgo.Opt {
	options := []kgo.Opt{kgo.DialTLSConfig(s.tls()), kgo.RequestRetries(2)}
	switch s.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: s.Token}.AsMechanism()))
	case "GSSAPI":
		settings, err := config.Load(s.Kerberos)
		check(err)
		keys, err := keytab.Load(s.Keytab)
		check(err)
		user := krb5.NewWithKeytab(s.Username, s.Realm, keys, settings)
		options = append(options, kgo.SASL(kerberos.Auth{Client: user, Service: "kafka"}.AsMechanism()))
	}
	return options
}

func client(a arguments, options ...kgo.Opt) *kgo.Client {
	options = append(options, kgo.SeedBrokers(a.Bootstrap))
	if a.Security != nil {
		options = append(options, a.Security.options()...)
	}
	made, err := kgo.NewClient(options...)
	check(err)
	return made
}

func metadata(ctx context.Context, a arguments) any {
	cl := client(a)
	defer cl.Close()
	found, err := kadm.NewClient(cl).Metadata(ctx, a.Topic)
	check(err)
	leaders := map[int32]int32{}
	for _, partition := range found.Topics[a.Topic].Partitions {
		check(partition.Err)
		leaders[partition.Partition] = partition.Leader
	}
	return map[string]any{"brokers": found.Brokers.NodeIDs(), "controller": found.Controller, "leaders": leaders}
}

func produce(ctx context.Context, a arguments) any {
	options := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordRetries(20)}
	switch a.Mode {
	case "plain":
		options = append(options, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()))
	case "transactional":
		options = append(options, kgo.TransactionalID(a.Topic+"-franz"))
	}
	cl := client(a, options...)
	defer cl.Close()
	send := func(what string, count int) {
		var records []*kgo.Record
		for number := range count {
			for partition := range a.Partitions {
				value := fmt.Sprintf("%s-%d-%d", what, partition, number)
				records = append(records, &kgo.Record{Topic: a.Topic, Partition: partition, Value: []byte(value)})
			}
		}
		check(cl.ProduceSync(ctx, records...).FirstErr())
	}
	if a.Mode != "transactional" {
		send(a.Mode, a.Count)
		return nil
	}
	check(cl.BeginTransaction())
	send("aborted", a.Count)
	check(cl.EndTransaction(ctx, kgo.TryAbort))
	check(cl.BeginTransaction())
	send(a.Mode, a.Count)
	check(cl.EndTransaction(ctx, kgo.TryCommit))
	return nil
}

func consume(ctx context.Context, a arguments) any {
	var lock sync.Mutex
	reads := []read{}
	members := map[string]*kgo.Client{}
	for _, name := range []string{"first", "second"}[:a.Members] {
		members[name] = client(a, kgo.ConsumerGroup(a.Group), kgo.ConsumeTopics(a.Topic),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchMaxWait(100*time.Millisecond), kgo.HeartbeatInterval(300*time.Millisecond),
			kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.ClientID(name))
	}
	done, finish := context.WithCancel(ctx)
	var running sync.WaitGroup
	for name, member := range members {
		running.Go(func() {
			for done.Err() == nil {
				fetches := member.PollFetches(done)
				if done.Err() != nil {
					break
				}
				check(fetches.Err())
				check(member.CommitRecords(ctx, fetches.Records()...))
				lock.Lock()
				fetches.EachRecord(func(r *kgo.Record) {
					reads = append(reads, read{name, r.Partition, r.Offset, string(r.Value)})
				})
				if len(reads) >= a.Count {
					finish()
				}
				lock.Unlock()
				member.AllowRebalance()
			}
			member.AllowRebalance()
		})
	}
	running.Wait()
	finish()
	for _, member := range members {
		member.Close()
	}
	return reads
}

func admin(ctx context.Context, a arguments) any {
	cl := client(a)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	setting := "120000"
	_, err := adm.CreateTopic(ctx, a.Partitions, a.Replication, map[string]*string{"retention.ms": &setting}, a.Topic)
	check(err)
	var replicas []int
	for len(replicas) < int(a.Partitions) {
		replicas = nil
		found, err := adm.ListTopics(ctx, a.Topic)
		check(err)
		for _, partition := range found[a.Topic].Partitions.Sorted() {
			replicas = append(replicas, len(partition.Replicas))
		}
	}
	configs, err := adm.DescribeTopicConfigs(ctx, a.Topic)
	check(err)
	retention := ""
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			retention = config.MaybeValue()
		}
	}
	offsets := kadm.Offsets{}
	for partition := range a.Partitions {
		offsets.AddOffset(a.Topic, partition, int64(partition)+10, -1)
	}
	check(adm.CommitAllOffsets(ctx, a.Group, offsets))
	fetched, err := adm.FetchOffsets(ctx, a.Group)
	check(err)
	committed := map[int32]int64{}
	fetched.Each(func(o kadm.OffsetResponse) { committed[o.Partition] = o.At })
	listed, err := adm.ListEndOffsets(ctx, a.Topic)
	check(err)
	ends := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { check(o.Err); ends[o.Partition] = o.Offset })
	groups, err := adm.ListGroups(ctx)
	check(err)
	_, hasGroup := groups[a.Group]
	_, err = adm.DeleteGroup(ctx, a.Group)
	check(err)
	_, err = adm.DeleteTopic(ctx, a.Topic)
	check(err)
	return map[string]any{"replicas": replicas, "retention": retention, "committed": committed, "ends": ends,
		"group": hasGroup}
}

func main() {
	tasks := map[string]func(context.Context, arguments) any{
		"metadata": metadata, "produce": produce, "consume": consume, "admin": admin}
	var a arguments
	check(json.Unmarshal([]byte(os.Args[2]), &a))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	check(json.NewEncoder(os.Stdout).Encode(tasks[os.Args[1]](ctx, a)))
}
