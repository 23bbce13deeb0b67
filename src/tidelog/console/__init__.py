"""The console: pages and a JSON API for people who look after a cluster.

A broker starts it as a process beside it (`console.listener`); `tidelog console` serves it for any Kafka
cluster. It needs the packages of the extra `console`.
"""
