"""The property files of a consumer and a producer of Kafka 0.8, as they were written then."""

CONSUMER = """\
zookeeper.connect=10.0.0.67:2181
group.id=cassandra-logger-consumer
request.required.acks=1
zookeeper.session.timeout.ms=40000
zookeeper.sync.time.ms=2000
auto.commit.enable = true
auto.commit.interval.ms=1000
partition.assignment.strategy=range
"""

PRODUCER = """\
metadata.broker.list=10.0.0.82:9092,10.0.0.67:9092
serializer.class=kafka.serializer.StringEncoder
request.required.acks=1
#partitioner.class
#async config
producer.type=async
batch.num.messages=50
"""
