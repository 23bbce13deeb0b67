"""The console: pages and a JSON API for people who look after a cluster.

A broker serves it (`console.listener`) on a thread and a loop of its own; `tidelog console` serves it for any
Kafka cluster. It needs the packages of the extra `console`.
"""
