"""A Service Bus namespace: how it is reached, and what its errors mean.

Shared by the sink, the approval receiver and replies. The SDK costs 4 MiB and
azure-identity 7 more, so both are imported only when a namespace is opened.
"""
