"""What users write by mistake: mypy finds exactly what is marked. Read by mypy, never run."""

from __future__ import annotations

from tidelog import Admin, Consumer, IntegerSerializer, Producer, StringDeserializer, StringSerializer

Admin(bootstrap_servers="a:1", retries="3")  # error: arg-type
Admin(bootstrap_servers="a:1", acks="all")  # error: call-arg
Producer(bootstrap_servers="a:1", acks="al")  # error: arg-type
Producer(bootstrap_servers="a:1", linger_ms="20")  # error: arg-type
Producer(boostrap_servers="a:1")  # error: call-arg
Producer(bootstrap_servers="a:1", compression_type="brotli")  # error: arg-type
Producer(bootstrap_servers="a:1", group_id="billing")  # error: call-arg
Producer(bootstrap_servers="a:1", value_serializer="StringSerializer")  # error: arg-type
Producer(bootstrap_servers="a:1", value_serializer=StringDeserializer())  # error: arg-type
Consumer("orders", bootstrap_servers="a:1", isolation_level="committed")  # error: arg-type
Consumer("orders", bootstrap_servers="a:1", security_protocol="TLS")  # error: arg-type

plain = Producer(bootstrap_servers="a:1")
plain.send("orders", 3)  # error: arg-type
plain.send(b"orders", b"3")  # error: arg-type

typed = Producer(
    bootstrap_servers="a:1", key_serializer=StringSerializer(), value_serializer=IntegerSerializer()
)
typed.send("orders", "three", key="alice")  # error: arg-type
typed.send("orders", 3, key=b"alice")  # error: arg-type
typed.send("orders", 3, partition="0")  # error: arg-type

texts = Consumer("orders", bootstrap_servers="a:1", value_deserializer=StringDeserializer())
for record in texts.poll():
    record.value.upper()  # error: union-attr
    if record.value is not None:
        record.value.decode()  # error: attr-defined
    if record.key is not None:
        record.key.decode()
