// What the tests ask of KafkaJS: `node main.js TASK ARGUMENTS` takes JSON and prints JSON.
const { readFileSync } = require("node:fs");
const { Kafka, logLevel } = require("kafkajs");

const partitions = (count) => [...Array(count).keys()];

async function metadata(kafka, a) {
  const admin = kafka.admin();
  await admin.connect();
  const cluster = await admin.describeCluster();
  const { topics } = await admin.fetchTopicMetadata({ topics: [a.topic] });
  const leaders = {};
  for (const found of topics[0].partitions) leaders[found.partitionId] = found.leader;
  await admin.disconnect();
  return { brokers: cluster.brokers.map((broker) => broker.nodeId), controller: cluster.controller, leaders };
}

async function produce(kafka, a) {
  const settings = { allowAutoTopicCreation: false };
  if (a.mode !== "plain") Object.assign(settings, { idempotent: true, maxInFlightRequests: 1 });
  if (a.mode === "transactional") settings.transactionalId = `${a.topic}-kafkajs`;
  const producer = kafka.producer(settings);
  await producer.connect();
  const messages = (what, count) =>
    partitions(count).flatMap((number) =>
      partitions(a.partitions).map((partition) => ({ partition, value: `${what}-${partition}-${number}` })),
    );
  if (a.mode === "transactional") {
    const aborted = await producer.transaction();
    await aborted.send({ topic: a.topic, acks: -1, messages: messages("aborted", a.count) });
    await aborted.abort();
    const committed = await producer.transaction();
    await committed.send({ topic: a.topic, acks: -1, messages: messages(a.mode, a.count) });
    await committed.commit();
  } else {
    await producer.send({ topic: a.topic, acks: -1, messages: messages(a.mode, a.count) });
  }
  await producer.disconnect();
  return null;
}

async function consume(kafka, a) {
  const reads = [];
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const members = ["first", "second"].slice(0, a.members).map((name) => [
    name,
    kafka.consumer({
      groupId: a.group,
      readUncommitted: false,
      maxWaitTimeInMs: 100,
      heartbeatInterval: 300,
      allowAutoTopicCreation: false,
    }),
  ]);
  for (const [name, consumer] of members) {
    await consumer.connect();
    await consumer.subscribe({ topics: [a.topic], fromBeginning: true });
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        const offset = (BigInt(message.offset) + 1n).toString();
        await consumer.commitOffsets([{ topic: a.topic, partition, offset }]);
        reads.push({ member: name, partition, offset: Number(message.offset), value: message.value.toString() });
        if (reads.length >= a.count) finish();
      },
    });
  }
  await finished;
  for (const [, consumer] of members) await consumer.disconnect();
  return reads;
}

async function admin(kafka, a) {
  const adm = kafka.admin();
  await adm.connect();
  await adm.createTopics({
    waitForLeaders: true,
    topics: [
      {
        topic: a.topic,
        numPartitions: a.partitions,
        replicationFactor: a.replication,
        configEntries: [{ name: "retention.ms", value: "120000" }],
      },
    ],
  });
  const { topics } = await adm.fetchTopicMetadata({ topics: [a.topic] });
  const { resources } = await adm.describeConfigs({
    includeSynonyms: false,
    resources: [{ type: 2, name: a.topic, configNames: ["retention.ms"] }],
  });
  await adm.setOffsets({
    groupId: a.group,
    topic: a.topic,
    partitions: partitions(a.partitions).map((partition) => ({ partition, offset: String(partition + 10) })),
  });
  const [fetched] = await adm.fetchOffsets({ groupId: a.group, topics: [a.topic] });
  const listed = await adm.fetchTopicOffsets(a.topic);
  const { groups } = await adm.listGroups();
  await adm.deleteGroups([a.group]);
  await adm.deleteTopics({ topics: [a.topic] });
  await adm.disconnect();
  const byPartition = (entries) => Object.fromEntries(entries.map((e) => [e.partition, Number(e.offset)]));
  return {
    replicas: topics[0].partitions.map((partition) => partition.replicas.length),
    retention: resources[0].configEntries.find((entry) => entry.configName === "retention.ms").configValue,
    committed: byPartition(fetched.partitions),
    ends: byPartition(listed),
    group: groups.some((group) => group.groupId === a.group),
  };
}

function connection({ bootstrap, security }) {
  const settings = { brokers: [bootstrap], logLevel: logLevel.ERROR, retry: { retries: 10 } };
  if (!security) return settings;
  const { mechanism, username, password, token } = security;
  settings.retry.retries = 2;
  settings.ssl = { ca: readFileSync(security.ca) };
  if (security.certificate) {
    settings.ssl.cert = readFileSync(security.certificate);
    settings.ssl.key = readFileSync(security.key);
  }
  if (mechanism === "OAUTHBEARER") {
    settings.sasl = { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: token }) };
  } else if (mechanism) {
    settings.sasl = { mechanism: mechanism.toLowerCase(), username, password };
  }
  return settings;
}

async function main() {
  const [task, given] = process.argv.slice(2);
  const a = JSON.parse(given);
  const kafka = new Kafka(connection(a));
  const answer = await { metadata, produce, consume, admin }[task](kafka, a);
  process.stdout.write(JSON.stringify(answer));
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
